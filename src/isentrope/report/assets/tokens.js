"use strict";
// The token view: a completion whose tokens are coloured by a number; pointer and focus show all numbers of a token.

const SATURATED = 0.98; // share of a step's tokens whose colour still tells them apart
const STRONGEST = 62; // percent of the colour in a token's background, so that the text stays readable

const MODES = {
  entropy: { name: "Entropy", unit: "nats", value: (t) => t.entropy, signed: false },
  weight: { name: "Weight", unit: "dJ/dlogp", value: (t) => t.weight, signed: true },
  ratio: { name: "Ratio", unit: "log of current over old probability", value: (t) => t.logRatio, signed: true },
  surprisal: { name: "Surprisal", unit: "nats, \u2212log probability", value: (t) => (t.logp === null ? null : -t.logp), signed: false },
  advantage: { name: "Advantage", unit: "after shaping", value: (t) => t.advantage, signed: true },
};

function column(item, name, i) {
  const found = item[name];
  if (found === undefined) return null;
  return Array.isArray(found) ? found[i] : found;
}

// All numbers of token i of a completion; null is unknown.
function tokenOf(item, i) {
  const get = (name) => column(item, name, i);
  const [logp, old, sampled] = [get("logp"), get("old_logp"), get("rollout_logp")];
  return {
    i,
    id: item.ids[i],
    outside: item.outsideSet.has(i),
    logp,
    entropy: get("entropy"),
    advantage: get("advantage"),
    weight: get("weight"),
    logRatio: logp === null || old === null ? null : logp - old,
    gap: old === null || sampled === null ? null : old - sampled,
  };
}

class Reader {
  constructor(root) {
    this.root = root;
    this.mode = "entropy";
    this.build();
    this.chooseRun(0);
  }

  build() {
    this.runBox = select("Run", DATA.tokens.map((view) => DATA.runs[view.run]), (i) => this.chooseRun(i));
    this.stepBox = select("Step", [], (i) => this.chooseStep(i));
    this.itemBox = select("Completion", [], (i) => this.chooseItem(i));
    this.runBox.hidden = DATA.tokens.length < 2;
    const back = button("\u2190", () => this.move(-1), { "aria-label": "Previous completion" });
    const on = button("\u2192", () => this.move(1), { "aria-label": "Next completion" });
    this.modes = html("fieldset", { class: "modes" }, html("legend", {}, "Colour by"), ...Object.keys(MODES).map((mode) => this.modeButton(mode)));
    this.key = html("div", { class: "key" });
    this.about = html("p", { class: "about-row" });
    this.text = html("div", { class: "text", role: "group", "aria-label": "Tokens of the completion. Arrow keys move between tokens." });
    this.note = html("p", { class: "notes" });
    this.along = html("div", { class: "plot" });
    this.root.replaceChildren(
      html("h3", {}, "Token by token"),
      html("div", { class: "controls" }, this.runBox, this.stepBox, html("div", { class: "pager" }, this.itemBox, back, on)),
      this.modes,
      this.key,
      this.about,
      this.text,
      this.note,
      this.along,
    );
    this.listen();
  }

  modeButton(mode) {
    const input = html("input", { type: "radio", name: "mode", value: mode, id: `mode-${mode}`, checked: mode === this.mode ? "" : null });
    input.addEventListener("change", () => {
      this.mode = mode;
      this.paint();
    });
    return html("label", { for: `mode-${mode}` }, input, html("span", {}, MODES[mode].name));
  }

  listen() {
    const tokenUnder = (event) => event.target.closest(".token");
    this.text.addEventListener("pointerover", (event) => tokenUnder(event) && this.read(tokenUnder(event), false));
    this.text.addEventListener("pointerleave", hideTip);
    this.text.addEventListener("focusin", (event) => tokenUnder(event) && this.focus(tokenUnder(event)));
    this.text.addEventListener("focusout", hideTip);
    this.text.addEventListener("click", (event) => tokenUnder(event)?.focus());
    this.text.addEventListener("keydown", (event) => this.key_(event));
  }

  // -- what is chosen

