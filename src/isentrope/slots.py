"""What happens in a slot: when its rule runs, which columns it sees, what it promises."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isentrope.columns import CURRENT_POLICY, Measured, invoke, name_of, pick, reads


def runs_in_loss(path: str, rule: Any) -> bool:
    """Whether the rule runs at every update; the others run once a rollout batch. A shaping rule does if it reads a
    column of the current policy.
    """
    slot = path.split(".")[0]
    if slot == "shaping":
        return bool(reads(rule) & CURRENT_POLICY)
    return slot not in ("advantage", "select")


def check_shaping_order(shaping: tuple[Any, ...]) -> None:
    """Raise ValueError for a shaping rule of `prepare` behind one of `loss`."""
    in_loss = [runs_in_loss("shaping", rule) for rule in shaping]
    for i in range(1, len(shaping)):
        if in_loss[i - 1] and not in_loss[i]:
            late, early = name_of(shaping[i]), name_of(shaping[i - 1])
            raise ValueError(
                f"Objective.shaping: {late} runs once in prepare, but stands after {early},"
                f" which runs in loss at every update: put {late} first"
            )


def own_columns(path: str, rule: Any, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the rule's `prepare` computes, under names that only the rule in this slot sees."""
    if not hasattr(rule, "prepare"):
        return {}
    return {f"{path}/{name}": x for name, x in invoke(rule, Measured(rows), method="prepare").items()}


def call(path: str, rule: Any, rows: Mapping[str, Tensor], *arguments: Any) -> Any:
    """Call the rule in a slot with the columns it reads, its own prepared ones first."""
    columns = dict(rows)
    columns |= {name: columns[name].detach() for name in getattr(rule, "detached", ()) if name in columns}
    mine = {key.removeprefix(f"{path}/"): x for key, x in columns.items() if key.startswith(f"{path}/")}
    return rule(
        *arguments, **pick(columns | mine, reads(rule), f"{path}: {name_of(rule)}", "prepare's or loss's columns")
    )


def is_elementwise(surrogate: Any) -> bool:
    """Whether a token's J depends on its own log-ratio and advantage alone, linearly on its logp where that is read."""
    return bool(getattr(surrogate, "elementwise", False))


def ignores_ratio(surrogate: Any) -> bool:
    """Whether no ratio need be computed for the surrogate."""
    return bool(getattr(surrogate, "ignores_ratio", False))
