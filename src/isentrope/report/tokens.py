"""The token part of a report: completions to read token by token, and weight against probability.

Both come from the token dumps of a run (`isentrope.token_dump`), of which a bounded part is shown: whole groups
(completions of one prompt) while they fit, spread evenly over a dumped step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from isentrope.diagnostics import QUADRANTS
from isentrope.report.chart import Axis, Chart, Series, short
from isentrope.report.data import RunData
from isentrope.report.pieces import Tokenizer, find_tokenizer, pieces
from isentrope.token_dump import read_tokens

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


def read(run: RunData, step: int) -> Columns:
    """The dump of one step as arrays, NaN where a number is missing, rows together and in order of position."""
    columns = _columns(run, step, (*PLACES, *NUMBERS))
    order = np.lexsort((columns["position"], columns["row"], columns["group"]))
    return {name: column[order] for name, column in columns.items()}


def _columns(run: RunData, step: int, names: Sequence[str]) -> Columns:
    assert run.tokens is not None, "the run has token dumps"
    table = read_tokens(run.tokens, step, list(names))
    found = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    return {name: x.astype(float, copy=False) if name in (*NUMBERS, "task") else x for name, x in found.items()}


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
        tokens = _columns(run, step, ("mask", *SCATTERED))
        known = tokens["mask"] & np.isfinite(tokens["logp"]) & np.isfinite(tokens["weight"])
        place = np.flatnonzero(known & (tokens["weight"] != 0))
        total += len(place)
        place = place[:: max(1, -(-len(place) * len(steps) // budget))]
        parts.append({name: tokens[name][place] for name in SCATTERED})
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return found | {"p": np.exp(found["logp"])}, total


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
    found = [_step(read(run, step), step, budget // len(steps), tokenizer, texts, run.tasks) for step in steps]
    note = source if tokenizer is None else f"text by the tokenizer of {source}"
    return {"run": index, "note": note, "pieces": list(texts), "steps": found}


def _step(
    tokens: Columns, step: int, budget: int, tokenizer: Tokenizer | None, texts: dict[str, int], tasks: list[str]
) -> dict[str, Any]:
    rows = split_rows(tokens)
    chosen = choose(rows, budget)
    items = [_item({name: x[row] for name, x in tokens.items()}, tokenizer, texts, tasks) for row in chosen]
    return {"step": step, "of": len(rows), "items": items}


def split_rows(tokens: Columns) -> list[slice]:
    """Where each completion's tokens stand, groups together."""
    if not len(tokens["row"]):
        return []
    starts = np.flatnonzero(np.diff(tokens["row"])) + 1
    edges = [0, *starts.tolist(), len(tokens["row"])]
    return [slice(a, b) for a, b in pairwise(edges)]


def choose(rows: Sequence[slice], budget: int) -> list[slice]:
    """As many evenly spread runs of eight completions as `budget` tokens allow; one completion at least."""
    blocks = [rows[i : i + 8] for i in range(0, len(rows), 8)]
    size = max(1, sum(min(row.stop - row.start, MAX_ROW_TOKENS) for row in rows))
    wanted = max(1, min(len(blocks), len(blocks) * budget // size))
    chosen = [blocks[i * len(blocks) // wanted] for i in range(wanted)] if blocks else []
    found: list[slice] = []
    for row in (row for block in chosen for row in block):
        budget -= min(row.stop - row.start, MAX_ROW_TOKENS)
        if found and budget < 0:
            break
        found.append(row)
    return found


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
