// What the tests ask of a page, as functions.

// Charts as they stand on the page, next to what they should draw.
function probeCharts() {
  return DATA.charts.map((chart) => {
    const figure = document.getElementById(chart.id);
    const drawn = [...figure.querySelectorAll(".stage .line, .stage .area, .stage .dots")];
    return {
      id: chart.id,
      kind: chart.kind,
      series: chart.series.length,
      lengths: drawn.map((path) => path.getAttribute("d").length),
      ticks: figure.querySelectorAll(".tick").length,
      names: [...figure.querySelectorAll(".name")].map((node) => node.textContent),
    };
  });
}

function probeDoubleIds() {
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  return ids.filter((id, i) => ids.indexOf(id) !== i);
}

// Attributes and texts that hold a number gone wrong.
function probeBroken() {
  const wrong = /NaN|undefined|Infinity/;
  const attributes = [...document.querySelectorAll("svg *")].flatMap((node) => [...node.attributes].map((a) => a.value));
  return [document.body.innerText, ...attributes].filter((text) => wrong.test(text)).map((text) => text.slice(0, 200));
}

// Elements that reach beyond the window, other than inside what scrolls by itself.
function probeWide(width) {
  const nodes = [...document.querySelectorAll("figure, section > *, #reader > *, header *, .bar *")];
  const wide = nodes.filter((node) => node.offsetWidth && node.getBoundingClientRect().right > width + 1);
  return wide.filter((node) => !node.closest(".scroll, .chips, .contents")).map((node) => node.outerHTML.slice(0, 99));
}

function probeLuminance(colour) {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255);
  const [r, g, b] = parts.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// The first opaque background behind an element.
function probeBehind(node) {
  for (let at = node; at; at = at.parentElement) {
    const found = getComputedStyle(at).backgroundColor;
    if (found.startsWith("rgb(")) return found;
  }
  return "white";
}

// The lowest contrast between a text and what is behind it, and that text.
function probeContrast() {
  const found = [];
  for (const node of document.querySelectorAll("h1, h2, h3, h4, p, th, td, li, summary, label, button, .tick, .name, .tag")) {
    const drawn = node instanceof SVGElement;
    if ((!drawn && !node.offsetParent) || node.closest("#tip, [aria-pressed=false]") || !node.textContent.trim()) continue;
    const style = getComputedStyle(node);
    const [high, low] = [probeLuminance(drawn ? style.fill : style.color), probeLuminance(probeBehind(node))].sort((a, b) => b - a);
    found.push([(high + 0.05) / (low + 0.05), node.textContent.slice(0, 40)]);
  }
  return found.sort((a, b) => a[0] - b[0])[0];
}

function probeUnreachable() {
  const nodes = [...document.querySelectorAll("button, select, input, a, summary, .stage")];
  return nodes.filter((node) => node.tabIndex < 0).map((node) => node.outerHTML.slice(0, 99));
}

function probeChoose(box, index) {
  box.selectedIndex = index;
  box.dispatchEvent(new Event("change"));
}

// Puts markup and a request into the page, as if an escape had been forgotten.
function probeInject() {
  document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.hacked = 1"><iframe src="https://example.org"></iframe>');
  fetch("https://example.org/").then(
    () => (window.hacked = 2),
    () => 0,
  );
  return 1;
}