  chooseRun(index) {
    this.view = DATA.tokens[index];
    setOptions(this.stepBox, this.view.steps.map(({ step }) => `${step}`));
    this.note.textContent = this.view.note;
    this.chooseStep(this.view.steps.length - 1);
  }

  chooseStep(index) {
    this.stepBox.querySelector("select").selectedIndex = index;
    this.step = this.view.steps[index];
    for (const item of this.step.items) item.outsideSet ??= new Set(item.outside);
    setOptions(this.itemBox, this.step.items.map(title));
    this.limits = {};
    this.chooseItem(0);
  }

  chooseItem(index) {
    this.index = index;
    this.itemBox.querySelector("select").selectedIndex = index;
    this.item = this.step.items[index];
    this.tokens = this.item ? this.item.ids.map((_, i) => tokenOf(this.item, i)) : [];
    this.text.replaceChildren(...this.tokens.map((token) => this.span(token)));
    this.spans = [...this.text.querySelectorAll(".token")];
    if (this.spans.length) this.spans[0].tabIndex = 0;
    this.paint();
  }

  move(by) {
    this.chooseItem(clamp(this.index + by, 0, this.step.items.length - 1));
  }

  // -- what is shown

  span(token) {
    const piece = visible(this.view.pieces[this.item.text[token.i]]);
    const shown = piece === "" ? "\u25cc" : piece.replace(/\n/g, "\u23ce\n").replace(/\t/g, "\u21e5\t");
    const made = html("span", { class: token.outside ? "token outside" : "token", tabindex: "-1", role: "img" }, shown);
    made.dataset.i = token.i;
    made.setAttribute("aria-label", `token ${token.i + 1}: ${piece || "part of a character"}`);
    return made;
  }

  paint() {
    const mode = MODES[this.mode];
    const limit = this.limit();
    this.spans.forEach((span, i) => {
      const value = mode.value(this.tokens[i]);
      const share = limit && value !== null ? clamp(value / limit, -1, 1) : 0;
      const hue = !mode.signed ? "--seq" : share < 0 ? "--neg" : "--pos";
      span.style.backgroundColor = share === 0 ? "" : `color-mix(in srgb, var(${hue}) ${(STRONGEST * Math.abs(share)).toFixed(1)}%, transparent)`;
    });
    this.about.textContent = this.describe();
    this.drawKey(mode, limit);
    this.drawAlong(mode);
  }

  // The size at which colours saturate, the same for all completions of the step.
  limit() {
    if (!(this.mode in this.limits)) {
      const { value } = MODES[this.mode];
      const sizes = this.step.items.flatMap((item) => item.ids.map((_, i) => value(tokenOf(item, i))));
      const known = sizes.filter((x) => x !== null).map(Math.abs);
      this.limits[this.mode] = quantile(known, SATURATED) || Math.max(0, ...known);
    }
    return this.limits[this.mode];
  }

  describe() {
    if (!this.item) return "This step has no completion.";
    const { items, of } = this.step;
    const cut = this.item.cut ? ` Its last ${this.item.cut} tokens are left out.` : "";
    const known = this.tokens.map((t) => t.entropy).filter((x) => x !== null);
    const mean = known.length ? `, mean entropy ${format(known.reduce((a, b) => a + b, 0) / known.length, 3)} nats` : "";
    return `${this.tokens.length} tokens${mean}. ${items.length} of the ${of} completions of step ${this.step.step} are in this page.${cut}`;
  }

  drawKey(mode, limit) {
    if (!limit) {
      const why = this.mode === "ratio" && this.tokens.some((t) => t.logRatio !== null) ? "every ratio is 1: no update came between rollout and this step" : "not in the dump, or 0 everywhere";
      this.key.replaceChildren(html("span", {}, `${mode.name}: ${why}`));
      return;
    }
    const bar = html("span", { class: mode.signed ? "ramp signed" : "ramp", "aria-hidden": "true" });
    const ends = mode.signed ? [`\u2264 ${format(-limit, 3)}`, `\u2265 ${format(limit, 3)}`] : ["0", `\u2265 ${format(limit, 3)}`];
    this.key.replaceChildren(html("span", {}, ends[0]), bar, html("span", {}, ends[1]), html("span", { class: "unit" }, mode.unit));
  }

