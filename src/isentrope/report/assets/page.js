"use strict";
// Brings the page to life: charts, token view, the bar on top, the table of contents.

const THEMES = ["auto", "light", "dark"];
const charts = [];
let reader = null;

function drawAll() {
  for (const chart of charts) chart.draw();
}

function start() {
  contents();
  for (const spec of DATA.charts) {
    const frame = document.querySelector(`[data-chart="${CSS.escape(spec.id)}"]`);
    charts.push(new Chart(frame, spec));
  }
  const root = document.getElementById("reader");
  if (root && DATA.tokens.length) reader = new Reader(root);
  watchers.push(drawAll, bar);
  chips();
  smoothing();
  theme();
  document.getElementById("reset").addEventListener("click", () => zoom(null));
  for (const show of document.querySelectorAll(".show")) {
    show.addEventListener("click", () => {
      zoom([Number(show.dataset.from), Number(show.dataset.to)]);
      document.getElementById("entropy").scrollIntoView();
    });
  }
  follow();
}

// Draw again when the width changes, once a frame.
function follow() {
  let width = document.documentElement.clientWidth;
  let waiting = false;
  new ResizeObserver(() => {
    if (waiting || width === document.documentElement.clientWidth) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      width = document.documentElement.clientWidth;
      drawAll();
      reader?.chart?.draw();
    });
  }).observe(document.documentElement);
}

function contents() {
  const list = document.querySelector(".contents ul");
  for (const section of document.querySelectorAll("main > section")) {
    list.append(html("li", {}, html("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
  }
}

function chips() {
  for (const chip of document.querySelectorAll(".chip")) {
    const run = Number(chip.dataset.run);
    chip.addEventListener("click", () => {
      if (!chosen.hidden.delete(run)) chosen.hidden.add(run);
      changed();
    });
  }
}

function bar() {
  for (const chip of document.querySelectorAll(".chip")) {
    chip.setAttribute("aria-pressed", String(!chosen.hidden.has(Number(chip.dataset.run))));
  }
  document.getElementById("reset").hidden = chosen.zoom === null;
}

function smoothing() {
  const slider = document.getElementById("smooth");
  const said = document.getElementById("smooth-value");
  slider.addEventListener("input", () => {
    chosen.smooth = Number(slider.value);
    said.textContent = chosen.smooth ? `${WINDOWS[chosen.smooth]} points` : "off";
    changed();
  });
}

function theme() {
  const toggle = document.getElementById("theme");
  const apply = (name) => {
    document.documentElement.dataset.theme = name;
    toggle.textContent = name[0].toUpperCase() + name.slice(1);
    toggle.setAttribute("aria-label", `Colours: ${name === "auto" ? "as the system" : name}`);
  };
  apply(remembered());
  toggle.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    apply(next);
    try {
      localStorage.setItem("isentrope-report-theme", next);
    } catch {
      // a browser that keeps nothing for files: the choice lasts as long as the page
    }
  });
}

function remembered() {
  try {
    const found = localStorage.getItem("isentrope-report-theme");
    return THEMES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}

start();
