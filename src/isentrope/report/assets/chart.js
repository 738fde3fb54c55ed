"use strict";
// A chart draws its description (report/chart.py) as SVG into a frame, again whenever size or choices change.

const WINDOWS = [0, 3, 5, 7, 11, 15, 21, 31, 51, 81, 121]; // points, by notch of the slider
const STEP_CHARTS = DATA.charts.filter((spec) => spec.overSteps);
const ALL_STEPS = extent(STEP_CHARTS.flatMap((spec) => spec.series.flatMap((one) => [one.x[0], one.x[one.x.length - 1]])));
const EDGE = 0.995; // of a scatter's points lie within the axis, the rest at its edge

function colour(series) {
  return series.tone === null ? `run-${series.run % NUM_COLOURS}` : `tone-${series.tone}`;
}

class Chart {
  constructor(frame, spec, label) {
    this.frame = frame;
    this.spec = spec;
    this.cursor = null;
    this.canvas = svg("svg", { role: "img", "aria-label": label || frame.dataset.alt || spec.title });
    this.stage = html("div", { class: "stage", tabindex: "0", role: "group", "aria-label": `${spec.title}. Arrow keys read values.` }, this.canvas);
    this.legend = html("ul", { class: "legend" });
    frame.replaceChildren(this.legend, this.stage, foot(this));
    inspect(this);
    this.draw();
  }

  get shown() {
    return this.spec.series.filter((series) => !chosen.hidden.has(series.run) && series.x.length);
  }

  get drag() {
    return this.spec.overSteps;
  }

  draw() {
    const width = Math.max(240, this.stage.clientWidth);
    const height = this.spec.flat ? 150 : Math.round(clamp(width * 0.52, 210, 290));
    this.lines = this.shown.map((series) => this.smooth(series));
    this.measure(width, height);
    this.canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.canvas.setAttribute("width", width);
    this.canvas.setAttribute("height", height);
    this.overlay = svg("g", { class: "overlay" });
    this.canvas.replaceChildren(this.axes(), this.content(), this.overlay);
    this.frame.classList.toggle("empty", !this.lines.length);
    this.list();
  }

  smooth(series) {
    const width = Math.min(WINDOWS[chosen.smooth], Math.floor(series.x.length / 2));
    const applies = this.spec.overSteps && this.spec.kind === "lines" && !series.dots && width > 2;
    return { ...series, raw: applies ? series.y : null, y: applies ? smoothed(series.y, width) : series.y };
  }

  // -- where things stand

  measure(width, height) {
    const { x, y, kind } = this.spec;
    this.xDomain = this.spec.overSteps ? chosen.zoom || padded(ALL_STEPS) : x.log ? this.xExtent() : domain(x, this.xExtent());
    this.yDomain = kind === "areas" ? [-1, 1] : domain(y, this.yExtent());
    this.yTicks = ticks(this.yDomain, Math.max(3, Math.round(height / 55)));
    const longest = Math.max(...this.yTicks.map((tick) => onAxis(y, tick).length));
    this.box = { left: 14 + 6.6 * longest, right: width - 12, top: 24, bottom: height - 38 };
    const { left, right, top, bottom } = this.box;
    this.x = (x.log ? logarithmic : linear)(this.xDomain, [left, right]);
    this.y = linear(this.yDomain, [bottom, top]);
  }

  xExtent() {
    return this.lines.reduce((found, series) => extent(series.x, found), [Infinity, -Infinity]);
  }

  yExtent() {
    if (this.spec.scale) return sharedExtent(this.spec.scale);
    const [from, to] = this.xDomain;
    let found = [Infinity, -Infinity];
    for (const series of this.lines) {
      found = extent(series.y.filter((_, i) => series.x[i] >= from && series.x[i] <= to), found);
      found = extent([...(series.low || []), ...(series.high || [])], found);
    }
    return extent(this.marks.map((mark) => mark.y), found);
  }

  get marks() {
    return this.spec.marks.filter((mark) => !chosen.hidden.has(mark.run));
  }

  // -- what is drawn

  axes() {
    const { left, right, top, bottom } = this.box;
    const { x, y } = this.spec;
    const parts = [];
    for (const tick of this.yTicks) {
      const at = this.y(tick);
      const line = tick === 0 && this.yDomain[0] < 0 ? "zero" : "grid";
      parts.push(svg("line", { class: line, x1: left, x2: right, y1: at, y2: at }));
      parts.push(svg("text", { class: "tick", x: left - 7, y: at + 4, "text-anchor": "end" }, onAxis(y, tick)));
    }
    const xTicks = x.log ? powers(this.xDomain) : ticks(this.xDomain, Math.max(2, Math.floor((right - left) / 85)));
    for (const tick of this.spec.overSteps ? xTicks.filter(Number.isInteger) : xTicks) {
      const at = this.x(tick);
      const isZero = tick === 0 && this.spec.kind === "scatter" && this.xDomain[0] < 0;
      parts.push(svg("line", { class: isZero ? "zero" : "notch", x1: at, x2: at, y1: isZero ? top : bottom, y2: bottom + 4 }));
      parts.push(svg("text", { class: "tick", x: at, y: bottom + 18, "text-anchor": "middle" }, onAxis(x, tick)));
    }
    parts.push(svg("line", { class: "base", x1: left, x2: right, y1: bottom, y2: bottom }));
    parts.push(svg("text", { class: "name", x: 2, y: 12 }, y.label));
    parts.push(svg("text", { class: "name", x: right, y: bottom + 33, "text-anchor": "end" }, x.label));
    return svg("g", { class: "axes" }, ...parts);
  }