  drawAlong(mode) {
    const known = this.tokens.filter((t) => mode.value(t) !== null);
    this.along.hidden = known.length < 2;
    if (this.along.hidden) return;
    const axis = { share: false, log: false, low: null, high: null };
    const series = { name: mode.name, run: this.view.run, tone: null, x: known.map((t) => t.i + 1), y: known.map((t) => mode.value(t)) };
    const y = { ...axis, label: `${mode.name.toLowerCase()}, ${mode.unit}`, low: mode.signed ? null : 0 };
    const spec = { id: "along", kind: "lines", title: `${mode.name} along the completion`, x: { ...axis, label: "token", low: 1 }, y, overSteps: false, series: [series], marks: [], flat: true };
    this.chart = new Chart(this.along, spec, spec.title);
  }

  // -- reading a token

  read(span, spoken) {
    const token = this.tokens[Number(span.dataset.i)];
    const piece = this.view.pieces[this.item.text[token.i]];
    const lines = [
      ["position", `${token.i + 1}`],
      ["token id", `${token.id}`],
      ["probability", token.logp === null ? null : format(Math.exp(token.logp))],
      ["log-probability, nats", maybe(token.logp)],
      ["entropy, nats", maybe(token.entropy)],
      ["ratio to the old policy", token.logRatio === null ? null : format(Math.exp(clamp(token.logRatio, -20, 20)))],
      ["trainer over sampler", token.gap === null ? null : format(Math.exp(clamp(token.gap, -20, 20)))],
      ["advantage", maybe(token.advantage)],
      ["weight dJ/dlogp", maybe(token.weight)],
    ].filter(([, value]) => value !== null).map(([text, value]) => ({ text, value }));
    if (token.outside) lines.push({ text: "not written by the policy", value: "no part in the loss" });
    showTip(JSON.stringify(visible(piece)), lines, () => span.getClientRects()[0] || span.getBoundingClientRect(), spoken);
  }

  focus(span) {
    for (const other of this.spans) other.tabIndex = -1;
    span.tabIndex = 0;
    this.read(span, true);
  }

  key_(event) {
    const at = this.spans.indexOf(event.target);
    if (at < 0) return;
    const last = this.spans.length - 1;
    const goals = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last, ArrowDown: this.below(at, 1), ArrowUp: this.below(at, -1) };
    if (event.key === "Escape") return hideTip();
    if (!(event.key in goals)) return undefined;
    event.preventDefault();
    this.spans[clamp(goals[event.key], 0, last)].focus();
    return undefined;
  }

  // The token nearest in the next line of text, or in the one before.
  below(at, direction) {
    const here = this.spans[at].getBoundingClientRect();
    let line = null;
    let best = at;
    for (let i = at + direction; i >= 0 && i < this.spans.length; i += direction) {
      const there = this.spans[i].getBoundingClientRect();
      if ((there.top - here.top) * direction < here.height / 2) continue;
      line ??= there.top;
      if (Math.abs(there.top - line) > here.height / 2) break;
      if (best === at || Math.abs(there.left - here.left) < Math.abs(this.spans[best].getBoundingClientRect().left - here.left)) best = i;
    }
    return best;
  }
}

function maybe(x) {
  return x === null ? null : format(x);
}

function title(item) {
  const sign = column(item, "advantage", 0);
  const parts = [`${item.row}`, `prompt ${item.group}`];
  if (item.task) parts.push(visible(item.task));
  if (sign !== null) parts.push(`advantage ${sign > 0 ? "+" : ""}${format(sign, 3)}`);
  return [...parts, `${item.ids.length + item.cut} tokens`].join(" \u00b7 ");
}

function select(name, options, onChange) {
  const box = html("select");
  box.addEventListener("change", () => onChange(box.selectedIndex));
  const made = html("label", { class: "choice" }, html("span", {}, name), box);
  setOptions(made, options);
  return made;
}

function setOptions(label, options) {
  label.querySelector("select").replaceChildren(...options.map((text) => html("option", {}, text)));
}
