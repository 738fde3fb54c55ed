"""Draws the pictures of docs/concepts: python docs/make_pictures.py

All but the diagram of a step are computed: exact softmax policies through `isentrope.theory`, and the weights that the
presets' own code gives to the tokens of a drawn batch. Writes docs/pictures/*.svg; the same bytes every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape

import torch
from torch import Tensor

from isentrope import presets, record, theory
from isentrope.diagnostics import QUADRANTS
from isentrope.objective import Objective
from isentrope.report.chart import Axis, Chart, Series
from isentrope.report.still import svg

PICTURES = Path(__file__).with_name("pictures")
HEAD = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'"
    " font-family='system-ui, sans-serif' font-size='12'>"
)
INK, PALE, LINE = "#111827", "#4b5563", "#9ca3af"  # on a white card, which reads on light and dark pages
CHANGE = Axis("entropy change, nats")

# -- why entropy falls ------------------------------------------------------------------------------

VOCABULARY = 16
STARTS = {"60% at the start": 0.6, "10%": 0.1, "1%": 0.01}
LEARNT = 0.98  # of the probability on the good answer
ETA = 0.5


def path(start: float) -> tuple[list[float], list[float]]:
    """Expected reward and entropy along exact policy-gradient steps; one of 16 answers is good, the others decay.

    >>> reward, entropy = path(0.6)
    >>> reward[0], entropy == sorted(entropy, reverse=True)
    (0.6, True)
    """
    others = torch.softmax(-0.6 * torch.arange(VOCABULARY - 1, dtype=torch.float64), -1)
    logits = torch.cat([torch.tensor([start], dtype=torch.float64), (1 - start) * others]).log()
    good = torch.zeros(VOCABULARY, dtype=torch.float64)
    good[0] = 1.0
    reward, entropy = [], []
    while not reward or reward[-1] < LEARNT:
        reward.append(round(float(logits.softmax(-1)[0]), 12))
        entropy.append(float(theory.entropy(logits)))
        logits = logits + theory.policy_gradient_step(logits, good, ETA)
    return reward, entropy


def why_it_falls() -> str:
    """Entropy against expected reward, from three beginnings."""
    series = [Series(name, *path(start), number) for number, (name, start) in enumerate(STARTS.items())]
    title = "Entropy while one good answer is learnt"
    chart = Chart(
        "why",
        title,
        "Exact steps.",
        Axis("entropy, nats", low=0.0),
        tuple(series),
        Axis("expected reward", low=0.0, high=1.0),
    )
    return svg(chart.thinned(80))


# -- quadrants --------------------------------------------------------------------------------------

SLOPE, SMALL = 0.5, 0.01


def quadrant_curves() -> str:
    """What one step on one sampled token does to the entropy of softmax(-a/2), over the token's probability."""
    logits = -SLOPE * torch.arange(VOCABULARY, dtype=torch.float64)
    p = logits.softmax(-1)
    series = []
    for number, (name, sign) in enumerate({"good completion, A = +1": 1.0, "bad completion, A = -1": -1.0}.items()):
        steps = [
            theory.one_sample_step(logits, torch.tensor(sign), torch.tensor(action), SMALL)
            for action in range(VOCABULARY)
        ]
        change = [float(theory.exact_change(logits, step)) for step in steps]
        series.append(Series(name, p.tolist(), change, number))
    title = f"Entropy change by a step of {SMALL:g} on one sampled token"
    return svg(Chart("quadrants", title, "Exact.", CHANGE, tuple(series), Axis("probability of the token")))


# -- where objectives act ---------------------------------------------------------------------------

