// The tree: time by module, op and kernel.

const ROW = 22;

class Tree {
  constructor(data, texts, short, colors) {
    this.upright = this.data = data;
    this.wanted = "";
    this.texts = texts;
    this.short = short;
    this.colors = colors;
    this.children = children(data);
    this.focus = 0;
    const { place, controls, width } = drawing("icicle");
    this.width = width;
    this.crumbs = make("span", { class: "crumbs" });
    controls.append(button("up", () => this.zoom(this.data.parent[this.focus])), button("whole", () => this.zoom(0)), this.turner(), this.searcher(), this.found = make("span", { class: "count", "aria-live": "polite" }), this.crumbs);
    this.svg = draw("svg", { role: "group", "aria-label": "Tree: time by module, op and kernel" });
    place.append(this.svg);
    this.render();
  }

  // The other way round: what ran on top, below it who asked for it.
  turner() {
    const box = make("input", { type: "checkbox" });
    box.addEventListener("change", () => {
      this.data = box.checked ? inverted(this.upright) : this.upright;
      this.children = children(this.data);
      this.zoom(0);
    });
    return make("label", { class: "count" }, box, " inverted");
  }

  searcher() {
    const input = make("input", { type: "search", placeholder: "search the tree …", "aria-label": "Search the tree" });
    input.addEventListener("input", () => { this.wanted = input.value.trim().toLowerCase(); this.render(); });
    return input;
  }

  matches(i) { return this.texts[this.data.name[i]].toLowerCase().includes(this.wanted); }

  // Time at or below boxes that match, each counted once.
  timeFound() {
    const { data } = this;
    const covered = data.parent.map((parent, i) => this.matches(i));
    let time = 0;
    data.parent.forEach((parent, i) => {
      const above = parent >= 0 && covered[parent];
      if (covered[i] && !above) time += data.time[i];
      covered[i] = covered[i] || above;
    });
    return time;
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
      let at = left, small = 0;
      for (const child of this.children[i]) {
        const wide = data.time[child] * scale;
        if (wide >= 0.8) { place(child, at, at + wide, level + 1); at += wide; } else small += wide;
      }
      if (small >= 0.8) drawn.push(draw("rect", { class: "rest", x: at, y: (level + 1) * ROW, width: small, height: ROW - 1, opacity: 0.4 }));
    };
    place(this.focus, 0, width, 0);
    this.svg.setAttribute("viewBox", "0 0 " + width + " " + (deepest + 1) * ROW);
    this.svg.replaceChildren(...drawn);
    this.found.textContent = this.wanted ? shownShare(this.timeFound() / data.time[0]) + " of all" : "";
    this.crumbs.textContent = this.path(this.focus).join(" › ");
  }

  box(i, left, right, level) {
    const { data, texts } = this;
    const isGroup = data.kind[i] === "all" || data.kind[i] === "module" || data.kind[i] === "annotation";
    const color = isGroup ? data.kind[i] : this.colors.get(data.category[i]) || "rest";
    const y = level * ROW;
    const box = draw("rect", { class: "hit " + color, x: left, y, width: right - left, height: ROW - 1 });
    if (right - left < 3) box.style.strokeWidth = "0";
    if (this.wanted && !this.matches(i)) box.style.opacity = "0.25";
    withTip(box, () => this.describe(i));
    box.addEventListener("click", () => this.zoom(i === this.focus ? data.parent[i] : i));
    const label = fitted((this.short[data.name[i]] || texts[data.name[i]]).replace(PREFIX, ""), right - left);
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

function children(data) {
  const found = data.parent.map(() => []);
  data.parent.forEach((parent, i) => { if (parent >= 0) found[parent].push(i); });
  return found;
}

// Nodes by what has time of its own, with the paths to it turned round; parents before children.
function inverted(data) {
  const own = data.time.slice();
  data.parent.forEach((parent, i) => { if (parent >= 0) own[parent] -= data.time[i]; });
  const made = { parent: [-1], name: [data.name[0]], kind: ["all"], time: [0], calls: [1], category: [-1] };
  const known = new Map();
  own.forEach((time, leaf) => {
    if (time <= 0 || leaf === 0) return;
    made.time[0] += time;
    let at = 0;
    for (let i = leaf; i > 0; i = data.parent[i]) {
      const key = at + ":" + data.name[i];
      if (!known.has(key)) {
        known.set(key, made.parent.length);
        made.parent.push(at);
        for (const column of ["name", "kind", "category"]) made[column].push(data[column][i]);
        made.time.push(0);
        made.calls.push(0);
      }
      at = known.get(key);
      made.time[at] += time;
      made.calls[at] += data.calls[leaf];
    }
  });
  const order = made.time.map((_, i) => i).sort((a, b) => made.time[b] - made.time[a] || a - b);
  const place = new Map(order.map((old, i) => [old, i]));
  const sorted = {};
  for (const [key, values] of Object.entries(made)) sorted[key] = order.map((old) => values[old]);
  sorted.parent = sorted.parent.map((parent) => (parent < 0 ? -1 : place.get(parent)));
  return sorted;
}
