// The timeline of a step on a canvas: threads of the host above the streams of the device.

const HOST_ROW = 16;
const STREAM_ROW = 26;
const LANE_GAP = 7;
const AXIS = 20;
const MOST_ARROWS = 60;
const HOST_COLORS = { op: "host-op", annotation: "gauge", module: "host-module", call: "host-call" };
const HOST_WORDS = { op: "op", annotation: "annotation", module: "nn.Module", call: "call of the runtime" };
const PREFIX = /^(autograd::engine::evaluate_function|nn\.Module): /;
const KEYS = { w: (t) => t.zoom(0.6), s: (t) => t.zoom(1 / 0.6), a: (t) => t.move(-0.25), d: (t) => t.move(0.25) };
const KINDS = ["device", "op", "annotation", "module", "call"];
const PERFETTO = "https://ui.perfetto.dev";
const LIGHT_TEXT = new Set(["c0", "c3", "c6"]);

class Timeline {
  constructor(steps, unpack, texts, short, colors, tables) {
    Object.assign(this, { steps, unpack, texts, short, colors, tables, chosen: -1, hovered: -1, pointer: null, armed: false, pending: 0 });
    Object.assign(this, { marked: null, causes: new Set(), order: [], predicted: null });
    this.folded = new Set();
    const { place, controls, width } = drawing("timeline");
    this.width = width;
    this.range = make("span", { class: "count" });
    this.search = make("input", { type: "search", placeholder: "search the timeline …", "aria-label": "Search the timeline" });
    this.search.addEventListener("input", () => this.find());
    this.search.addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(1); });
    this.found = make("span", { class: "count", "aria-live": "polite" });
    this.choice = make("select", { "aria-label": "Step" }, ...steps.map((step, i) => make("option", { value: i }, this.stepName(step))));
    this.choice.addEventListener("change", () => this.open(Number(this.choice.value)));
    this.choice.hidden = steps.length < 2;
    controls.append(
      this.choice,
      button("+", () => this.zoom(0.5), "Zoom in (W)"), button("−", () => this.zoom(2), "Zoom out (S)"),
      button("◀", () => this.move(-0.5), "Earlier (A)"), button("▶", () => this.move(0.5), "Later (D)"),
      button("whole", () => this.view(0, this.data.duration)), this.search, this.found,
      this.walk = make("span", { class: "walk" }, button("previous", () => this.next(-1)), button("next", () => this.next(1)), button("clear", () => this.clear(), "Clear the selection (Escape)")),
      this.range, button("Perfetto", () => this.openInPerfetto(), "Open this part of the trace in ui.perfetto.dev"),
    );
    this.file = make("input", { type: "file", hidden: "", "aria-label": "Trace for Perfetto" });
    this.file.addEventListener("change", () => this.say("Perfetto: press the button again; it then shows what is in view here, of " + (this.file.files[0] || { name: "no file" }).name + "."));
    place.append(this.file);
    this.base = make("canvas", { "aria-hidden": "true" });
    this.canvas = make("canvas", {
      tabindex: "0", role: "application", class: "top",
      "aria-label": "Timeline: threads of the host above streams of the device. W and S zoom, A and D move, arrow keys go from box to box, Enter opens its row.",
    });
    this.details = make("div", { class: "details", "aria-live": "polite" });
    this.hint = "Wheel or W and S zoom, drag or A and D move, Shift and drag zooms to a stretch; select a box for its details and its row.";
    place.append(make("div", { class: "layers" }, this.base, this.canvas), this.details);
    this.listen();
    this.open(0);
  }

  stepName(step) {
    return step.step === null ? "everything" : "step " + step.step + ", " + shownTime(step.duration) + (step === this.steps[0] ? " (typical)" : "");
  }

  open(i) {
    this.choice.value = String(i);
    this.data = this.boxes(this.steps[i]);
    this.chosen = this.hovered = -1;
    this.from = 0;
    this.to = this.data.duration;
    const { lane, level, name, op } = this.data;
    this.rows = new Map();
    lane.forEach((at, box) => {
      const key = at * 100 + level[box];
      if (!this.rows.has(key)) this.rows.set(key, []);
      this.rows.get(key).push(box);
    });
    this.haystack = name.map((text, box) => (this.texts[text] + "\n" + (op[box] < 0 ? "" : this.texts[op[box]])).toLowerCase());
    this.find();
    this.describe();
  }

  // A step with its columns unpacked, which is done when it is first looked at.
  boxes(step) {
    if (step.kind) return step;
    for (const [key, column] of Object.entries(step.columns)) step[key] = this.unpack(column);
    step.kind = step.kind.map((code) => KINDS[code]);
    step.launch = step.start.map((at, i) => at - step.ahead[i]);
    step.busy = step.length.map((ns, i) => ns + step.more[i]);
    if (step.idle) {
      for (const [key, column] of Object.entries(step.idle)) step.idle[key] = this.unpack(column);
      step.idle.idle = step.idle.length.map((ns, i) => ns - step.idle.less[i]);
    }
    return step;
  }

  // What of a step a row, a kernel or a finding speaks of.
  boxesOf(step, { rows, kernel, categories }) {
    const found = [];
    step.kind.forEach((kind, box) => {
      if (kind !== "device") return;
      const isRow = rows && step.row[box] >= 0 && rows.has(step.row[box]);
      if (isRow || (kernel >= 0 && step.kernel[box] === kernel) || (categories && categories.has(step.category[box]))) found.push(box);
    });
    return found;
  }

  // Marks the kernels of a row or a finding, or the idle time, in the step shown, else in the first that has them.
  show(what) {
    const steps = [this.data, ...this.steps.filter((step) => step !== this.data)].map((step) => this.boxes(step));
    const hasCause = (step) => step.idle && what.causes && step.idle.cause.some((cause) => what.causes.has(cause));
    const step = steps.find((each) => this.boxesOf(each, what).length || hasCause(each)) || this.data;
    if (step !== this.data) this.open(this.steps.indexOf(step));
    this.search.value = "";
    const boxes = this.boxesOf(step, what);
    this.mark(boxes, what.causes);
    const idle = hasCause(step) ? step.idle.idle.reduce((sum, ns, i) => sum + (what.causes.has(step.idle.cause[i]) ? ns : 0), 0) : 0;
    const parts = [this.counted(step, boxes), idle ? "idle " + shownTime(idle) : ""].filter(Boolean);
    this.found.textContent = what.label + ": " + (parts.length ? parts.join(", ") : "no kernel in the drawn steps");
    this.canvas.scrollIntoView({ block: "center" });
    this.canvas.focus({ preventScroll: true });
    if (boxes.length) {
      const longest = boxes.reduce((best, box) => (step.length[box] > step.length[best] ? box : best));
      this.choose(longest);
      this.reveal(longest, true);
    } else if (idle) {
      const mine = step.idle.start.map((_, i) => i).filter((i) => what.causes.has(step.idle.cause[i]));
      const longest = mine.reduce((best, i) => (step.idle.idle[i] > step.idle.idle[best] ? i : best));
      this.view(step.idle.start[longest] - step.idle.length[longest], step.idle.start[longest] + 2 * step.idle.length[longest]);
    }
  }

  // How many kernels boxes are and how long they take; neighbors that share a box may be of others.
  counted(step, boxes) {
    const alone = boxes.filter((box) => step.count[box] === 1);
    const shared = boxes.length - alone.length;
    const time = alone.reduce((sum, box) => sum + step.busy[box], 0);
    const parts = [];
    if (alone.length) parts.push(alone.length.toLocaleString("en-US") + (alone.length === 1 ? " kernel, " : " kernels, ") + shownTime(time));
    if (shared) parts.push(shared.toLocaleString("en-US") + (shared === 1 ? " box" : " boxes") + " shared with neighbors");
    return parts.join(", ");
  }

  mark(boxes, causes) {
    this.causes = causes || new Set();
    this.marked = boxes.length || this.causes.size ? new Set(boxes) : null;
    this.order = boxes.slice().sort((a, b) => this.data.start[a] - this.data.start[b]);
    this.walk.hidden = this.marked === null;
    this.later();
  }

  clear() {
    this.search.value = "";
    this.find();
    this.choose(-1);
  }

  say(text) { this.details.replaceChildren(make("span", { class: "count" }, text)); }

  // The part in view, or the event that is chosen, by Perfetto's parameters: ns on the trace's own clock.
  perfettoPlace() {
    const { data, chosen } = this;
    const at = (ns) => String(BigInt(data.first) + BigInt(Math.round(ns)));
    const place = new URLSearchParams({ visStart: at(this.from), visEnd: at(this.to) });
    if (chosen >= 0 && data.count[chosen] === 1) {
      place.set("ts", at(data.start[chosen]));
      place.set("dur", String(data.busy[chosen]));
    }
    return PERFETTO + "/#!/?" + place;
  }

  // A page holds no trace and may load none: whoever looks at it chooses the file, which goes from window to window.
  async openInPerfetto() {
    if (window.origin === "null") {
      this.say("Perfetto takes a trace from a page that came by http: run python3 -m http.server --bind 127.0.0.1 in the folder of this page, open it at http://127.0.0.1:8000/, and press the button there.");
      return;
    }
    const [file] = this.file.files;
    if (!file) {
      this.say("Choose the trace of this report, Kineto's JSON or what tracelens perfetto wrote; it stays in this browser.");
      this.file.click();
      return;
    }
    const opened = window.open(this.perfettoPlace());
    if (!opened) {
      this.say("The browser did not let this page open a window: allow it, and press the button again.");
      return;
    }
    const buffer = await file.arrayBuffer();
    const asking = setInterval(() => opened.postMessage("PING", "*"), 100);
    const stop = () => { clearInterval(asking); window.removeEventListener("message", answer); };
    const answer = (event) => {
      if (event.source !== opened || event.origin !== PERFETTO || event.data !== "PONG") return;
      stop();
      opened.postMessage({ perfetto: { buffer, title: file.name, fileName: file.name } }, PERFETTO);
    };
    window.addEventListener("message", answer);
    setTimeout(stop, 60000);
  }

  // Where the step would end; null for the measured one.
  predict(share) {
    this.predicted = share;
    this.later();
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = event;
      if (event.movementX || event.movementY) this.armed = true;
      this.hover(event);
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.hovered = -1;
      tip.hidden = true;
      this.overlay();
    });
    canvas.addEventListener("wheel", (event) => {
      // A page that scrolls past the drawing goes on scrolling: only a pointer that was moved here zooms
      if (!this.armed && !event.ctrlKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.inner());
      else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(0.5, Math.abs(event.deltaY) / 400)));
    }, { passive: false });
    window.addEventListener("scroll", () => { this.armed = false; }, { passive: true });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest && event.target.closest("input, select, textarea");
      const here = document.activeElement === canvas || this.pointer !== null;
      if (typing || !here || event.ctrlKey || event.metaKey || event.altKey) return;
      const act = KEYS[event.key.toLowerCase()];
      if (act) act(this);
      else if (document.activeElement !== canvas || !this.step(event.key)) return;
      event.preventDefault();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.render());
    window.addEventListener("afterprint", () => this.render());
  }

  step(key) {
    const moves = { ArrowLeft: -1, ArrowRight: 1 };
    if (key === "Escape") return this.clear(), true;
    if (key === "Home") return this.view(0, this.data.duration), true;
    if (key === "Enter" && this.chosen >= 0) return this.pickRow(), true;
    if (key in moves) {
      const at = Math.max(0, this.chosen);
      const row = this.rows.get(this.data.lane[at] * 100 + this.data.level[at]);
      const next = row[Math.min(row.length - 1, Math.max(0, row.indexOf(at) + (this.chosen < 0 ? 0 : moves[key])))];
      return this.choose(next), this.reveal(next), true;
    }
    if (key !== "ArrowUp" && key !== "ArrowDown") return false;
    const keys = [...this.rows.keys()].sort((a, b) => a - b);
    const at = Math.max(0, this.chosen);
    const here = keys.indexOf(this.data.lane[at] * 100 + this.data.level[at]) + (key === "ArrowUp" ? -1 : 1);
    const row = this.rows.get(keys[Math.min(keys.length - 1, Math.max(0, here))]);
    const next = row.find((box) => this.data.start[box] + this.data.length[box] >= this.data.start[at]);
    return this.choose(next === undefined ? row[0] : next), this.reveal(this.chosen), true;
  }

  inner() { return this.width() - this.margin(); }

  margin() { return this.width() < 600 ? 70 : 118; }

  view(from, to) {
    const span = Math.min(this.data.duration, Math.max(100, to - from));
    this.from = Math.min(Math.max(0, from), this.data.duration - span);
    this.to = this.from + span;
    this.later();
  }

  // Round the pointer where it is on the drawing, else round the middle.
  zoom(factor) {
    const at = this.pointer === null ? (this.from + this.to) / 2 : this.time(this.pointer);
    this.view(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.view(this.from + by, this.to + by);
  }

  reveal(box, always = false) {
    const { start, length } = this.data;
    const middle = start[box] + length[box] / 2;
    const span = Math.min(this.to - this.from, Math.max(length[box] * 20, 1000));
    if (always || start[box] < this.from || start[box] + length[box] > this.to || length[box] / (this.to - this.from) < 0.004) {
      this.view(middle - span / 2, middle + span / 2);
    }
  }

  time(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - this.margin()) / this.inner();
    return this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
  }

  x(ns) { return this.margin() + (ns - this.from) / (this.to - this.from) * this.inner(); }

  layout() {
    let y = AXIS + 4;
    this.tops = this.data.lanes.map((lane, i) => {
      const isFolded = this.folded.has(lane.label);
      const tall = lane.host ? HOST_ROW * (isFolded ? 1 : lane.levels) : STREAM_ROW;
      const top = { y, tall, row: lane.host ? HOST_ROW : STREAM_ROW, levels: isFolded ? 1 : lane.levels, lane, i };
      y += tall + LANE_GAP;
      return top;
    });
    this.idleTop = y;
    return y + (this.data.idle ? STREAM_ROW + LANE_GAP : 0);
  }

  hit(event) {
    const area = this.canvas.getBoundingClientRect();
    const y = event.clientY - area.top;
    const top = this.tops.find((each) => y >= each.y && y < each.y + each.tall);
    if (!top || event.clientX - area.left < this.margin()) return -1;
    const row = this.rows.get(top.i * 100 + Math.floor((y - top.y) / top.row)) || [];
    const at = this.time(event);
    const near = 2.5 * (this.to - this.from) / this.inner();
    const { start, length } = this.data;
    const inside = row.find((box) => start[box] <= at && at <= start[box] + length[box]);
    return inside !== undefined ? inside : row.find((box) => start[box] - near <= at && at <= start[box] + length[box] + near) ?? -1;
  }

  isOnIdle(event) {
    const y = event.clientY - this.canvas.getBoundingClientRect().top;
    return Boolean(this.data.idle) && y >= this.idleTop && y <= this.idleTop + STREAM_ROW;
  }

  hover(event) {
    const was = this.hovered;
    this.hovered = this.hit(event);
    const idle = this.hovered < 0 && this.isOnIdle(event) ? this.idleText(this.time(event)) : "";
    if (this.hovered >= 0) showTip(event, this.lines(this.hovered).map((line) => line.join(" ")).slice(0, 5).join("\n"));
    else if (idle) showTip(event, idle);
    else tip.hidden = true;
    if (was !== this.hovered) this.overlay();
  }

  press(event) {
    if (event.button !== 0) return;
    const area = this.canvas.getBoundingClientRect();
    const label = event.clientX - area.left < this.margin() && this.tops.find((top) => event.clientY - area.top >= top.y && event.clientY - area.top < top.y + top.tall);
    if (label && label.lane.host && label.lane.levels > 1) {
      if (!this.folded.delete(label.lane.label)) this.folded.add(label.lane.label);
      this.later();
      return;
    }
    const { from, to } = this;
    const first = this.time(event);
    this.canvas.setPointerCapture(event.pointerId);
    const onMove = (moved) => {
      const by = (event.clientX - moved.clientX) / this.inner() * (to - from);
      if (event.shiftKey) this.overlay([first, this.time(moved)]);
      else if (Math.abs(moved.clientX - event.clientX) > 3) this.view(from + by, to + by);
    };
    const onUp = (ended) => {
      this.canvas.removeEventListener("pointermove", onMove);
      this.canvas.removeEventListener("pointerup", onUp);
      this.canvas.removeEventListener("pointercancel", onUp);
      if (Math.abs(ended.clientX - event.clientX) <= 3) this.choose(this.hit(ended));
      else if (event.shiftKey) this.view(Math.min(first, this.time(ended)), Math.max(first, this.time(ended)));
    };
    this.canvas.addEventListener("pointermove", onMove);
    this.canvas.addEventListener("pointerup", onUp);
    this.canvas.addEventListener("pointercancel", onUp);
  }

  choose(box) {
    this.chosen = box;
    this.describe();
    this.overlay();
  }

  find() {
    const wanted = this.search.value.trim().toLowerCase();
    const hits = wanted ? this.haystack.flatMap((text, box) => (text.includes(wanted) ? [box] : [])) : [];
    const time = hits.reduce((sum, box) => sum + this.data.busy[box], 0);
    this.found.textContent = wanted ? hits.length.toLocaleString("en-US") + " found, " + shownTime(time) : "";
    this.mark(hits);
  }

  // The marked box after the chosen one, or before it; from the last one on to the first.
  next(by) {
    if (!this.order.length) return;
    const at = this.order.indexOf(this.chosen);
    const next = at < 0 ? (by > 0 ? 0 : -1) : at + by;
    this.choose(this.order[(next + this.order.length) % this.order.length]);
    this.reveal(this.chosen);
  }

  // The table and the row that a box of the device is counted in; null where the page has none.
  rowOf(box) {
    const { row, kernel } = this.data;
    if (this.tables.ops && row[box] >= 0) return [this.tables.ops, row[box]];
    return this.tables.kernels && kernel[box] >= 0 ? [this.tables.kernels, kernel[box]] : null;
  }

  pickRow() {
    const found = this.rowOf(this.chosen);
    if (found) found[0].show(found[1]);
  }

  label(text) { return (this.short[text] || this.texts[text]).replace(PREFIX, ""); }

  lines(box) {
    const { data, texts } = this;
    const lane = data.lanes[data.lane[box]];
    const one = data.count[box] === 1;
    const kind = data.kind[box];
    const lines = [[kind === "device" ? "" : HOST_WORDS[kind] + ":", texts[data.name[box]]].filter(Boolean)];
    if (!one) lines[0].unshift(data.count[box].toLocaleString("en-US") + " events, the longest:");
    lines.push([one ? "" : "in all", shownTime(data.busy[box]), "from", shownTime(data.start[box]), "on", lane.label]);
    if (data.op[box] >= 0) lines.push(["launched by", texts[data.op[box]]]);
    if (data.line[box] >= 0) lines.push(["called from", texts[data.line[box]]]);
    if (data.from[box] >= 0) lines.push(["launched", shownTime(Math.max(0, data.start[box] - data.launch[box])), "before it began"]);
    if (data.category[box] >= 0) lines.push(["category", texts[data.category[box]]]);
    return lines;
  }

  describe() {
    if (this.chosen < 0) {
      this.details.replaceChildren(make("span", { class: "count" }, this.hint));
      return;
    }
    const [first, ...others] = this.lines(this.chosen);
    const parts = [make("strong", {}, first.join(" ")), ...others.map((line) => make("div", {}, line.filter(Boolean).join(" ")))];
    const launched = this.launchedBy(this.chosen);
    if (launched.length) parts.push(make("div", {}, "launched " + launched.length + " of the boxes below"));
    const found = this.rowOf(this.chosen);
    if (found) parts.push(found[0].record(found[1]), button(found[0] === this.tables.ops ? "show its row" : "show its kernel", () => this.pickRow()));
    this.details.replaceChildren(...parts);
  }

  // The gap at a moment where it is wide enough to be pointed at, else the idle share of what is near by cause.
  idleText(at) {
    const { idle } = this.data;
    const near = 2 * (this.to - this.from) / this.inner();
    const gap = idle.start.findIndex((start, i) => idle.less[i] === 0 && idle.length[i] >= near && start <= at && at <= start + idle.length[i]);
    if (gap >= 0) return "idle " + shownTime(idle.length[gap]) + "\n" + this.texts[idle.cause[gap]] + "\nfrom " + shownTime(idle.start[gap]);
    const byCause = new Map();
    idle.start.forEach((start, i) => {
      const both = Math.min(at + near, start + idle.length[i]) - Math.max(at - near, start);
      if (both > 0) byCause.set(idle.cause[i], (byCause.get(idle.cause[i]) || 0) + both * idle.idle[i] / idle.length[i]);
    });
    const shares = [...byCause].map(([cause, ns]) => [cause, ns / (2 * near)]).sort((a, b) => b[1] - a[1]);
    if (!shares.length) return "";
    const all = shares.reduce((sum, [, share]) => sum + share, 0);
    return "idle " + shownShare(Math.min(1, all)) + " of " + shownTime(2 * near) + "\n" + shares.map(([cause, share]) => this.texts[cause] + " " + shownShare(share)).join("\n");
  }

  // Boxes of the device that a box of the host launched, itself or in what it called.
  launchedBy(box) {
    const { data } = this;
    if (data.kind[box] === "device") return [];
    const end = data.start[box] + data.length[box];
    const found = [];
    data.from.forEach((from, i) => {
      if (from >= 0 && data.lane[from] === data.lane[box] && data.launch[i] >= data.start[box] && data.launch[i] <= end) found.push(i);
    });
    return found;
  }

  later() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.render(); });
  }

  context(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    const width = this.width();
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = "12px system-ui, 'Segoe UI', Roboto, sans-serif";
    context.textBaseline = "middle";
    return context;
  }

  color(name) { return this.styles.getPropertyValue("--" + name).trim(); }

  // Not while printing: the browser then loses what is drawn, but prints what was; of a dark screen it inverts that.
  render() {
    if (document.documentElement.dataset.print) return;
    this.base.parentNode.dataset.dark = matchMedia("(prefers-color-scheme: dark)").matches ? "yes" : "no";
    this.styles = getComputedStyle(document.documentElement);
    const height = this.layout();
    const context = this.context(this.base, height);
    const palette = new Map();
    const paint = (name) => {
      if (!palette.has(name)) palette.set(name, this.color(name));
      return palette.get(name);
    };
    this.frame(context, height, paint);
    for (const top of this.tops) {
      for (let level = 0; level < top.levels; level++) this.row(context, top, level, paint);
    }
    if (this.data.idle) this.idleRow(context, paint);
    this.predictedEnd(context, height, paint);
    this.range.textContent = shownTime(this.from) + " to " + shownTime(this.to);
    this.overlay();
  }

  frame(context, height, paint) {
    const width = this.width();
    context.textAlign = "right";
    for (const top of this.tops) {
      context.fillStyle = paint("soft");
      context.fillRect(this.margin(), top.y, this.inner(), top.tall);
      context.fillStyle = paint("ink");
      const fold = top.lane.host && top.lane.levels > 1 ? (this.folded.has(top.lane.label) ? "▸ " : "▾ ") : "";
      context.fillText(fold + fitted(top.lane.label, this.margin() - (fold ? 18 : 4)), this.margin() - 6, top.y + Math.min(top.tall, STREAM_ROW) / 2);
    }
    context.textAlign = "left";
    for (const { at, label } of this.ticks()) {
      context.fillStyle = paint("line");
      context.fillRect(this.x(at), 0, 1, height);
      context.fillStyle = paint("dim");
      if (this.x(at) < width - 50) context.fillText(label, this.x(at) + 4, AXIS / 2);
    }
  }

  // What is marked is drawn last: no neighbor hides it.
  row(context, top, level, paint) {
    const boxes = this.rows.get(top.i * 100 + level) || [];
    for (const isMarked of this.marked ? [false, true] : [true]) {
      context.globalAlpha = isMarked ? 1 : 0.18;
      this.line(context, top.y + level * top.row, top.row - 1, paint, this.marked ? boxes.filter((box) => this.marked.has(box) === isMarked) : boxes);
    }
    context.globalAlpha = 1;
  }

  line(context, y, tall, paint, boxes) {
    const { data } = this;
    let drawnTo = -1;
    for (const box of boxes) {
      const end = data.start[box] + data.length[box];
      if (end < this.from || data.start[box] > this.to) continue;
      const left = Math.max(this.margin(), this.x(data.start[box]));
      const wide = Math.max(0.7, Math.min(this.width(), this.x(end)) - left);
      if (left + wide < drawnTo + 0.35) continue;
      drawnTo = left + wide;
      const isDevice = data.kind[box] === "device";
      const color = isDevice ? this.colors.get(data.category[box]) || "rest" : HOST_COLORS[data.kind[box]];
      const high = isDevice && data.count[box] > 1 ? tall * Math.min(1, Math.max(0.15, data.busy[box] / data.length[box])) : tall;
      context.fillStyle = paint(color);
      context.fillRect(left, y + tall - high, wide > 2 ? wide - 0.6 : wide, high);
      const label = wide > 30 && high > 12 ? fitted(this.label(isDevice && data.op[box] >= 0 ? data.op[box] : data.name[box]), wide) : "";
      if (!label) continue;
      context.fillStyle = isDevice ? (LIGHT_TEXT.has(color) ? "#ffffff" : "#0d131a") : paint("ink");
      context.fillText(label, left + 4, y + tall / 2 + 0.5);
    }
  }

  // The idle share of each column of pixels in what is shown, of some causes or of all.
  idleShares(columns, causes) {
    const { idle } = this.data;
    const shares = new Array(columns).fill(0);
    const scale = columns / (this.to - this.from);
    idle.start.forEach((start, i) => {
      if (causes.size && !causes.has(idle.cause[i])) return;
      const first = Math.max(0, (start - this.from) * scale);
      const last = Math.min(columns, (start + idle.length[i] - this.from) * scale);
      const density = idle.idle[i] / idle.length[i];
      for (let column = Math.floor(first); column < last; column++) {
        shares[column] += density * (Math.min(last, column + 1) - Math.max(first, column));
      }
    });
    return shares.map((share) => Math.min(1, share));
  }

  idleRow(context, paint) {
    const { idle } = this.data;
    const tall = STREAM_ROW - 1;
    context.fillStyle = paint("soft");
    context.fillRect(this.margin(), this.idleTop, this.inner(), tall);
    context.fillStyle = paint("ink");
    context.textAlign = "right";
    context.fillText("idle", this.margin() - 6, this.idleTop + STREAM_ROW / 2);
    context.textAlign = "left";
    const draw = (causes) => this.idleShares(Math.floor(this.inner()), causes).forEach((share, column) => {
      const high = share > 0 ? Math.max(1, share * tall) : 0;
      if (high) context.fillRect(this.margin() + column, this.idleTop + tall - high, 1, high);
    });
    context.fillStyle = paint("idle");
    draw(new Set());
    context.fillStyle = paint("accent");
    if (this.causes.size) draw(this.causes);
    idle.start.forEach((start, i) => {
      const end = start + idle.length[i];
      if (idle.less[i] || end < this.from || start > this.to) return;
      const left = Math.max(this.margin(), this.x(start));
      const wide = Math.min(this.width(), this.x(end)) - left;
      const label = wide > 30 ? fitted(this.texts[idle.cause[i]], wide) : "";
      context.fillStyle = paint(this.causes.has(idle.cause[i]) ? "panel" : "ink");
      if (label) context.fillText(label, left + 4, this.idleTop + STREAM_ROW / 2);
    });
  }

  // Where the predicted step ends, over all lanes.
  predictedEnd(context, height, paint) {
    const at = this.predicted === null ? -1 : this.predicted * this.data.duration;
    if (at < this.from || at > this.to) return;
    const x = this.x(at);
    context.fillStyle = paint("panel");
    context.globalAlpha = 0.6;
    context.fillRect(x, AXIS, this.width() - x, height - AXIS);
    context.globalAlpha = 1;
    context.fillStyle = paint("faster");
    context.fillRect(x - 1, 0, 2, height);
    const label = "predicted end, " + shownTime(at);
    context.textAlign = x > this.width() - 170 ? "right" : "left";
    context.fillText(label, x + (context.textAlign === "left" ? 5 : -5), AXIS + 8);
    context.textAlign = "left";
  }

  // What is under the pointer or chosen, with arrows from launches to what they launched; a stretch to zoom to.
  overlay(stretch) {
    if (!this.tops || !this.styles) return;
    const context = this.context(this.canvas, this.canvas.parentNode.clientHeight || this.layout());
    context.strokeStyle = this.color("ink");
    context.fillStyle = this.color("ink");
    if (stretch) {
      context.globalAlpha = 0.2;
      context.fillRect(this.x(Math.min(...stretch)), 0, Math.abs(this.x(stretch[0]) - this.x(stretch[1])), this.canvas.clientHeight);
      context.globalAlpha = 1;
    }
    for (const box of new Set([this.chosen, this.hovered])) {
      if (box < 0) continue;
      this.outline(context, box, 2);
      const targets = this.data.kind[box] === "device" ? [box] : this.launchedBy(box).slice(0, MOST_ARROWS);
      for (const target of targets) this.arrow(context, target);
    }
  }

  place(box) {
    const top = this.tops[this.data.lane[box]];
    const level = Math.min(this.data.level[box], top.levels - 1);
    return { y: top.y + level * top.row, tall: top.row - 1 };
  }

  outline(context, box, thick) {
    const { y, tall } = this.place(box);
    const left = Math.max(this.margin(), this.x(this.data.start[box]));
    const right = Math.min(this.width(), this.x(this.data.start[box] + this.data.length[box]));
    if (right < this.margin() || left > this.width()) return;
    context.lineWidth = thick;
    context.strokeRect(left, y, Math.max(1, right - left), tall);
  }

  arrow(context, target) {
    const { data } = this;
    if (data.from[target] < 0) return;
    const from = this.place(data.from[target]);
    const to = this.place(target);
    const clip = (x) => Math.min(this.width(), Math.max(this.margin(), x));
    const x1 = clip(this.x(data.launch[target]));
    const x2 = clip(this.x(data.start[target]));
    const y1 = from.y + from.tall;
    const y2 = to.y;
    context.lineWidth = 1.2;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1, (y1 + y2) / 2, x2, (y1 + y2) / 2, x2, y2 - 1);
    context.stroke();
    context.beginPath();
    context.moveTo(x2 - 4, y2 - 7);
    context.lineTo(x2, y2);
    context.lineTo(x2 + 4, y2 - 7);
    context.fill();
  }

  ticks() {
    const rough = (this.to - this.from) / Math.max(2, this.inner() / 140);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const unit = step >= 1e5 ? 1e6 : 1e3;
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
    const made = [];
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      made.push({ at, label: (at / unit).toFixed(decimals) + (unit === 1e6 ? " ms" : " µs") });
    }
    return made;
  }
}
