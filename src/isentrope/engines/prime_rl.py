"""prime-rl: an objective as its custom loss, by import path.

```toml
[trainer.loss]
type = "custom"
import_path = "isentrope.engines.prime_rl.loss"
kwargs = { objective = "ce_gppo" }
```

prime-rl calls the function for one sequence at a time, adds up what it returns, and divides by the loss tokens of the
step over all ranks. So an objective whose `aggregate` is TokenMean is exact, and no other; nothing that compares tokens
of several rows has a place. Its advantages come from the orchestrator's algorithm: of the objective, only what runs in
the loss acts, and `shaping` and `select` that run before are refused rather than left out. The only earlier policy it
knows is the sampler's, so the ratio is taken to that: `old_logp` is `inference_logprobs`, and a `correction` for the
sampler, which compares the two, is refused.

The signature is that of prime-rl's documentation (docs/algorithms.md at commit 004274ec: `LossInputs` with
trainer_logprobs, inference_logprobs, advantages, loss_mask, each of one sequence; `LossOutputs` with loss and metrics).
It was not run inside prime-rl, which is not on the package index.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any

from isentrope import spec
from isentrope.advantage import GroupRelative
from isentrope.aggregate import TokenMean, Totals
from isentrope.engines import loss_hook
from isentrope.engines.loss_hook import EngineError, Seam
from isentrope.objective import Objective

__all__ = ["EngineError", "loss", "refusals"]

SEAM = Seam(
    "prime-rl",
    prepare=frozenset({"reward", "group", "mask", "old_logp"}),  # its algorithm's business, which is not judged here
    loss=frozenset({"logp", "old_logp", "mask"}),
    whole_micro_batch=False,
)
_SUM = Totals(1.0, 1.0, 1.0)  # prime-rl divides by the tokens of the step


def refusals(objective: Objective) -> list[str]:
    """Sentences on what prime-rl has no place for; empty where what runs in the loss is exact.

    The objective's own `advantage` is never asked: prime-rl's algorithm computes advantages.
    """
    found = []
    if objective.aggregate != TokenMean():
        found.append(
            f"aggregate: prime-rl divides by the tokens of the step; {objective.aggregate!r} is not TokenMean()"
        )
    if objective.correction is not None:
        found.append("correction: prime-rl takes the ratio to the sampler's policy itself; leave the slot empty")
    if len(objective.shaping) > len(_late(objective)):
        found.append("shaping: prime-rl computes advantages elsewhere; leave rules out that run in prepare")
    judged = replace(objective, advantage=GroupRelative(), aggregate=TokenMean(), shaping=_late(objective))
    return found + loss_hook.refusals(judged, SEAM)


def _late(objective: Objective) -> tuple[Any, ...]:
    """The shaping rules that run in the loss."""
    return tuple(rule for i, rule in enumerate(objective.shaping) if loss_hook.in_loss(f"shaping.{i}", rule))


@lru_cache(maxsize=8)
def _loaded(objective: str) -> Objective:
    loaded = spec.load(objective)
    found = refusals(loaded)
    if found:
        raise EngineError("prime-rl cannot host this objective exactly: " + "; ".join(found))
    return loaded


def loss(inputs: Any, objective: str) -> Any:
    """The sum of -J over one sequence, as prime-rl's custom losses return it.

    inputs: prime-rl's LossInputs. objective: a preset's name, a TOML path or text, or "file.py:name".
    Returns LossOutputs with the metrics `clip_low` and `clip_high`, shares of the tokens.
    Raises EngineError at the first call for an objective that prime-rl cannot host exactly, and for `loss_weights`.
    """
    from prime_rl.trainer.rl.loss import LossOutputs

    now = _loaded(objective)
    if getattr(inputs, "loss_weights", None) is not None:
        raise EngineError("loss_weights are set, and only prime-rl's own losses apply them: leave the component's out")
    columns = loss_hook.rows(
        logp=inputs.trainer_logprobs[None],
        old_logp=inputs.inference_logprobs[None],
        advantage=inputs.advantages[None],
        mask=inputs.loss_mask[None],
    )
    low, high = loss_hook.clip_shares(now, columns)
    return LossOutputs(loss=now.loss(columns, _SUM), metrics={"clip_low": low, "clip_high": high})
