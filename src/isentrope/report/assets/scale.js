"use strict";
// From numbers to pixels: domains, ticks, smoothing.

function extent(values, start = [Infinity, -Infinity]) {
  let [low, high] = start;
  for (const x of values) {
    if (x < low) low = x;
    if (x > high) high = x;
  }
  return [low, high];
}

// A little air around the data, fixed ends where the axis has them, never empty.
function domain(axis, found) {
  let [low, high] = found[0] <= found[1] ? found : [0, 1];
  const air = 0.06 * (high - low);
  low = axis.low !== null && low >= axis.low ? axis.low : low - air;
  high = axis.high !== null && high <= axis.high ? axis.high : high + air;
  if (low === high) {
    const half = Math.abs(low) * 0.1 || (axis.share ? 0.005 : 0.5);
    if (axis.low === low) high = low + 2 * half;
    else [low, high] = [low - half, high + half];
  }
  return [low, high];
}

function ticks([low, high], count) {
  const raw = (high - low) / Math.max(1, count);
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = base * [1, 2, 2.5, 5, 10].find((m) => m * base >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) {
    found.push(Math.abs(k * step) < step * 1e-9 ? 0 : Number((k * step).toPrecision(12)));
  }
  return found;
}

function powers([low, high]) {
  const found = [];
  for (let x = 2 ** Math.ceil(Math.log2(low) - 1e-9); x <= high * 1.0001; x *= 2) found.push(x);
  return found;
}

function linear([from, to], [a, b]) {
  const slope = (b - a) / (to - from || 1);
  const scale = (x) => a + (x - from) * slope;
  scale.back = (pixel) => from + (pixel - a) / slope;
  return scale;
}

function logarithmic([from, to], range) {
  const inner = linear([Math.log2(from), Math.log2(to)], range);
  const scale = (x) => inner(Math.log2(x));
  scale.back = (pixel) => 2 ** inner.back(pixel);
  return scale;
}

// Centred moving mean over `width` points, shorter at the ends.
function smoothed(values, width) {
  const half = Math.floor(width / 2);
  const sums = [0];
  for (const x of values) sums.push(sums[sums.length - 1] + x);
  return values.map((_, i) => {
    const reach = Math.min(half, i, values.length - 1 - i);
    return (sums[i + reach + 1] - sums[i - reach]) / (2 * reach + 1);
  });
}

function quantile(values, q) {
  const sorted = Float64Array.from(values).sort();
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] : 0;
}
