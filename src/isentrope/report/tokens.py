"""The token part of a report: completions to read token by token, and weight against probability.

Both come from the token dumps of a run (`isentrope.token_dump`), of which a bounded part is shown: whole groups
(completions of one prompt) while they fit, spread evenly over a dumped step. A dump is gone through twice, in batches:
to see how much there is, and to take from it. Memory grows with the completions (some bytes each), not with the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isentrope.diagnostics import QUADRANTS
from isentrope.report.chart import Axis, Chart, Series, short
from isentrope.report.data import RunData
from isentrope.report.pieces import Tokenizer, find_tokenizer, pieces
from isentrope.token_dump import iter_tokens

Columns = dict[str, np.ndarray]

SCATTERED = ("logp", "weight", "advantage", "entropy")
NUMBERS = ("logp", "old_logp", "rollout_logp", "entropy", "advantage", "weight")
MAX_STEPS = 12  # dumped steps that can be chosen from
MAX_ROW_TOKENS = 2000  # of one completion; a longer one is cut, and says so
DUMP = "no token dump: train with --tokens 10 (every tenth step)"


@dataclass(frozen=True)
class Budget:
    """How much of the tokens a report shows: tokens to read and points of the scatter, over all runs."""

    tokens: int = 40_000
    points: int = 6_000

    def shrunk(self) -> Budget:
        """A third of it."""
        return Budget(self.tokens // 3, self.points // 3)


def shown_steps(dumped: Sequence[int]) -> list[int]:
    """At most 12 of the dumped steps, evenly spread, the first and the last among them.

    >>> shown_steps([10, 20, 30]), len(shown_steps(range(100)))
    ([10, 20, 30], 12)
    """
    if len(dumped) <= MAX_STEPS:
        return list(dumped)
    return [dumped[round(i * (len(dumped) - 1) / (MAX_STEPS - 1))] for i in range(MAX_STEPS)]


PLACES = ("row", "group", "task", "position", "token_id", "mask")


def batches(run: RunData, step: int, names: Sequence[str]) -> Iterator[Columns]:
    """The dump of one step as arrays of bounded size, NaN where a number is missing."""
    assert run.tokens is not None, "the run has token dumps"
    for batch in iter_tokens(run.tokens, step, list(names)):
        found = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in names}
        yield {name: x.astype(float, copy=False) if name in (*NUMBERS, "task") else x for name, x in found.items()}


# -- weight against probability ---------------------------------------------------------------------


def scatters(runs: Sequence[RunData], budget: Budget) -> list[Chart]:
    """One chart a run: weight of a token against its probability, coloured by quadrant."""
    about = (
        "Each point is a token of the dumped steps: the weight dJ/dlogp that the objective gives it, against its"
        " probability. Above zero the update makes it likelier, below less likely."
    )
    y, x = Axis("weight dJ/dlogp"), Axis("probability of the token", low=0.0, high=1.0)
    with_tokens = [i for i, run in enumerate(runs) if run.dumped]
    if not with_tokens:
        return [Chart("weights", "Weight against probability", about, y, x=x, kind="scatter", missing=DUMP)]
    charts = []
    for i in with_tokens:
        points, total = _points(runs[i], max(1, budget.points // len(with_tokens)))
        charts.append(
            Chart(
                f"weights-{i}",
                f"Weight against probability: {runs[i].name}",
                about,
                y,
                tuple(_by_quadrant(points, i)),
                x=x,
                kind="scatter",
                scale="weights",
                missing="the dump holds no token with a weight and a log-probability",
                notes=(f"{len(points['p'])} of {total} tokens with a weight, evenly spread over the dumped steps",),
            )
        )
    return charts


def _points(run: RunData, budget: int) -> tuple[Columns, int]:
    """Evenly spread tokens with finite numbers: probability p, weight, advantage, entropy; and how many there were."""
    steps = shown_steps(run.dumped)
    parts: list[Columns] = []
    total = 0
    for step in steps:
        count = sum(len(places) for _, places in _weighted(run, step, ("mask", "logp", "weight")))
        every, seen = max(1, -(-count * len(steps) // budget)), 0
        for tokens, places in _weighted(run, step, ("mask", *SCATTERED)):
            taken = places[-seen % every :: every]
            parts.append({name: tokens[name][taken] for name in SCATTERED})
            seen += len(places)
        total += count
    found = {name: np.concatenate([np.empty(0), *(part[name] for part in parts)]) for name in SCATTERED}
    return found | {"p": np.exp(found["logp"])}, total


def _weighted(run: RunData, step: int, names: Sequence[str]) -> Iterator[tuple[Columns, np.ndarray]]:
    """Batches of a step, each with the places of the tokens that have a probability and a weight other than 0."""
    for tokens in batches(run, step, names):
        known = tokens["mask"] & np.isfinite(tokens["logp"]) & np.isfinite(tokens["weight"])
        yield tokens, np.flatnonzero(known & (tokens["weight"] != 0))


def _by_quadrant(points: Columns, index: int) -> Iterator[Series]:
    quadrant = _quadrant(points)
    for tone, name in enumerate(QUADRANTS):
        own = quadrant == tone
        if own.any():
            yield Series(name, points["p"][own].tolist(), points["weight"][own].tolist(), index, tone=tone)


def _quadrant(points: Columns) -> np.ndarray:
    """Index into QUADRANTS; the sign of the weight where the advantage is not known, high probability where L > 0."""
    sign = np.where(np.isfinite(points["advantage"]), points["advantage"], points["weight"])
    entropy = np.where(np.isfinite(points["entropy"]), points["entropy"], -_mean(points["logp"]))
    return 2 * (sign < 0) + (points["logp"] + entropy <= 0)


def _mean(x: np.ndarray) -> float:
    return float(x.mean()) if len(x) else 0.0


# -- completions to read ----------------------------------------------------------------------------


def readable(runs: Sequence[RunData], budget: Budget) -> list[dict[str, Any]]:
    """The token view of every run with a dump: steps, their completions, and a table of pieces of text.

    {run, note, pieces: [text], steps: [{step, of, items}]}; of: how many completions the dump has. An item is a
    completion: row, group, task, cut (tokens left out at its end), outside (places that the policy did not write), ids,
    text (indices into pieces), and numbers for each column, null where one is not known.
    """
    with_tokens = [i for i, run in enumerate(runs) if run.dumped]
    return [_view(runs[i], i, budget.tokens // len(with_tokens)) for i in with_tokens]


def _view(run: RunData, index: int, budget: int) -> dict[str, Any]:
    tokenizer, source = find_tokenizer(run)
    steps = shown_steps(run.dumped)
    texts: dict[str, int] = {}
    found = [_step(run, step, budget // len(steps), tokenizer, texts) for step in steps]
    note = source if tokenizer is None else f"text by the tokenizer of {source}"
    return {"run": index, "note": note, "pieces": list(texts), "steps": found}


def _step(run: RunData, step: int, budget: int, tokenizer: Tokenizer | None, texts: dict[str, int]) -> dict[str, Any]:
    completions, lengths = completions_of(run, step)
    chosen = completions[choose(lengths, budget)]
    items = [_item(row, tokenizer, texts, run.tasks) for row in _tokens_of(run, step, chosen)]
    return {"step": step, "of": len(completions), "items": items}


def completions_of(run: RunData, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The completions of a step, [n, 2] of group and row in this order, and how many tokens each has, [n]."""
    known = np.empty((0, 2), dtype=np.int64), np.empty(0, dtype=np.int64)
    waiting: list[tuple[np.ndarray, np.ndarray]] = []
    for tokens in batches(run, step, ("group", "row")):
        waiting.append(_stretches(np.stack([tokens["group"], tokens["row"]], axis=1)))
        if sum(len(counts) for _, counts in waiting) > len(known[1]):  # rarely enough that it costs as one sort
            known, waiting = _added([known, *waiting]), []
    return _added([known, *waiting])


