"""What engines with a bare loss hook have in common: a function with a fixed signature, called once a micro-batch.

Such a hook passes the columns that its engine's own losses need, and nothing else: no group, no entropy, no column of
ours. So `prepare` runs elsewhere (in the engine's advantage estimator, where it has one), and what it computes reaches
the loss in one column, `advantage`. `refusals` says which objectives that suffices for; `rows` makes the rows of a
call.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope.columns import CURRENT_POLICY, GLOSSARY, clean, name_of, reads
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.rollout import Rollout

_MADE = frozenset({"advantage", "counted", "mask", "selected"})


class EngineError(IsentropeError, ValueError):
    """An objective that the engine cannot host exactly, or an option of the engine that the objective replaces."""


@dataclass(frozen=True)
class Seam:
    """What an engine hands over, by our names of columns.

    prepare: columns where advantages are computed, empty where the engine lets nobody in. loss: columns of the hook.
    whole_micro_batch: the hook sees the rows of a micro-batch together; False where it is called for one row at a time,
    so that statistics over tokens are those of a row. keeps_state: controllers' state is kept and reaches the hook.
    masks_tokens: what `select` drops can be taken out of the mask that the hook gets.
    """

    engine: str
    prepare: frozenset[str]
    loss: frozenset[str]
    whole_micro_batch: bool = True
    keeps_state: bool = False
    masks_tokens: bool = False


def refusals(objective: Objective, seam: Seam) -> list[str]:
    """Sentences on what of the objective the seam has no place for; empty where the engine hosts it exactly."""
    found = [*_controllers(objective, seam), *_selection(objective, seam), *_missing(objective, seam)]
    return found or [*_statistics(objective, seam), *_attempt(objective, seam)]


def check(objective: Objective, seam: Seam) -> None:
    """Raises EngineError with all refusals, where there are any."""
    found = refusals(objective, seam)
    if found:
        raise EngineError(f"{seam.engine} cannot host this objective exactly: " + "; ".join(found))


def rows(
    *,
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    rollout_logp: Tensor | None = None,
    **more: Tensor,
) -> dict[str, Tensor]:
    """A micro-batch as `Objective.loss` takes it: masked positions may hold anything; tokens with an old_logp that is
    not finite leave the loss, with a warning.
    """
    columns = {"old_logp": old_logp, "advantage": advantage, "mask": mask} | more
    if rollout_logp is not None:
        columns["rollout_logp"] = rollout_logp
    cleaned = clean(columns, frozenset({"old_logp"}))
    return cleaned | {"logp": logp, "selected": cleaned["mask"], "counted": mask}


def advantages(objective: Objective, columns: Mapping[str, Tensor]) -> Tensor:
    """The advantages [B,T] after all shaping in `prepare`, where only what `prepare` reads is at hand."""
    needs = objective.columns()
    later = needs.loss - needs.prepare - CURRENT_POLICY - columns.keys()
    blank = torch.zeros(columns["mask"].shape, device=columns["mask"].device)
    prepared, _ = objective.prepare(dict.fromkeys(later, blank) | dict(columns))
    return prepared["advantage"]


def check_sampler(objective: Objective, columns: Mapping[str, Tensor], engine: str, remedy: str) -> None:
    """EngineError where the objective corrects for the sampler and the engine passes no log-probabilities of it."""
    if objective.correction is not None and "rollout_logp" not in columns:
        raise EngineError(
            f"correction: {name_of(objective.correction)} compares with the sampler's log-probabilities, which {engine}"
            f" passes only if told to: {remedy}"
        )


def clip_shares(objective: Objective, columns: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The shares of the tokens beyond the surrogate's lower and upper bound, two scalars; 0 where it has no bounds."""
    mask = columns["mask"]
    with torch.no_grad():
        sides = objective.clipped({name: x.detach() for name, x in columns.items()})
    if sides is None:
        return mask.new_zeros((), dtype=torch.float32), mask.new_zeros((), dtype=torch.float32)
    low, high = sides
    count = mask.sum().clamp(min=1)
    return low.sum() / count, high.sum() / count  # behind the mask ratios are 1, inside every bound


