"""The token dump of a verl run (`isentrope.token_dump`), written by the driver in the rollouts that ask for it.

What is dumped is the first update on a rollout batch, which verl makes with the policy that scored it: `logp` is
`old_logp`, `entropy` the exact entropy of that pass, `weight` the objective's dJ/dlogp at ratio 1. All rows of the
batch are in it. The step is that of the rollout batch's line in metrics.jsonl. Only then are token ids and entropies
fetched to the driver.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isentrope.aggregate import Totals
from isentrope.objective import Objective
from isentrope.token_dump import TokenWriter

KEY = "trainer.v1.isentrope.tokens"  # of verl's configuration; Dump's fields
FIELDS = ("responses", "entropy")  # of verl's batch, fetched for a dump alone


@dataclass(frozen=True)
class Dump:
    """Where and how often: every `every`-th rollout batch, of `updates` optimizer steps, into `folder`.

    prompts, rows: of a rollout batch; groups and rows are numbered through the run by them.
    """

    folder: str
    every: int
    updates: int
    prompts: int
    rows: int

    def wants(self, rollout: int) -> bool:
        """Whether rollout batch number `rollout` (1 = the first) is dumped."""
        return rollout % self.every == 0

    def write(
        self, rollout: int, now: Objective, rows: Mapping[str, Tensor], totals: Totals, fetched: Mapping[str, Tensor]
    ) -> None:
        """Write the prepared rows of a rollout batch. totals: of one update. fetched: `FIELDS` of the rows, [n,T]."""
        columns = _columns(now, rows, totals, fetched)
        columns["group"] = rows["group"] + (rollout - 1) * self.prompts
        columns["row"] = torch.arange(len(rows["mask"])) + (rollout - 1) * self.rows
        writer = TokenWriter(Path(self.folder))
        writer(rollout * self.updates, columns)
        writer.close()


def dump_of(config: Any) -> Dump | None:
    """The dump that verl's configuration asks for, None without one."""
    from isentrope.engines.verl_keys import lookup

    found = lookup(config, KEY)
    return Dump(**found) if found else None


@torch.no_grad()
def _columns(
    now: Objective, rows: Mapping[str, Tensor], totals: Totals, fetched: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    entropy, logp = fetched["entropy"].float(), rows["old_logp"].float()
    current = dict(rows) | {"logp": logp, "entropy": entropy}
    found = {
        "token_id": fetched["responses"],
        "mask": rows["mask"],
        "logp": logp,
        "old_logp": logp,
        "entropy": entropy,
        "advantage": now.shaped(current),
        "weight": now.weights(current, totals),
    }
    return found | {name: rows[name] for name in ("rollout_logp", "task") if name in rows}
