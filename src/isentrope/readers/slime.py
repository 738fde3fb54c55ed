"""slime's dumps: `--save-debug-train-data` and `--save-debug-rollout-data`, files written by `torch.save`.

They are loaded with `weights_only=True`, which builds tensors and plain containers and runs no code. What needs more
is refused unless the caller allows pickles, which run whatever the file says.
"""

from __future__ import annotations

import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

from isentrope.errors import IsentropeError
from isentrope.readers import _text
from isentrope.run import Facts, Run, Series

if TYPE_CHECKING:
    from torch import Tensor

SUFFIXES = (".pt", ".pkl", ".pth")
NAMES = {
    "old_logp": "log_probs",
    "rollout_logp": "rollout_log_probs",
    "entropy": "entropy",
    "advantage": "advantages",
}
ROLLOUT_NOTE = "a rollout dump holds the sampler's side alone: no entropy, no trainer's log-probabilities"
TRAIN_NOTE = "a train dump holds one pass of the trainer: no ratio within a rollout batch, no weights"


def dump_files(folder: Path) -> list[Path]:
    """The dumps in a folder, in the order of the numbers in their names."""
    found = [path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    return sorted(found, key=lambda path: (_number(path), path.name))


def read(paths: list[Path], name: str, allow_pickle: bool = False) -> Run:
    """The run of these dumps, one file in memory at a time."""
    points: dict[str, dict[float, float]] = {}
    has_tokens = False
    for path in paths:
        dump = load(path, allow_pickle)
        has_tokens |= any("log_probs" in sample for sample in dump["samples"])
        for curve, value in _measure(dump["samples"]).items():
            points.setdefault(curve, {})[_rollout(dump, path)] = value
    return Run(
        name=name,
        engine="slime",
        series={curve: Series.of(found) for curve, found in points.items()},
        facts=Facts(entropy_kind="exact") if has_tokens else Facts(),
        tokens=Dumps(tuple(paths), allow_pickle) if has_tokens else None,
        sources=(f"{len(paths)} slime dumps",),
        notes=(TRAIN_NOTE if has_tokens else ROLLOUT_NOTE,),
    )


def load(path: Path, allow_pickle: bool) -> dict[str, Any]:
    """One dump. IsentropeError where it is none, or holds objects that only a pickle can make."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old protocols; what cannot be read raises
            dump = torch.load(path, map_location="cpu", weights_only=not allow_pickle)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise IsentropeError(
            f"{path} holds more than tensors and plain values, or is no torch file ({reason});"
            " a pickle runs code when it is opened: --allow-pickle opens it if you trust whoever wrote it"
        ) from error
    except Exception as error:  # a damaged file leads the unpickler anywhere
        raise IsentropeError(f"cannot read {path} as a torch file: {error}") from error
    samples = dump.get("samples") if isinstance(dump, dict) else None
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        raise IsentropeError(f"{path} has no list of samples; it is no debug dump of slime")
    return dict(dump)


@dataclass(frozen=True)
class Dumps:
    """The tokens of train dumps, a sample at a time."""

    paths: tuple[Path, ...]
    allow_pickle: bool = False

    def batches(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Rollout number and the loss-masked tokens of one sample."""
        for path in self.paths:
            dump = load(path, self.allow_pickle)
            for index, sample in enumerate(dump["samples"]):
                if "log_probs" in sample:
                    yield int(_rollout(dump, path)), _columns(sample, f"{path} sample {index}")


def _columns(sample: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    import torch

    try:
        columns = {o: torch.as_tensor(sample[t]).float() for o, t in NAMES.items() if sample.get(t) is not None}
        mask = sample.get("loss_masks")
        length = len(columns["old_logp"])
        keep = torch.ones(length, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
        kept = {ours: column[keep] for ours, column in columns.items()}
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise IsentropeError(f"{where}: columns are no lists of numbers of one length: {error}") from error
    return kept | {"position": torch.arange(int(keep.sum()))}


def _measure(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Reward, its spread within groups, length and truncation of one dump, as far as it holds them."""
    groups: dict[Any, list[float]] = {}
    for index, sample in enumerate(samples):
        reward = _text.number(sample.get("reward", sample.get("rewards")))
        if reward is not None:
            groups.setdefault(sample.get("group_index", f"alone {index}"), []).append(reward)
    found = {}
    rewards = [reward for group in groups.values() for reward in group]
    if rewards:
        found["reward"] = fmean(rewards)
    if several := [group for group in groups.values() if len(group) > 1]:
        found["reward_std"] = fmean(pstdev(group) for group in several)
        found["zero_std"] = fmean(max(group) == min(group) for group in several)
    lengths = [_text.number(s.get("response_length", s.get("response_lengths"))) for s in samples]
    if known := [x for x in lengths if x is not None]:
        found["length"] = fmean(known)
    if states := [s["status"] for s in samples if "status" in s]:
        found["truncated"] = fmean(state == "truncated" for state in states)
    return found


def _rollout(dump: Mapping[str, Any], path: Path) -> float:
    step = _text.number(dump.get("rollout_id"))
    return step if step is not None else _number(path)


def _number(path: Path) -> int:
    found = re.findall(r"\d+", path.stem)
    return int(found[-1]) if found else 0
