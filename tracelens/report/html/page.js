"use strict";
// Text of a trace goes into the page through textContent and form values only.

const SVG = "http://www.w3.org/2000/svg";
const FIRST_ROWS = 50;
const MORE_ROWS = 200;
const LONG_TEXT = 40;

function make(name, attributes, ...content) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...content.filter((piece) => piece !== null));
  return element;
}

function draw(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function button(text, act, title) {
  const made = make("button", title ? { type: "button", title, "aria-label": title } : { type: "button" }, text);
  made.addEventListener("click", act);
  return made;
}

function shownNumber(value, decimals) {
  if (value !== 0 && Math.abs(value) < 0.5 * 10 ** -decimals) return value.toPrecision(2);
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function shownTime(ns) {
  if (ns >= 1e6) return shownNumber(ns / 1e6, 3) + " ms";
  return shownNumber(ns / 1e3, 2) + " µs";
}

function shownShare(share) {
  return (100 * share).toFixed(1) + " %";
}

async function unpacked() {
  const text = document.getElementById("data").textContent;
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const whole = await new Response(stream).arrayBuffer();
  const length = new DataView(whole).getUint32(0, true);
  const data = JSON.parse(new TextDecoder().decode(new Uint8Array(whole, 4, length)));
  return { data, columns: new Uint8Array(whole, 4 + length) };
}

// A column of whole numbers: the lowest byte of all differences first, then the next; odd ones are negative.
function unpackedColumn(bytes, [at, count, width]) {
  const values = new Array(count);
  let value = 0;
  for (let i = 0; i < count; i++) {
    let coded = 0;
    for (let byte = width - 1; byte >= 0; byte--) coded = coded * 256 + bytes[at + byte * count + i];
    value += coded % 2 ? -(coded + 1) / 2 : coded / 2;
    values[i] = value;
  }
  return values;
}

const tip = document.getElementById("tip");

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 18;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below + box.height > window.innerHeight ? event.clientY - box.height - 10 : below) + "px";
}

function withTip(element, text) {
  element.addEventListener("pointermove", (event) => showTip(event, text()));
  element.addEventListener("pointerleave", () => { tip.hidden = true; });
}

// Whether a click on a row is one on the row itself: neither on what has a use of its own nor the end of a selection.
function isOnRow(event) {
  return !event.target.closest("a, button, input, label, details, .detail") && String(getSelection()) === "";
}

class Table {
  // ``locate`` shows a row in the timeline; null where there is none.
  constructor(key, data, explain, locate) {
    this.key = key;
    this.locate = locate;
    this.columns = data.columns;
    this.explain = explain;
    this.element = document.getElementById(key);
    this.body = this.element.tBodies[0];
    this.heads = [...this.element.tHead.rows[0].cells];
    this.total = this.columns[0].values.length;
    this.limit = FIRST_ROWS;
    this.sorted = null;
    this.haystack = this.texts();
    this.tools();
    this.heads.forEach((head, i) => head.firstChild.addEventListener("click", () => this.sort(i)));
    this.element.classList.add("live");
    if (locate) {
      this.element.classList.add("located");
      this.body.addEventListener("click", (event) => {
        const row = event.target.closest("tr");
        if (row && isOnRow(event)) locate(Number(row.id.slice(key.length + 1)));
      });
    }
    this.update();
  }

  texts() {
    const parts = this.columns.filter((column) => column.decimals === null).map((column) => column.values);
    return Array.from({ length: this.total }, (_, i) => parts.map((values) => values[i] || "").join("\n").toLowerCase());
  }

  tools() {
    const place = document.getElementById(this.key + "-tools");
    this.count = place.firstChild;
    this.input = make("input", { type: "search", placeholder: "filter: name, category, shape …", "aria-label": "Filter the rows" });
    this.input.addEventListener("input", () => { this.limit = FIRST_ROWS; this.update(); });
    this.copy = button("copy as Markdown", () => this.copied());
    place.prepend(this.input);
    const boxes = this.columns.map((column, i) => this.chooser(column, i));
    place.append(this.copy, make("details", { class: "chooser" }, make("summary", {}, "columns"), make("div", {}, ...boxes)));
    this.more = button("", () => { this.limit += MORE_ROWS; this.update(); });
    this.more.className = "more";
    this.element.parentNode.after(this.more);
  }

  chooser(column, i) {
    const box = make("input", { type: "checkbox" });
    box.checked = !column.hidden;
    box.addEventListener("change", () => {
      column.hidden = !box.checked;
      this.heads[i].hidden = column.hidden;
      this.update();
    });
    return make("label", {}, box, column.header);
  }

  filter(text) {
    this.input.value = text;
    this.limit = FIRST_ROWS;
    this.update();
  }

  sort(i) {
    const column = this.columns[i];
    const worstIsLeast = column.decimals === null || column.limit;
    const again = this.sorted !== null && this.sorted.column === i;
    this.sorted = { column: i, ascending: again ? !this.sorted.ascending : worstIsLeast };
    this.update();
  }

