"""Dumps of completions with their scores, a file a step: TRL's `completions_*.parquet`, verl's `{step}.jsonl`.

They hold texts, not log-probabilities: what they tell is the reward and its spread within each prompt's group, how
many of a group's completions are different, and how long they are (in characters).
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from isentrope.readers import _parquet, _text
from isentrope.run import Run, Series

NOTE = "completion dumps hold texts and scores, no log-probabilities; their lengths are in characters"
TRL_FILE = re.compile(r"completions_(\d+)\.parquet$")
VERL_FILE = re.compile(r"(\d+)\.jsonl$")
NOT_REWARDS = {"step", "prompt", "completion", "advantage", "advantages", "image", "images"}
Row = tuple[str, str, float | None]  # prompt, completion, score


def trl_files(folder: Path) -> list[Path]:
    """TRL's completion dumps in a folder or in its subfolder `completions`."""
    found = [*folder.glob("completions_*.parquet"), *folder.glob("completions/completions_*.parquet")]
    return sorted(path for path in found if TRL_FILE.search(path.name))


def verl_files(folder: Path) -> list[Path]:
    """verl's rollout dumps in a folder, in the order of the steps."""
    found = [path for path in folder.glob("*.jsonl") if VERL_FILE.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem))


def read_trl(paths: list[Path], name: str) -> Run:
    """The run of TRL's dumps. The reward is the sum over reward functions, as with weights of 1."""
    steps = {int(match[1]): path for path in paths if (match := TRL_FILE.search(path.name))}
    return _run(name, "trl", {step: _trl_rows(path) for step, path in steps.items()})


def read_verl(paths: list[Path], name: str) -> Run:
    """The run of verl's rollout dumps."""
    return _run(name, "verl", {int(path.stem): _verl_rows(path) for path in paths})


def _run(name: str, engine: str, by_step: Mapping[int, Iterable[Row]]) -> Run:
    points: dict[str, dict[float, float]] = defaultdict(dict)
    for step, rows in by_step.items():
        for curve, value in _measure(rows).items():
            points[curve][step] = value
    series = {curve: Series.of(found) for curve, found in points.items()}
    return Run(name, engine, series, sources=(f"{len(by_step)} completion dumps",), notes=(NOTE,))


def _measure(rows: Iterable[Row]) -> dict[str, float]:
    """The numbers of one step. Groups are the rows of one prompt; those of one row say nothing of spread."""
    scores: dict[int, list[float]] = defaultdict(list)
    texts: dict[int, list[int]] = defaultdict(list)
    lengths = []
    for prompt, completion, score in rows:
        texts[hash(prompt)].append(hash(completion))
        lengths.append(len(completion))
        if score is not None and math.isfinite(score):
            scores[hash(prompt)].append(score)
    if not lengths:
        return {}
    found = {"length": fmean(lengths)}
    rewards = [score for group in scores.values() for score in group]
    groups = [group for group in scores.values() if len(group) > 1]
    if rewards:
        found["reward"] = fmean(rewards)
    if groups:
        found["reward_std"] = fmean(pstdev(group) for group in groups)
        found["zero_std"] = fmean(max(group) == min(group) for group in groups)
    several = [group for group in texts.values() if len(group) > 1]
    if several:
        found["distinct"] = fmean(len(set(group)) / len(group) for group in several)
    return found


def _trl_rows(path: Path) -> Iterator[Row]:
    names = _parquet.column_names(path)
    rewards = [name for name in names if name not in NOT_REWARDS]
    wanted = [name for name in ("prompt", "completion", *rewards) if name in names]
    for row in _parquet.rows(path, wanted):
        found = [x for name in rewards if (x := _text.number(row[name])) is not None and not isinstance(row[name], str)]
        yield _as_text(row.get("prompt")), _as_text(row.get("completion")), sum(found) if found else None


def _verl_rows(path: Path) -> Iterator[Row]:
    for _, row in _text.objects(path):
        group = row.get("uid") or row.get("input")
        yield _as_text(group), _as_text(row.get("output")), _text.number(row.get("score"))


def _as_text(value: Any) -> str:
    """A text, or the last message of a conversation."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return str(value[-1].get("content", ""))
    return "" if value is None else str(value)