PROMPTS, GROUP, TOKENS, MOVED = 64, 8, 24, 0.25  # MOVED: standard deviation of a token's log-ratio, nats
SHOWN: dict[str, tuple[str, Mapping[str, float]]] = {
    "grpo": ("grpo", {}),
    "dapo": ("dapo", {}),
    "adapo, bound at 1.0": ("adapo", {"surrogate.high.value": 1.0}),
    "gspo": ("gspo", {}),
    "cispo": ("cispo", {}),
    "gppo": ("gppo", {}),
    "ce_gppo": ("ce_gppo", {}),
    "repo_r, gain .05": ("repo_r", {"shaping.0.zeta.value": 0.05}),
    "repo_d, gain .05": ("repo_d", {"shaping.0.zeta.value": 0.05}),
    "psr": ("psr", {}),
    "nsr": ("nsr", {}),
    "w_reinforce": ("w_reinforce", {}),
    "clip_cov": ("clip_cov", {}),
    "high_entropy": ("high_entropy", {}),
}


def drawn_batch() -> dict[str, Tensor]:
    """A rollout batch of softmax policies of many entropies, sampled by the old policy; the current one has moved."""
    generator = torch.Generator().manual_seed(0)
    shape = (PROMPTS * GROUP, TOKENS, VOCABULARY)
    sharpness = torch.rand(shape[:2], generator=generator)[..., None] * 4
    old = torch.randn(shape, generator=generator) * sharpness
    now = old + MOVED * torch.randn(shape, generator=generator)
    token = torch.multinomial(old.softmax(-1).flatten(0, 1), 1, generator=generator).view(shape[:2])
    columns = {"old_logp": old, "logp": now}
    batch = {name: theory.log_probabilities(z).gather(-1, token[..., None])[..., 0] for name, z in columns.items()}
    return batch | {
        "old_entropy": theory.entropy(old),
        "entropy": theory.entropy(now),
        "reward": torch.randint(0, 2, shape[:1], generator=generator).float(),
        "group": torch.arange(PROMPTS).repeat_interleave(GROUP),
        "mask": torch.ones(shape[:2], dtype=torch.bool),
    }


def weights(objective: Objective, batch: Mapping[str, Tensor], state: Mapping[str, float]) -> Tensor:
    """dJ/dlogp [B,T] with the controllers at the given values."""
    prepared, held = objective.prepare(
        {name: column for name, column in batch.items() if name not in ("logp", "entropy")}, objective.init()
    )
    if not set(state) <= set(held):
        raise KeyError(f"no controller holds {sorted(set(state) - set(held))}; there are {sorted(held)}")
    now = objective.at(held | dict(state))
    rows = prepared | {"logp": batch["logp"], "entropy": batch["entropy"]}
    return now.weights(rows, now.count(prepared))


