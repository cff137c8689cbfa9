// The tab of TensorBoard: one page of a report at a time, in a frame without origin. Names go in as text only.
export async function render() {
  const names = await (await fetch("./pages")).json();
  const choice = document.createElement("select");
  choice.setAttribute("aria-label", "Report");
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.title = "Report";
  for (const name of names) choice.append(new Option(name, name));
  const show = () => { frame.src = "./page?" + new URLSearchParams({ name: choice.value }); };
  choice.addEventListener("change", show);
  Object.assign(document.body.style, { margin: "0", display: "flex", flexDirection: "column", height: "100vh" });
  Object.assign(choice.style, { margin: "8px", maxWidth: "60em" });
  Object.assign(frame.style, { border: "0", flex: "1" });
  if (names.length) {
    document.body.append(choice, frame);
    show();
  } else {
    document.body.append("No report below the log folder: tracelens report TRACE writes TRACE.report/report.html beside the trace.");
  }
}