  content() {
    const { left, right, top, bottom } = this.box;
    const clip = `clip-${this.spec.id}`;
    const rect = svg("rect", { x: left - 3, y: top - 3, width: right - left + 6, height: bottom - top + 6 });
    const drawn = { lines: () => this.drawLines(), areas: () => this.drawAreas(), scatter: () => this.drawDots() }[this.spec.kind]();
    return svg(
      "g",
      {},
      svg("clipPath", { id: clip }, rect),
      svg("g", { "clip-path": `url(#${clip})` }, ...this.marks.map((mark) => this.drawMark(mark)), ...drawn),
      ...this.markNames(),
    );
  }

  drawMark(mark) {
    const at = this.y(mark.y);
    return svg("line", { class: `mark ${mark.label} run-${mark.run % NUM_COLOURS}`, x1: this.box.left, x2: this.box.right, y1: at, y2: at });
  }

  // Names of marks that would overlap stand in one place.
  markNames() {
    const places = [];
    for (const mark of this.marks) {
      const at = this.y(mark.y) - 4;
      const near = places.find((place) => Math.abs(place.at - at) < 13);
      if (near) near.names.add(mark.label);
      else places.push({ at, names: new Set([mark.label]) });
    }
    return places.map(({ at, names }) =>
      svg("text", { class: "mark-name", x: this.box.right, y: Math.max(at, this.box.top + 8), "text-anchor": "end" }, [...names].join(", ")),
    );
  }

  drawLines() {
    const faint = this.lines.filter((series) => series.raw).map((series) => this.path({ ...series, y: series.raw }, "faint"));
    const bars = this.lines.filter((series) => series.low).map((series) => this.bars(series));
    const strong = this.lines.map((series) => this.path(series, "line"));
    const dots = this.lines.filter((series) => series.dots).map((series) => this.dots(series, "dots big"));
    return [...faint, ...bars, ...strong, ...dots];
  }

  path(series, kind) {
    const points = series.x.map((x, i) => `${this.x(x).toFixed(1)} ${this.y(series.y[i]).toFixed(1)}`);
    const dash = series.dash || (series.tone === null && series.run >= NUM_COLOURS ? 3 : 0);
    return svg("path", { class: `${kind} ${colour(series)} dash-${dash}`, d: `M${points.join("L")}` });
  }

  bars(series) {
    const parts = series.x.map((x, i) => {
      const [at, low, high] = [this.x(x), this.y(series.low[i]), this.y(series.high[i])].map((v) => v.toFixed(1));
      return `M${at} ${low}V${high}`;
    });
    return svg("path", { class: `bars ${colour(series)}`, d: parts.join("") });
  }

  // Lines of no length with round ends: one element for thousands of dots.
  dots(series, kind) {
    const [bottom, top] = this.yDomain;
    const parts = series.x.map((x, i) => `M${this.x(x).toFixed(1)} ${this.y(clamp(series.y[i], bottom, top)).toFixed(1)}h0`);
    return svg("path", { class: `${kind} ${colour(series)}`, d: parts.join("") });
  }

  drawDots() {
    const many = this.lines.reduce((sum, series) => sum + series.x.length, 0) > 400;
    return this.lines.map((series) => this.dots(series, many ? "dots" : "dots big"));
  }

  // Positive shares upwards from zero, negative ones downwards, each on top of the one before.
  drawAreas() {
    const above = [];
    const below = [];
    return this.lines.map((series) => {
      const [upper, lower] = [[], []];
      series.x.forEach((x, i) => {
        const stack = series.y[i] >= 0 ? above : below;
        const from = stack[i] || 0;
        stack[i] = from + series.y[i];
        upper.push(`${this.x(x).toFixed(1)} ${this.y(stack[i]).toFixed(1)}`);
        lower.push(`${this.x(x).toFixed(1)} ${this.y(from).toFixed(1)}`);
      });
      return svg("path", { class: `area ${colour(series)}`, d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` });
    });
  }

  // -- the legend

  list() {
    const several = this.spec.series.length > 1 || DATA.runs.length > 1;
    const entries = several ? this.shown.map((series) => html("li", {}, sample(series, this.spec.kind), series.name)) : [];
    this.legend.replaceChildren(...entries);
    this.legend.hidden = !entries.length;
  }
}

// One y axis for several charts; the few points beyond it are drawn at its edge.
function sharedExtent(scale) {
  const values = DATA.charts.filter((spec) => spec.scale === scale).flatMap((spec) => spec.series.flatMap((one) => one.y.map(Math.abs)));
  const size = quantile(values, EDGE);
  return [-size, size];
}

function padded([low, high]) {
  return low < high ? [low, high] : [low - 1, high + 1];
}

function sample(series, kind) {
  if (kind !== "lines") return html("span", { class: `swatch ${colour(series)}` });
  const dash = series.dash || (series.run >= NUM_COLOURS && series.tone === null ? 3 : 0);
  return svg("svg", { class: "sample", width: 22, height: 10, "aria-hidden": "true" }, svg("path", { class: `line ${colour(series)} dash-${dash}`, d: "M1 5H21" }));
}
