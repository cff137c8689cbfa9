// The tree: time by module, op and kernel.

const ROW = 22;

class Tree {
  constructor(data, texts, short, colors) {
    this.data = data;
    this.texts = texts;
    this.short = short;
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