def quadrant_masks(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Which tokens are in which quadrant: the sign of the group's advantage, and of log p + H under the old policy."""
    reward = batch["reward"].view(PROMPTS, GROUP)
    good = (reward > reward.mean(1, keepdim=True)).flatten()[:, None].expand(-1, TOKENS)
    bad = (reward < reward.mean(1, keepdim=True)).flatten()[:, None].expand(-1, TOKENS)
    high = batch["old_logp"] + batch["old_entropy"] > 0
    return dict(zip(QUADRANTS, (good & high, good & ~high, bad & high, bad & ~high), strict=True))


def shares(objective: Objective, batch: Mapping[str, Tensor], state: Mapping[str, float]) -> dict[str, float]:
    """Share of the whole weight that a quadrant gets, over the share that plain policy gradient gives it."""
    found = weights(objective, batch, state).abs()
    plain = weights(presets.rloo, batch, {}).abs()
    return {
        name: float(found[inside].sum() / found.sum() / (plain[inside].sum() / plain.sum()))
        for name, inside in quadrant_masks(batch).items()
    }


CELL, ROW, LABEL, TOP = 118, 26, 176, 66


def quadrant_weights() -> str:
    """A table in colours: objectives by quadrants."""
    batch = drawn_batch()
    rows = {label: shares(getattr(presets, name), batch, state) for label, (name, state) in SHOWN.items()}
    width, height = LABEL + CELL * len(QUADRANTS) + 16, TOP + ROW * len(rows) + 34
    title = "Share of an objective's weight by quadrant, over plain policy gradient's"
    spoken = "; ".join(f"{label}: " + ", ".join(f"{q} {x:.2f}" for q, x in row.items()) for label, row in rows.items())
    parts = [
        HEAD.format(width=width, height=height),
        f"<title>{title}</title><desc>{escape(spoken)}</desc>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        _text(16, 24, title, weight=600),
    ]
    for column, quadrant in enumerate(QUADRANTS):
        parts.append(_text(LABEL + CELL * (column + 0.5), TOP - 12, escape(quadrant), anchor="middle", weight=600))
    for number, (label, row) in enumerate(rows.items()):
        y = TOP + ROW * number
        parts.append(_text(LABEL - 12, y + 17, label, anchor="end"))
        parts += [_cell(LABEL + CELL * column, y, value) for column, value in enumerate(row.values())]
    parts.append(_text(LABEL, height - 12, "orange: more than its part; blue: less; 1 untouched", fill=PALE))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(x: float, y: float, value: float) -> str:
    """Orange above 1, blue below, white at 1."""
    strength = min(1.0, abs(value - 1))
    red, green, blue = (234, 88, 12) if value > 1 else (29, 78, 216)
    fill = "#" + "".join(f"{round(255 - (255 - c) * 0.75 * strength):02x}" for c in (red, green, blue))
    ink = "#ffffff" if strength > 0.7 else INK
    box = f"<rect x='{x}' y='{y}' width='{CELL - 2}' height='{ROW - 2}' rx='3' fill='{fill}'/>"
    return box + _text(x + CELL / 2, y + 17, f"{value:.2f}", anchor="middle", fill=ink)


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: int = 400, fill: str = INK) -> str:
    return f"<text x='{x:g}' y='{y:g}' text-anchor='{anchor}' font-weight='{weight}' fill='{fill}'>{text}</text>"


# -- a step -----------------------------------------------------------------------------------------

# place: (title, when, slots that act there, columns that are added there, who does it in TRL, in verl)
PLACES = (
    (
        "prompts",
        "",
        "",
        "task",
        "train_dataset, order",
        "data.train_files",
    ),
    (
        "rollout",
        "once a rollout batch",
        "rollout",
        "tokens, mask, rollout_logp, tempered",
        "generate, vLLM, rollout_func",
        "agent loops on vLLM, SGLang",
    ),
    (
        "rewards",
        "once a rollout batch",
        "",
        "reward, group",
        "reward_funcs, order of prompts",
        "reward loop; uid",
    ),
    (
        "old policy",
        "a pass without gradient",
        "",
        "old_logp, old_entropy, ref_logp, value",
        "head of the trainer",
        "old_log_probs, ref, critic",
    ),
    (
        "prepare",
        "once, all rows, all ranks",
        "controllers, advantage, select, shaping",
        "advantage, selected, a rule's own",
        "gathered batch, before the shuffle",
        "driver",
    ),
    (
        "loss",
        "each update, any slice",
        "shaping by logp, ratio, surrogate, penalties, correction, aggregate",
        "logp, entropy (with gradient)",
        "_compute_loss",
        "actor workers",
    ),
    (
        "update",
        "each update",
        "",
        "a weight for each token, on grad log π",
        "Trainer, accelerate",
        "FSDP, Megatron",
    ),
)
BOX_X, BOX_WIDTH, BOX_HEIGHT, GAP, FIRST = 192, 350, 66, 18, 62
COLUMNS_X, TRL_X, VERL_X = 566, 756, 936
STEP_WIDTH = 1110
HELD = ("controllers' state:", "logged, and kept", "in checkpoints")
GROUPS = {"prepare": "#ffedd5", "loss": "#dbeafe"}


