"use strict";
// The page's data, what the reader has chosen, and small helpers. Texts reach the page as text nodes alone.

const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const NUM_COLOURS = 8;
const MINUS = "\u2212";

const chosen = { hidden: new Set(), zoom: null, smooth: 0 };
const watchers = [];

function changed() {
  for (const watch of watchers) watch();
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function button(label, onClick, attributes = {}) {
  const made = html("button", { type: "button", ...attributes }, label);
  made.addEventListener("click", onClick);
  return made;
}

function clamp(x, low, high) {
  return Math.min(high, Math.max(low, x));
}

// Four significant digits; powers of ten for the very small and the very large.
function format(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return "\u2013";
  const size = Math.abs(x);
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e6) ? power(x, digits) : String(Number(x.toPrecision(digits)));
  return text.replace("-", MINUS);
}

function power(x, digits) {
  const [mantissa, exponent] = x.toExponential(digits - 1).split("e");
  return `${Number(mantissa)}\u00d710${raised(Number(exponent))}`;
}

function raised(exponent) {
  const digits = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
  return (exponent < 0 ? "\u207b" : "") + [...String(Math.abs(exponent))].map((d) => digits[d]).join("");
}

function percent(x) {
  return `${format(100 * x, 3)}%`;
}

function onAxis(axis, x, digits) {
  return axis.share ? percent(x) : format(x, digits);
}

// Which of `sorted` is nearest to x.
function nearest(sorted, x) {
  let low = 0;
  let high = sorted.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > x) high = middle;
    else low = middle;
  }
  return Math.abs(sorted[low] - x) <= Math.abs(sorted[high] - x) ? low : high;
}

// Controls and marks of direction would disturb the text around them; they are shown by name or number.
function visible(piece) {
  return piece.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (c) =>
    c < " " ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : `[U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}]`,
  );
}

// -- the box of numbers beside pointer or focus

const tip = document.getElementById("tip");
const live = document.getElementById("live");

let anchor = null; // where the box belongs as long as the focus holds it there

// lines: [{ text, value, mark }]; mark is a class that colours a swatch. near(): the place in the window, as
// { left, right, top, bottom }. spoken: asked for by key, so it is said aloud and stays while the page scrolls.
function showTip(title, lines, near, spoken) {
  const rows = lines.map(({ text, value, mark }) =>
    html("tr", {}, html("th", { scope: "row" }, mark ? html("span", { class: `swatch ${mark}` }) : null, text), html("td", {}, value)),
  );
  tip.replaceChildren(html("p", {}, title), html("table", {}, html("tbody", {}, ...rows)));
  tip.hidden = false;
  place(near());
  anchor = spoken ? near : null;
  if (spoken) live.textContent = `${title}: ${lines.map(({ text, value }) => `${text} ${value}`).join(", ")}`;
}

function place(near) {
  const gap = 12;
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement;
  let left = near.right + gap;
  if (left + width > room.clientWidth - 4) left = near.left - gap - width;
  let top = near.bottom + gap;
  if (top + height > room.clientHeight - 4) top = near.top - gap - height;
  tip.style.left = `${clamp(left, 4, Math.max(4, room.clientWidth - width - 4))}px`;
  tip.style.top = `${clamp(top, 4, Math.max(4, room.clientHeight - height - 4))}px`;
}

function hideTip() {
  tip.hidden = true;
  anchor = null;
}

document.addEventListener("scroll", () => (anchor ? place(anchor()) : hideTip()), { passive: true, capture: true });
