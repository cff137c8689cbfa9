// From a category down to its ops, their kernels and the lines of Python that called them.

const LEVELS = ["category", "op", "kernel", "line"];

class Drill {
  constructor(data, texts, short, colors, ops) {
    Object.assign(this, { data, texts, short, colors, ops, path: [] });
    const { place, controls } = drawing("drill");
    this.crumbs = make("nav", { class: "crumbs", "aria-label": "Where you are" });
    controls.append(this.crumbs);
    this.list = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Device time of this level" });
    place.append(this.list);
    this.total = data.time.reduce((sum, ns) => sum + ns, 0) + data.rest;
    this.render();
  }

  levels() { return this.data.line === null ? LEVELS.slice(0, 3) : LEVELS; }

  name(level, value) {
    if (level === "op") return value < 0 || !this.ops ? "(no row of its own)" : this.opName(value);
    return this.short[value] || this.texts[value];
  }

  opName(row) {
    const [name, , shapes] = this.ops.columns;
    return name.values[row] + (shapes && shapes.values[row] ? " " + shapes.values[row] : "");
  }

  // Rows of the leaves below where we are, added up by the next level.
  groups() {
    const level = this.levels()[this.path.length];
    const found = new Map();
    this.data.time.forEach((ns, leaf) => {
      if (!this.path.every((value, i) => this.data[LEVELS[i]][leaf] === value)) return;
      const value = this.data[level][leaf];
      const group = found.get(value) || { value, time: 0, count: 0 };
      group.time += ns;
      group.count += this.data.count[leaf];
      found.set(value, group);
    });
    return [...found.values()].sort((a, b) => b.time - a.time);
  }

  go(path) {
    this.path = path;
    this.render();
  }

  render() {
    const steps = [["all categories", []], ...this.path.map((value, i) => [this.name(LEVELS[i], value), this.path.slice(0, i + 1)])];
    const last = steps.length - 1;
    this.crumbs.replaceChildren(...steps.flatMap(([text, path], i) => [
      i ? make("span", { "aria-hidden": "true" }, " › ") : null,
      i === last ? make("strong", { "aria-current": "page" }, text) : button(text, () => this.go(path)),
    ].filter((piece) => piece !== null)));
    const level = this.levels()[this.path.length];
    const groups = this.groups();
    const top = groups.length ? groups[0].time : 1;
    const head = make("tr", {}, make("th", { scope: "col" }, level), make("th", { scope: "col" }, "share of the largest"),
      ...["events", "ms", "% of GPU time"].map((text) => make("th", { scope: "col", class: "n" }, text)));
    const rows = groups.map((group) => this.row(level, group, top));
    this.list.replaceChildren(make("table", { class: "categories" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  row(level, group, top) {
    const isLast = this.path.length + 1 === this.levels().length;
    const name = this.name(level, group.value);
    const full = level === "kernel" || level === "line" ? this.texts[group.value] : name;
    const cell = make("th", { scope: "row", title: full });
    cell.append(isLast ? name : button(name, () => this.go([...this.path, group.value])));
    if (level === "op" && group.value >= 0 && this.ops) cell.append(" ", button("row", () => this.ops.show(group.value), "Show the row of this op"));
    const color = this.colors.get(this.path.length ? this.path[0] : group.value) || "rest";
    const bar = draw("svg", { width: "100%", height: 14, "aria-hidden": "true" });
    bar.append(draw("rect", { class: color, width: 100 * group.time / top + "%", height: 14 }));
    return make("tr", {}, cell, make("td", { class: "span" }, bar),
      make("td", { class: "n" }, group.count.toLocaleString("en-US")), make("td", { class: "n" }, shownNumber(group.time / 1e6, 3)),
      make("td", { class: "n" }, (100 * group.time / this.total).toFixed(1)));
  }
}