def step() -> str:
    """The way of the data from prompt to update: where slots act, which columns come in, who does it."""
    height = FIRST + len(PLACES) * (BOX_HEIGHT + GAP) + 34
    spoken = "; ".join(f"{t}: slots {s or 'none'}; columns {c}; TRL {a}; verl {v}" for t, _, s, c, a, v in PLACES)
    parts = [
        HEAD.format(width=STEP_WIDTH, height=height),
        f"<title>From prompt to update</title><desc>{escape(spoken)}</desc>",
        f"<rect width='{STEP_WIDTH}' height='{height}' fill='#ffffff'/>",
        _text(BOX_X, 32, "where, and the slots that act there", weight=600),
        _text(COLUMNS_X, 32, "columns that come in", weight=600),
        _text(TRL_X, 32, "in TRL", weight=600),
        _text(VERL_X, 32, "in verl", weight=600),
    ]
    for number, place in enumerate(PLACES):
        parts += _place(FIRST + number * (BOX_HEIGHT + GAP), number, *place)
    parts += _loops(height)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _place(y: int, number: int, title: str, when: str, slots: str, columns: str, trl: str, verl: str) -> list[str]:
    fill = GROUPS.get(title, "#f3f4f6")
    parts = [
        f"<rect x='{BOX_X}' y='{y}' width='{BOX_WIDTH}' height='{BOX_HEIGHT}' rx='6' fill='{fill}' stroke='{LINE}'/>",
        _text(BOX_X + 14, y + 22, title, weight=600),
        *([_text(BOX_X + BOX_WIDTH - 14, y + 22, when, anchor="end", fill=PALE)] if when else []),
        *_lines(BOX_X + 14, y + 41, slots, 50, "#9a3412" if title == "prepare" else "#1e40af"),
        *_lines(COLUMNS_X, y + 30, columns, 26, INK),
        *_lines(TRL_X, y + 30, trl, 26, PALE),
        *_lines(VERL_X, y + 30, verl, 26, PALE),
    ]
    if number:
        x, top = BOX_X + BOX_WIDTH / 2, y - GAP
        parts.append(f"<path d='M{x:g} {top}V{y - 3}m-4 -5l4 5l4 -5' fill='none' stroke='{PALE}'/>")
    return parts


def _lines(x: float, y: float, text: str, width: int, fill: str) -> list[str]:
    """The text, broken at ", " where it is longer than `width` characters."""
    lines: list[str] = []
    for part in text.split(", "):
        if lines and len(lines[-1]) + len(part) + 2 <= width:
            lines[-1] += f", {part}"
        else:
            lines.append(part)
    return [_text(x, y + 16 * n, escape(line), fill=fill) for n, line in enumerate(lines) if line]


def _loops(height: int) -> list[str]:
    """At the left: several updates on one rollout batch, then new rollouts; the controllers' state beside them."""
    middle = [FIRST + n * (BOX_HEIGHT + GAP) + BOX_HEIGHT / 2 for n in range(len(PLACES))]
    rollout, prepare, loss, update = middle[1], middle[4], middle[5], middle[6]
    return [
        _loop(BOX_X, 160, update + 6, loss),
        _text(154, (loss + update) / 2 + 4, "next update", anchor="end", fill=PALE),
        _loop(BOX_X, 70, update + 18, rollout),
        *(
            _text(62, middle[2] + 16 * n, word, anchor="end", fill=PALE)
            for n, word in enumerate(("next", "rollout", "batch"))
        ),
        *(_text(80, prepare - 16 + 16 * n, line, fill="#9a3412") for n, line in enumerate(HELD)),
        _text(
            BOX_X,
            height - 16,
            "Rules say what they read; a name that exists only at the update puts them there.",
            fill=PALE,
        ),
    ]


def _loop(right: float, left: float, start: float, end: float) -> str:
    """From a box's edge around the left to another one's, with an arrowhead."""
    return f"<path d='M{right} {start:g}H{left:g}V{end:g}H{right - 3}m-5 -4l5 4l-5 4' fill='none' stroke='{PALE}'/>"


DRAWN: Mapping[str, Callable[[], str]] = {
    "why-it-falls.svg": why_it_falls,
    "quadrant-curves.svg": quadrant_curves,
    "quadrant-weights.svg": quadrant_weights,
    "step.svg": step,
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        record.write_text(PICTURES / name, draw())


if __name__ == "__main__":
    main()
