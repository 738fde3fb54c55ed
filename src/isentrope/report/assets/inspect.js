"use strict";
// Reading a chart: pointer and keys move a cursor, a drag zooms all charts over steps, numbers open as a table.

const MAX_TABLE_ROWS = 200;

function inspect(chart) {
  const { stage } = chart;
  let from = null;
  stage.addEventListener("pointermove", (event) => {
    const at = inside(chart, event);
    if (from !== null) selectSpan(chart, from, at.x);
    else point(chart, at);
  });
  stage.addEventListener("pointerleave", () => {
    if (from === null) clear(chart);
  });
  stage.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || !chart.drag) return;
    from = inside(chart, event).x;
    stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const to = inside(chart, event).x;
    const span = [from, to].sort((a, b) => a - b).map((pixel) => chart.x.back(clamp(pixel, chart.box.left, chart.box.right)));
    const isDrag = Math.abs(to - from) > 8;
    from = null;
    if (isDrag) zoom(span);
  });
  stage.addEventListener("pointercancel", () => {
    from = null;
    clear(chart);
  });
  stage.addEventListener("dblclick", () => zoom(null));
  stage.addEventListener("keydown", (event) => key(chart, event));
  stage.addEventListener("blur", () => clear(chart));
}

function inside(chart, event) {
  const frame = chart.canvas.getBoundingClientRect();
  return { x: event.clientX - frame.left, y: event.clientY - frame.top };
}

function zoom(span) {
  const least = 1;
  chosen.zoom = span && span[1] - span[0] >= least ? span : null;
  changed();
}

function clear(chart) {
  chart.overlay.replaceChildren();
  hideTip();
}

function selectSpan(chart, a, b) {
  const { left, right, top, bottom } = chart.box;
  const [low, high] = [a, b].sort((x, y) => x - y).map((x) => clamp(x, left, right));
  chart.overlay.replaceChildren(svg("rect", { class: "brush", x: low, width: high - low, y: top, height: bottom - top }));
  hideTip();
}

// -- the cursor

function point(chart, at, spoken = false) {
  if (!chart.lines.length) return;
  if (chart.spec.kind === "scatter") pointDot(chart, at, spoken);
  else pointStep(chart, at.x, spoken);
}

// All x that a cursor can stand at.
function stops(chart) {
  const [from, to] = chart.xDomain;
  const found = new Set(chart.lines.flatMap((series) => series.x));
  return [...found].filter((x) => x >= from && x <= to).sort((a, b) => a - b);
}

function pointStep(chart, pixel, spoken) {
  const places = stops(chart);
  if (!places.length) return;
  chart.cursor = nearest(places, chart.x.back(pixel));
  const x = places[chart.cursor];
  const found = chart.lines.map((series) => ({ series, i: nearest(series.x, x) }));
  const { top, bottom } = chart.box;
  const guide = svg("line", { class: "guide", x1: chart.x(x), x2: chart.x(x), y1: top, y2: bottom });
  const dots = chart.spec.kind === "areas" ? [] : found.map(({ series, i }) =>
    svg("circle", { class: `spot ${colour(series)}`, r: 4, cx: chart.x(series.x[i]), cy: chart.y(series.y[i]) }),
  );
  chart.overlay.replaceChildren(guide, ...dots);
  const lines = found.map(({ series, i }) => ({ text: series.name, value: said(chart, series, i), mark: colour(series) }));
  const name = chart.spec.overSteps ? "step" : chart.spec.x.label.split(",")[0];
  show(chart, `${name} ${format(x, 6)}`, lines, { x: chart.x(x), y: (top + bottom) / 2 }, spoken);
}

function said(chart, series, i) {
  const value = onAxis(chart.spec.y, series.y[i]);
  if (series.low) return `${value} (${onAxis(chart.spec.y, series.low[i])} to ${onAxis(chart.spec.y, series.high[i])})`;
  return series.raw ? `${value} (at the step ${onAxis(chart.spec.y, series.raw[i])})` : value;
}

function pointDot(chart, at, spoken) {
  const [low, high] = chart.yDomain;
  let best = null;
  chart.lines.forEach((series) =>
    series.x.forEach((x, i) => {
      const distance = (chart.x(x) - at.x) ** 2 + (chart.y(clamp(series.y[i], low, high)) - at.y) ** 2;
      if (best === null || distance < best.distance) best = { series, i, distance };
    }),
  );
  showDot(chart, best.series, best.i, spoken);
}

