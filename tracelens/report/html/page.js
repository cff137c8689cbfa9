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

function button(text, act) {
  const made = make("button", { type: "button" }, text);
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
  return new Response(stream).json();
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

class Table {
  constructor(key, data, explain) {
    this.key = key;
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
    place.append(this.copy);
    this.more = button("", () => { this.limit += MORE_ROWS; this.update(); });
    this.more.className = "more";
    this.element.parentNode.after(this.more);
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
      const values = this.columns[this.sorted.column].values;
      const sign = this.sorted.ascending ? 1 : -1;
      rows.sort((a, b) => compared(values[a], values[b], sign) || a - b);
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
    const content = text.length > LONG_TEXT ? make("div", { class: "clip", title: text }, text) : make("span", {}, text);
    if (at === 0 && this.explain) {
      const opener = button("▸", () => this.toggle(i));
      opener.className = "open";
      opener.setAttribute("aria-expanded", "false");
      opener.setAttribute("aria-label", "How the figures of this row were computed");
      opener.title = "How the figures of this row were computed";
      cell.append(make("div", { class: "lead" }, opener, content));
    } else {
      cell.append(content);
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
    const opener = row.querySelector(".open");
    if (opener) opener.focus({ preventScroll: true });
  }

  markdown() {
    const cell = (text) => text.replace(/\\/g, "\\\\").replace(/\|/g, "\\|").replace(/</g, "&lt;").replace(/`/g, "\\`");
    const line = (cells) => "| " + cells.join(" | ") + " |";
    const lines = [line(this.columns.map((column) => cell(column.header)))];
    lines.push(line(this.columns.map((column) => (column.decimals === null ? "---" : "---:"))));
    for (const i of this.rows) {
      lines.push(line(this.columns.map((column) => {
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

const MARGIN = 84;
const LANE = 30;

class Timeline {
  constructor(data, texts, colors, pick) {
    this.data = data;
    this.texts = texts;
    this.colors = colors;
    this.pick = pick;
    this.from = 0;
    this.to = data.duration;
    const { place, controls, width } = drawing("timeline");
    this.place = place;
    this.width = width;
    this.range = make("span", { class: "count" });
    controls.append(
      button("zoom in", () => this.zoom(0.5)), button("zoom out", () => this.zoom(2)),
      button("◀", () => this.move(-0.5)), button("▶", () => this.move(0.5)),
      button("whole", () => this.view(0, data.duration)), this.range,
      make("span", { class: "count" }, "drag across to zoom, select a box to find its kernel"),
    );
    this.svg = draw("svg", { role: "img", "aria-label": "Timeline: device events by stream" });
    place.append(this.svg);
    this.svg.addEventListener("pointerdown", (event) => this.drag(event));
    this.render();
  }

  view(from, to) {
    const span = Math.min(this.data.duration, Math.max(100, to - from));
    this.from = Math.min(Math.max(0, from), this.data.duration - span);
    this.to = this.from + span;
    this.render();
  }

  zoom(factor) {
    const middle = (this.from + this.to) / 2;
    const half = (this.to - this.from) * factor / 2;
    this.view(middle - half, middle + half);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.view(this.from + by, this.to + by);
  }

  time(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN) / (box.width - MARGIN);
    return this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
  }

  drag(event) {
    if (event.button !== 0) return;
    const start = event.clientX;
    const from = this.time(event);
    const box = this.svg.getBoundingClientRect();
    const shade = draw("rect", { class: "pick", y: 0, height: box.height, x: 0, width: 0 });
    this.svg.append(shade);
    const onMove = (moved) => {
      const low = Math.max(MARGIN, Math.min(start, moved.clientX) - box.left);
      shade.setAttribute("x", low);
      shade.setAttribute("width", Math.max(0, Math.max(start, moved.clientX) - box.left - low));
    };
    const onUp = (ended) => {
      window.removeEventListener("pointermove", onMove);
      window.removeEventListener("pointerup", onUp);
      shade.remove();
      if (Math.abs(ended.clientX - start) > 6) {
        const to = this.time(ended);
        this.view(Math.min(from, to), Math.max(from, to));
      }
    };
    window.addEventListener("pointermove", onMove);
    window.addEventListener("pointerup", onUp);
  }

  render() {
    const { data } = this;
    const width = this.width();
    const inner = width - MARGIN;
    const lanes = data.idle ? [...data.lanes, "idle"] : data.lanes;
    const height = lanes.length * LANE + 26;
    const x = (ns) => MARGIN + (ns - this.from) / (this.to - this.from) * inner;
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + height);
    const drawn = lanes.flatMap((label, lane) => [
      draw("rect", { class: "lane", x: MARGIN, y: lane * LANE + 2, width: inner, height: LANE - 4 }),
      draw("text", { x: MARGIN - 8, y: lane * LANE + 19, "text-anchor": "end" }, label),
    ]);
    drawn.push(...this.ticks(x, height));
    for (let i = 0; i < data.lane.length; i++) {
      const end = data.start[i] + data.length[i];
      if (end < this.from || data.start[i] > this.to) continue;
      drawn.push(...this.box(i, Math.max(MARGIN, x(data.start[i])), Math.min(width, x(end))));
    }
    if (data.idle) drawn.push(...this.idleBoxes(data.idle, x, width));
    this.svg.replaceChildren(...drawn);
    this.range.textContent = shownTime(this.from) + " to " + shownTime(this.to);
  }

  box(i, left, right) {
    const { data, texts } = this;
    const color = this.colors.get(data.category[i]) || "rest";
    const y = data.lane[i] * LANE + 2;
    const wide = Math.max(0.7, right - left);
    const box = draw("rect", { class: "hit " + color, x: left, y, width: wide, height: LANE - 4 });
    if (wide < 2) box.style.strokeWidth = "0";
    withTip(box, () => this.describe(i));
    box.addEventListener("click", () => this.pick(texts[data.name[i]]));
    const label = fitted(texts[data.op[i] < 0 ? data.name[i] : data.op[i]], wide);
    return label ? [box, draw("text", { class: "on-" + color, x: left + 4, y: y + 17 }, label)] : [box];
  }

  idleBoxes(idle, x, width) {
    const y = this.data.lanes.length * LANE + 2;
    return idle.start.flatMap((start, i) => {
      const end = start + idle.length[i];
      if (end < this.from || start > this.to) return [];
      const left = Math.max(MARGIN, x(start));
      const wide = Math.max(0.7, Math.min(width, x(end)) - left);
      const box = draw("rect", { class: "idle", x: left, y, width: wide, height: LANE - 4 });
      const cause = this.texts[idle.cause[i]];
      const within = idle.idle[i] === idle.length[i] ? "" : ", in gaps within " + shownTime(idle.length[i]);
      withTip(box, () => "idle: " + cause + "\n" + shownTime(idle.idle[i]) + within + " from " + shownTime(start));
      const label = fitted(cause, wide);
      return label ? [box, draw("text", { class: "on-idle", x: left + 4, y: y + 17 }, label)] : [box];
    });
  }

  describe(i) {
    const { data, texts } = this;
    const lines = [texts[data.name[i]]];
    if (data.count[i] > 1) lines[0] = data.count[i] + " short events, the longest: " + lines[0];
    lines.push(texts[data.category[i]] + (data.op[i] < 0 ? "" : " · launched by " + texts[data.op[i]]));
    const busy = data.busy[i] === data.length[i] ? "" : " (" + shownTime(data.busy[i]) + " of kernels)";
    lines.push(shownTime(data.length[i]) + busy + " from " + shownTime(data.start[i]) + " · " + data.lanes[data.lane[i]]);
    return lines.join("\n");
  }

  ticks(x, height) {
    const rough = (this.to - this.from) / 8;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const unit = step >= 1e5 ? 1e6 : 1e3;
    const decimals = Math.max(0, -Math.floor(Math.log10(step / unit)));
    const made = [];
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      if (x(at) > this.width() - 50) break;
      made.push(draw("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height - 20 }));
      const label = (at / unit).toFixed(decimals) + (unit === 1e6 ? " ms" : " µs");
      made.push(draw("text", { class: "tick", x: x(at) + 3, y: height - 6 }, label));
    }
    return made;
  }
}

const ROW = 22;
const ENGINE = "autograd::engine::evaluate_function: ";

class Tree {
  constructor(data, texts, colors) {
    this.data = data;
    this.texts = texts;
    this.colors = colors;
    this.children = data.parent.map(() => []);
    data.parent.forEach((parent, i) => { if (parent >= 0) this.children[parent].push(i); });
    this.focus = 0;
    const { place, controls, width } = drawing("icicle");
    this.width = width;
    this.crumbs = make("span", { class: "crumbs" });
    controls.append(button("up", () => this.zoom(data.parent[this.focus])), button("whole", () => this.zoom(0)), this.crumbs);
    this.svg = draw("svg", { role: "group", "aria-label": "Tree: time by module, op and kernel" });
    place.append(this.svg);
    this.render();
  }

  zoom(i) {
    this.focus = Math.max(0, i);
    tip.hidden = true;
    this.render();
  }

  path(i) {
    const names = [];
    for (let at = i; at >= 0; at = this.data.parent[at]) names.unshift(this.texts[this.data.name[at]]);
    return names;
  }

  render() {
    const { data } = this;
    const width = this.width();
    const drawn = [];
    let deepest = 0;
    const place = (i, left, right, level) => {
      deepest = Math.max(deepest, level);
      drawn.push(...this.box(i, left, right, level));
      const scale = (right - left) / data.time[i];
      let at = left;
      for (const child of this.children[i]) {
        const wide = data.time[child] * scale;
        if (wide >= 0.8) place(child, at, at + wide, level + 1);
        at += wide;
      }
    };
    place(this.focus, 0, width, 0);
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + (deepest + 1) * ROW);
    this.svg.replaceChildren(...drawn);
    this.crumbs.textContent = this.path(this.focus).join(" › ");
  }

  box(i, left, right, level) {
    const { data, texts } = this;
    const isGroup = data.kind[i] === "all" || data.kind[i] === "module" || data.kind[i] === "annotation";
    const color = isGroup ? data.kind[i] : this.colors.get(data.category[i]) || "rest";
    const y = level * ROW;
    const box = draw("rect", { class: "hit " + color, x: left, y, width: right - left, height: ROW - 1 });
    if (right - left < 3) box.style.strokeWidth = "0";
    withTip(box, () => this.describe(i));
    box.addEventListener("click", () => this.zoom(i === this.focus ? data.parent[i] : i));
    const label = fitted(texts[data.name[i]].replace(ENGINE, "").replace(/^void /, ""), right - left);
    if (label) {
      box.setAttribute("tabindex", "0");
      box.setAttribute("role", "button");
      box.setAttribute("aria-label", this.describe(i));
      box.addEventListener("keydown", (event) => { if (event.key === "Enter") this.zoom(i === this.focus ? data.parent[i] : i); });
    }
    return label ? [box, draw("text", { class: "on-" + color, x: left + 4, y: y + 15 }, label)] : [box];
  }

  describe(i) {
    const { data, texts } = this;
    const lines = [texts[data.name[i]]];
    const kind = { all: "", module: "nn.Module, ", annotation: "", op: "op, ", kernel: "kernel, " }[data.kind[i]];
    const calls = data.calls[i].toLocaleString("en-US") + (data.calls[i] === 1 ? " call" : " calls");
    lines.push(kind + calls + " · " + shownTime(data.time[i]) + " · " + shownShare(data.time[i] / data.time[0]) + " of all");
    if (data.category[i] >= 0) lines.push("mostly " + texts[data.category[i]]);
    return lines.join("\n");
  }
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

function start(data) {
  const { texts } = data;
  const colors = new Map(data.colors);
  const explain = data.explanations && ((i) => data.explanations[i].map((line) => texts[line]).join("\n"));
  const tables = {};
  for (const [key, table] of Object.entries(data.tables)) tables[key] = new Table(key, table, key === "ops" ? explain : null);
  connect(tables);
  const drawings = [];
  if (data.timeline) {
    drawings.push(new Timeline(data.timeline, texts, colors, (name) => {
      if (!tables.kernels) return;
      tables.kernels.filter(name);
      document.getElementById("section-kernels").scrollIntoView();
    }));
  }
  if (data.icicle) drawings.push(new Tree(data.icicle, texts, colors));
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