def _controllers(objective: Objective, seam: Seam) -> list[str]:
    found = (
        []
        if seam.keeps_state
        else [
            f"{path} is held by {name_of(controller)}, whose state {seam.engine} neither keeps nor brings to the loss:"
            " put a number there, or take objective.at(objective.init())"
            for path, controller in objective.controllers().items()
        ]
    )
    if objective.rollout != Rollout():
        found.append(f"rollout: {seam.engine} samples by its own options; leave the slot empty")
    return found


def _selection(objective: Objective, seam: Seam) -> list[str]:
    if not seam.masks_tokens:
        return [
            f"select.{i}: {name_of(rule)} drops rows or tokens, and {seam.engine} has no column to say so in:"
            " use its own filter and leave the slot empty"
            for i, rule in enumerate(objective.select)
        ]
    reading = [path for path, rule in objective.rules() if in_loss(path, rule) and "mask" in reads(rule)]
    return [
        f"select.{i}: {name_of(rule)} can only act by masking in {seam.engine}, {why}"
        for i, rule in enumerate(objective.select)
        for why in _why_not_masked(rule, reading)
    ]


def _why_not_masked(rule: Any, reading: list[str]) -> list[str]:
    found = [f"and {path} reads `mask` in the loss, where it would be another" for path in reading]
    if getattr(rule, "count", "kept") != "kept":
        found.append('so that what it drops leaves the count too: set count="kept"')
    return found


def _missing(objective: Objective, seam: Seam) -> list[str]:
    needs = objective.columns()
    lacking = {"prepare": needs.prepare - seam.prepare, "loss": needs.loss - seam.loss - _MADE}
    return [
        f"{phase} needs `{name}` ({GLOSSARY[name].meaning if name in GLOSSARY else 'a column of your own'}), which"
        f" {seam.engine} does not pass there; it passes {', '.join(sorted(given))}"
        for phase, given in (("prepare", seam.prepare), ("loss", seam.loss))
        for name in sorted(lacking[phase])
    ]


def _statistics(objective: Objective, seam: Seam) -> list[str]:
    prepared, _ = objective.prepare(_example(seam.prepare | seam.loss))
    found = []
    for path, rule in objective.rules():
        own = sorted(key.partition("/")[2] for key in prepared if key.startswith(f"{path}/"))
        if own and in_loss(path, rule):
            hint = ': set scope="micro_batch"' if hasattr(rule, "scope") and seam.whole_micro_batch else ""
            found.append(
                f"{path}: {name_of(rule)} brings {', '.join(f'`{name}`' for name in own)} of the whole rollout batch to"
                f" the loss, and {seam.engine} has no column for it{hint}"
            )
        elif getattr(rule, "scope", None) == "micro_batch" and not seam.whole_micro_batch:
            found.append(
                f"{path}: {name_of(rule)} compares tokens of a micro-batch, and {seam.engine} calls row by row"
            )
    return found


def _attempt(objective: Objective, seam: Seam) -> list[str]:
    """What still fails when an example goes through the seam: a column that is optional, and yet needed."""
    example = _example(seam.prepare | seam.loss)
    prepared, _ = objective.prepare(example)
    now, passed = objective.at(objective.init()), {name: x for name, x in example.items() if name in seam.loss}
    columns = passed | {name: prepared[name] for name in _MADE} | {"logp": example["logp"]}
    try:
        now.loss(columns, now.count(prepared))
    except ValueError as error:
        return [str(error)]
    return []


def in_loss(path: str, rule: Any) -> bool:
    """Whether the rule in this slot runs in `loss`, at every update."""
    slot = path.partition(".")[0]
    return bool(reads(rule) & CURRENT_POLICY) if slot == "shaping" else slot not in ("advantage", "select")


def _example(names: frozenset[str]) -> dict[str, Tensor]:
    """A small batch with these columns: two prompts, two completions each, one right."""
    values = torch.linspace(-2.0, -0.1, 12).view(4, 3)
    right = torch.tensor([1.0, 0.0, 0.0, 1.0])
    wide = {"float": values.exp(), "bool": torch.ones(4, 3, dtype=torch.bool)}
    narrow = {"float": right, "int": torch.tensor([0, 0, 1, 1]), "bool": torch.zeros(4, dtype=torch.bool)}
    known = [GLOSSARY[name] for name in names]
    found = {entry.name: (wide if entry.shape == "BT" else narrow)[entry.kind] for entry in known}
    return {name: values if name.endswith("logp") else x for name, x in found.items()}