def _stretches(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys [n, 2] of stretches of equal neighbours, and the lengths of the stretches."""
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1
    starts = np.concatenate([[0], edges])[: len(keys)]
    return keys[starts], np.diff(np.concatenate([starts, [len(keys)]]))


def _added(parts: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Different keys [n, 2] and the sums of their counts [n]."""
    keys, place = np.unique(np.concatenate([key for key, _ in parts]), axis=0, return_inverse=True)
    counts = np.zeros(len(keys), dtype=np.int64)
    np.add.at(counts, place.reshape(-1), np.concatenate([count for _, count in parts]))
    return keys, counts


def choose(lengths: np.ndarray, budget: int) -> list[int]:
    """As many evenly spread runs of eight completions as `budget` tokens allow; one completion at least.

    lengths: [n], tokens of each completion. Returns places in it.
    """
    shown = np.minimum(lengths, MAX_ROW_TOKENS)
    blocks = -(-len(lengths) // 8)
    wanted = max(1, min(blocks, blocks * budget // max(1, int(shown.sum()))))
    starts = [8 * (i * blocks // wanted) for i in range(wanted)] if blocks else []
    found: list[int] = []
    for place in (place for start in starts for place in range(start, min(start + 8, len(lengths)))):
        budget -= int(shown[place])
        if found and budget < 0:
            break
        found.append(place)
    return found


def _tokens_of(run: RunData, step: int, completions: np.ndarray) -> Iterator[Columns]:
    """All columns of some completions [n, 2], one after another, each in order of position."""
    names = (*PLACES, *NUMBERS)
    parts = [{name: np.empty(0) for name in names}] if not len(completions) else []
    for tokens in batches(run, step, names):
        near = np.flatnonzero(np.isin(tokens["row"], completions[:, 1]) & np.isin(tokens["group"], completions[:, 0]))
        parts.append({name: x[near] for name, x in tokens.items()})
    found = {name: np.concatenate([part[name] for part in parts]) for name in names}
    for group, row in completions:
        own = np.flatnonzero((found["group"] == group) & (found["row"] == row))
        own = own[np.argsort(found["position"][own], kind="stable")]
        yield {name: x[own] for name, x in found.items()}


def _item(row: Columns, tokenizer: Tokenizer | None, texts: dict[str, int], tasks: list[str]) -> dict[str, Any]:
    length = len(row["token_id"])
    row = {name: x[:MAX_ROW_TOKENS] for name, x in row.items()}
    ids = row["token_id"].tolist()
    task = row["task"][0]
    item: dict[str, Any] = {
        "row": int(row["row"][0]),
        "group": int(row["group"][0]),
        "task": tasks[int(task)] if np.isfinite(task) and 0 <= task < len(tasks) else "",
        "cut": length - len(ids),
        "ids": ids,
        "text": [texts.setdefault(piece, len(texts)) for piece in pieces(tokenizer, ids)],
        "outside": np.flatnonzero(~row["mask"].astype(bool)).tolist(),
    }
    return item | {name: _numbers(row[name]) for name in NUMBERS if np.isfinite(row[name]).any()}


def _numbers(column: np.ndarray) -> float | list[float | None]:
    """A list, null where it is not finite; one number where all are the same."""
    values = [short(x) if np.isfinite(x) else None for x in column.tolist()]
    return values[0] if values[0] is not None and all(x == values[0] for x in values) else values