  order() {
    const wanted = this.input.value.trim().toLowerCase();
    const rows = [];
    for (let i = 0; i < this.total; i++) if (this.haystack[i].includes(wanted)) rows.push(i);
    if (this.sorted !== null) {
      const { values, shown } = this.columns[this.sorted.column];
      const sign = this.sorted.ascending ? 1 : -1;
      const keys = shown || values;
      rows.sort((a, b) => compared(keys[a], keys[b], sign) || a - b);
    }
    return rows;
  }

  update() {
    this.rows = this.order();
    this.heads.forEach((head, i) => {
      if (this.sorted !== null && this.sorted.column === i) {
        head.setAttribute("aria-sort", this.sorted.ascending ? "ascending" : "descending");
      } else {
        head.removeAttribute("aria-sort");
      }
    });
    const shown = this.rows.slice(0, this.limit);
    this.body.replaceChildren(...shown.map((i) => this.row(i)));
    const all = this.total.toLocaleString("en-US");
    this.count.textContent = this.rows.length === this.total ? all + " rows" : this.rows.length.toLocaleString("en-US") + " of " + all + " rows";
    const hidden = this.rows.length - shown.length;
    this.more.hidden = hidden === 0;
    this.more.textContent = "show " + (hidden > MORE_ROWS ? MORE_ROWS + " of " : "") + hidden.toLocaleString("en-US") + " more rows";
  }

  row(i) {
    const cells = this.columns.map((column, at) => this.cell(column, column.values[i], at, i));
    return make("tr", { id: this.key + "-" + i }, ...cells);
  }

  cell(column, value, at, i) {
    const isNumber = typeof value === "number" && column.decimals !== null;
    const text = value === null ? "" : isNumber ? shownNumber(value, column.decimals) : String(value);
    const cell = make("td", column.decimals === null ? {} : { class: "n" });
    cell.hidden = column.hidden;
    const shown = column.shown ? column.shown[i] : text;
    const isCut = shown !== text || text.length > LONG_TEXT;
    const content = isCut ? make("div", { class: "clip", title: text }, shown) : make("span", {}, text);
    if (at === 0 && this.explain) {
      const opener = button("▸", () => this.toggle(i));
      opener.className = "open";
      opener.setAttribute("aria-expanded", "false");
      opener.setAttribute("aria-label", "How the figures of this row were computed");
      opener.title = "How the figures of this row were computed";
      cell.append(make("div", { class: "lead" }, opener, content, this.locate ? timelineButton(() => this.locate(i)) : null));
    } else {
      cell.append(at === 0 && this.locate ? make("div", { class: "lead" }, content, timelineButton(() => this.locate(i))) : content);
    }
    if (column.share && isNumber) {
      cell.classList.add("with-share");
      cell.style.setProperty("--share", Math.min(100, value) + "%");
    }
    if (column.limit && isNumber && value > 100) {
      cell.classList.add("over");
      cell.prepend("! ");
    }
    return cell;
  }

  // A row without what it opens, to be shown elsewhere.
  record(i) {
    const shown = this.columns.map((column, at) => at).filter((at) => !this.columns[at].hidden && this.columns[at].values[i] !== null);
    const heads = shown.map((at) => make("th", { scope: "col", class: this.columns[at].decimals === null ? "" : "n" }, this.columns[at].header));
    const cells = shown.map((at) => {
      const { decimals, shown: short, values } = this.columns[at];
      const isNumber = typeof values[i] === "number" && decimals !== null;
      return make("td", isNumber ? { class: "n" } : {}, isNumber ? shownNumber(values[i], decimals) : short ? short[i] : String(values[i]));
    });
    const table = make("table", { class: "record" }, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, make("tr", {}, ...cells)));
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Row of the table " + this.key }, table);
  }

  name(i) { return (this.columns[0].shown || this.columns[0].values)[i]; }

  toggle(i) {
    const row = document.getElementById(this.key + "-" + i);
    const opener = row.querySelector(".open");
    const next = row.nextSibling;
    if (next && next.classList.contains("detail")) {
      next.remove();
    } else {
      const lines = make("pre", {}, this.explain(i));
      row.after(make("tr", { class: "detail" }, make("td", { colspan: this.columns.length }, lines)));
    }
    const isOpen = row.nextSibling !== null && row.nextSibling.classList.contains("detail");
    opener.textContent = isOpen ? "▾" : "▸";
    opener.setAttribute("aria-expanded", String(isOpen));
  }

  // Brings a row into view, whatever was filtered.
  show(i) {
    if (!this.rows.includes(i)) this.input.value = "";
    this.rows = this.order();
    this.limit = Math.max(this.limit, this.rows.indexOf(i) + 1);
    this.update();
    const row = document.getElementById(this.key + "-" + i);
    row.classList.add("found");
    if (this.explain && !(row.nextSibling && row.nextSibling.classList.contains("detail"))) this.toggle(i);
    row.scrollIntoView({ block: "center" });
    const first = row.querySelector("button");
    if (first) first.focus({ preventScroll: true });
  }

  markdown() {
    const cell = (text) => text.replace(/\\/g, "\\\\").replace(/\|/g, "\\|").replace(/</g, "&lt;").replace(/`/g, "\\`");
    const line = (cells) => "| " + cells.join(" | ") + " |";
    const columns = this.columns.filter((column) => !column.hidden);
    const lines = [line(columns.map((column) => cell(column.header)))];
    lines.push(line(columns.map((column) => (column.decimals === null ? "---" : "---:"))));
    for (const i of this.rows) {
      lines.push(line(columns.map((column) => {
        const value = column.values[i];
        if (value === null) return "";
        return typeof value === "number" && column.decimals !== null ? shownNumber(value, column.decimals) : cell(String(value));
      })));
    }
    return lines.join("\n") + "\n";
  }

  async copied() {
    const text = this.markdown();
    let done = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
    }
    this.copy.textContent = done ? "copied " + this.rows.length.toLocaleString("en-US") + " rows" : "the browser refused to copy";
    setTimeout(() => { this.copy.textContent = "copy as Markdown"; }, 2500);
  }
}