function showDot(chart, series, i, spoken) {
  const [low, high] = chart.yDomain;
  const [x, y] = [chart.x(series.x[i]), chart.y(clamp(series.y[i], low, high))];
  chart.overlay.replaceChildren(svg("circle", { class: `spot ${colour(series)}`, r: 5, cx: x, cy: y }));
  const lines = [
    { text: chart.spec.x.label, value: onAxis(chart.spec.x, series.x[i]) },
    { text: chart.spec.y.label, value: onAxis(chart.spec.y, series.y[i]) },
  ];
  show(chart, series.name, lines, { x, y }, spoken);
}

function show(chart, title, lines, at, spoken) {
  const near = () => {
    const frame = chart.canvas.getBoundingClientRect();
    const [x, y] = [frame.left + at.x, frame.top + at.y];
    return { left: x, right: x, top: y, bottom: y };
  };
  showTip(title, lines, near, spoken);
}

// -- keys

function key(chart, event) {
  const far = event.shiftKey ? 10 : 1;
  const moves = { ArrowLeft: -far, ArrowRight: far, Home: -Infinity, End: Infinity };
  if (event.key in moves) step(chart, moves[event.key]);
  else if (event.key === "Escape") [clear(chart), zoom(null)];
  else if ((event.key === "+" || event.key === "-") && chart.drag) zoomAround(chart, event.key === "+" ? 0.5 : 2);
  else return;
  event.preventDefault();
}

function step(chart, by) {
  if (!chart.lines.length) return;
  if (chart.spec.kind === "scatter") {
    const all = chart.lines.flatMap((series) => series.x.map((x, i) => ({ series, i, x }))).sort((a, b) => a.x - b.x);
    chart.cursor = clamp((chart.cursor ?? -1) + by, 0, all.length - 1);
    showDot(chart, all[chart.cursor].series, all[chart.cursor].i, true);
    return;
  }
  const places = stops(chart);
  const next = clamp((chart.cursor ?? (by > 0 ? -1 : places.length)) + by, 0, places.length - 1);
  pointStep(chart, chart.x(places[next]), true);
}

function zoomAround(chart, factor) {
  const [low, high] = chart.xDomain;
  const places = stops(chart);
  const centre = places[clamp(chart.cursor ?? places.length >> 1, 0, places.length - 1)] ?? (low + high) / 2;
  const [first, last] = padded(ALL_STEPS);
  const span = [centre - (centre - low) * factor, centre + (high - centre) * factor].map((x) => clamp(x, first, last));
  zoom(span[0] <= first && span[1] >= last ? null : span);
}

// -- below the chart: its numbers, and its picture

function foot(chart) {
  const space = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Numbers of ${chart.spec.title}` });
  const details = html("details", { class: "data" }, html("summary", {}, "Numbers"), space);
  details.addEventListener("toggle", () => {
    if (details.open) space.replaceChildren(numbers(chart));
  });
  return html("div", { class: "foot" }, details, button("Save SVG", () => save(chart), { class: "plain" }));
}

function numbers(chart) {
  if (chart.spec.kind === "scatter") return dotTable(chart);
  const places = stops(chart);
  const stride = Math.max(1, Math.ceil(places.length / MAX_TABLE_ROWS));
  const kept = places.filter((_, i) => i % stride === 0);
  const head = html("tr", {}, ...[chart.spec.x.label, ...chart.lines.map((series) => series.name)].map((text) => html("th", { scope: "col" }, text)));
  const maps = chart.lines.map((series) => new Map(series.x.map((x, i) => [x, series.y[i]])));
  const rows = kept.map((x) =>
    html("tr", {}, html("th", { scope: "row" }, format(x, 6)), ...maps.map((values) => html("td", {}, onAxis(chart.spec.y, values.get(x) ?? null)))),
  );
  return html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows));
}

function dotTable(chart) {
  const names = ["", chart.spec.x.label, chart.spec.y.label];
  const all = chart.lines.flatMap((series) => series.x.map((x, i) => [series.name, onAxis(chart.spec.x, x), onAxis(chart.spec.y, series.y[i])]));
  const stride = Math.max(1, Math.ceil(all.length / MAX_TABLE_ROWS));
  const rows = all.filter((_, i) => i % stride === 0).map((cells) => html("tr", {}, ...cells.map((text) => html("td", {}, text))));
  return html("table", {}, html("thead", {}, html("tr", {}, ...names.map((text) => html("th", { scope: "col" }, text)))), html("tbody", {}, ...rows));
}

const KEPT_STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-opacity", "opacity", "font-family", "font-size"];

// The picture with its styles written out, since the file will not have the page's.
function save(chart) {
  const copy = chart.canvas.cloneNode(true);
  const originals = chart.canvas.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((node, i) => {
    const style = getComputedStyle(originals[i]);
    for (const name of KEPT_STYLES) node.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", SVG);
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" }));
  html("a", { href: url, download: `${chart.spec.id}.svg` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