// Unknown values last, whatever the direction.
function compared(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * (String(a) < String(b) ? -1 : String(a) > String(b) ? 1 : 0);
}

function fitted(text, width) {
  const letters = Math.floor((width - 8) / 6.6);
  if (letters < 5 && text.length > letters) return "";
  return text.length <= letters ? text : text.slice(0, letters - 1) + "…";
}

function drawing(name) {
  const place = document.getElementById(name + "-drawing");
  const controls = make("div", { class: "controls" });
  place.append(controls);
  return { place, controls, width: () => Math.max(320, place.clientWidth) };
}

function timelineButton(act) {
  const made = button("timeline", act, "Show in the timeline");
  made.className = "to-timeline";
  return made;
}

// Findings lead to the timeline; the switch below them shows the predicted step instead of the measured one.
function connectFindings(findings, texts, timeline, together) {
  findings.forEach((finding, i) => {
    const body = document.getElementById("finding-" + (i + 1));
    if (!body || !timeline || !(finding.rows.length || finding.causes.length || finding.categories.length)) return;
    const show = () => timeline.show({
      rows: new Set(finding.rows), causes: new Set(finding.causes), categories: new Set(finding.categories), label: "finding " + (i + 1),
    });
    body.classList.add("leads");
    body.querySelector(".ways").prepend(timelineButton(show));
    body.addEventListener("click", (event) => { if (isOnRow(event)) show(); });
  });
  const box = document.getElementById("what-if");
  if (!box || !together) return;
  box.disabled = false;
  box.closest("label").hidden = false;
  box.addEventListener("change", () => {
    const fixed = together.length - 1;
    document.querySelectorAll(".tile .now").forEach((figure) => { figure.hidden = box.checked; });
    document.querySelectorAll(".tile .then").forEach((figure) => { figure.hidden = !box.checked; });
    for (let number = 1; number <= fixed; number++) document.getElementById("finding-" + number).classList.toggle("fixed", box.checked);
    document.querySelector(".predicted tbody").lastChild.classList.toggle("fixed", box.checked);
    if (timeline) timeline.predict(box.checked ? together[fixed] / together[0] : null);
  });
}

function connect(tables) {
  document.addEventListener("click", (event) => {
    const point = event.target.closest("a.point");
    if (point && tables.ops) {
      event.preventDefault();
      tables.ops.show(Number(point.dataset.row));
    }
    const link = event.target.closest("a.to-ops");
    if (link && tables.ops) {
      tables.ops.filter(link.dataset.filter);
    }
  });
}

function start({ data, columns }) {
  const { texts } = data;
  let timeline = null;
  const colors = new Map(data.colors);
  const explain = data.explanations && ((i) => data.explanations[i].map((line) => texts[line]).join("\n"));
  const tables = {};
  for (const [key, table] of Object.entries(data.tables)) {
    const locate = data.timeline && { ops: (i) => timeline.show({ rows: new Set([i]), label: tables.ops.name(i) }),
      kernels: (i) => timeline.show({ kernel: i, label: tables.kernels.name(i) }) }[key];
    tables[key] = new Table(key, table, key === "ops" ? explain : null, locate);
  }
  connect(tables);
  // On paper colors are those of a light screen
  window.addEventListener("beforeprint", () => { document.documentElement.dataset.print = "yes"; });
  window.addEventListener("afterprint", () => { delete document.documentElement.dataset.print; });
  const drawings = [];
  if (data.timeline) {
    timeline = new Timeline(data.timeline, (column) => unpackedColumn(columns, column), texts, data.short, colors, tables);
    drawings.push(timeline);
  }
  connectFindings(data.findings, texts, timeline, data.together);
  if (data.drilldown) new Drill(data.drilldown, texts, data.short, colors, tables.ops);
  if (data.icicle) drawings.push(new Tree(data.icicle, texts, data.short, colors));
  let pending = 0;
  window.addEventListener("resize", () => {
    clearTimeout(pending);
    pending = setTimeout(() => drawings.forEach((drawn) => drawn.render()), 120);
  });
  document.body.dataset.ready = "yes";
}

unpacked().then(start, () => {
  const text = "This browser cannot unpack the data of the page: tables show their first rows, the drawings are missing.";
  document.querySelector("main").prepend(make("section", { class: "notices" }, text));
});
