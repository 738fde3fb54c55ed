"""The prompts of a rollout batch where an `Order` chooses them, in place of TRL's shuffled epochs.

TRL's data loader reads ahead, so a choice that depends on what was just learnt cannot be made in its sampler. Here the
rows that it delivers only say how many are wanted; which ones is decided as the rollout begins, from the order, the
seed, the number of the rollout batch and, with a curriculum, the pass rates so far. All of these are the same on every
rank and in a resumed run (the pass rates are in the checkpoint), so prompts are the same too, with any number of
processes. Evaluation keeps TRL's order.

With a curriculum, the running pass rates see every group that is sampled in training, those of further rounds too:

| key | meaning |
| --- | --- |
| `curriculum/seen`, `curriculum/in_band` | share of the data's problems sampled so far; of these, within the band |
| `curriculum/pass_rate` | mean running pass rate, before the rollout, of its problems that were sampled before |
| `curriculum/new` | share of the rollout batch's prompts that were not |

With stages, `stage` is the number of that which the rollout batch in use belongs to, 1 the first. They go with a
curriculum: within a stage it prefers among its tasks' problems.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from torch import Tensor

from isentrope.engines.trl_options import OptionError
from isentrope.engines.trl_state import CheckpointError
from isentrope.errors import IsentropeError
from isentrope.tasks.curriculum import PassRates
from isentrope.tasks.mix import Batches, Order


def check_order(order: Order | None, dataset: Any, args: Any) -> None:
    """OptionError where the prompts cannot be chosen as asked: a stream, no shuffling, weights without tasks."""
    if order is None:
        return
    if not isinstance(dataset, Dataset) or not len(dataset):
        raise OptionError(
            "an order of prompts needs a data set whose rows can be had at will: load it whole, not empty"
        )
    check_shuffled(order, args)
    asked = "weights of" if order.weights else "stages of" if order.stages else ""
    if asked and "task" not in dataset.column_names:
        raise OptionError(f"the order of prompts has {asked} tasks and the data set no column `task`; add it")


def check_shuffled(order: Order | None, args: Any) -> None:
    """OptionError where the data's own order is asked for, and another one too."""
    if order is not None and not args.shuffle_dataset:
        raise OptionError(
            "shuffle_dataset=False asks for the data's own order; leave out the order of prompts (stages, a curriculum"
            " and a stratified order are some)"
        )


class Prompts:
    """Chooses the prompts of rollout batches; without an order, those that TRL's sampler delivered.

    order, dataset: as checked. prompts: problems of a rollout batch, over all ranks.
    """

    def __init__(self, order: Order | None, dataset: Any, prompts: int, seed: int) -> None:
        self._order, self._dataset, self._seed = order, dataset, seed
        if order is None:
            return
        tasks = [str(t) for t in dataset["task"]] if "task" in dataset.column_names else [""] * len(dataset)
        self._batches = Batches(tasks, prompts, seed, order.weights, order.stages)
        if order.curriculum is not None:
            self._numbers: dict[str, int] = {}
            problems = [self._numbers.setdefault(_key(row), len(self._numbers)) for row in dataset]
            self._rates = PassRates(order.curriculum, problems)

    @property
    def _has_curriculum(self) -> bool:
        return self._order is not None and self._order.curriculum is not None

    def allowed(self, number: int) -> list[int] | None:
        """The rows that rollout batch `number`, 0 the first, may draw from; None is all."""
        return self._batches.allowed(number) if self._order is not None and self._order.stages else None

    def logged(self, number: int) -> dict[str, float]:
        """What a step on rollout batch `number` logs."""
        return {"stage": float(self._batches.stage(number))} if self._order is not None and self._order.stages else {}

    def choose(self, trainer: Any, delivered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """This rank's rows of the rollout batch that begins, each prompt as often as its group is large."""
        if self._order is None or trainer._mode != "train":
            return list(delivered)
        chosen = self.rows(trainer._num_rollouts)
        if self._has_curriculum:
            for name, (above, below) in self._rates.figures(chosen).items():
                total = torch.tensor(above, device=trainer.accelerator.device)
                trainer._pools["train"].mean(f"curriculum/{name}", total, float(below))
        repeated = [row for row in chosen for _ in range(trainer._group_size)]
        first = trainer.accelerator.process_index * len(delivered)
        data = trainer._remove_unused_columns(self._dataset, description="training")
        return [dict(data[row]) for row in repeated[first : first + len(delivered)]]

    def rows(self, number: int) -> list[int]:
        """The rows of the data set that rollout batch `number` consists of, 0 the first, as things stand."""
        if not self._has_curriculum:
            return self._batches(number)
        counts, places = self._batches.counts(number), self._batches.rows
        drawn = [
            row
            for task, count in counts.items()
            for row in self._rates.draw(places[task], count, self._seed, number, task)
        ]
        turn = torch.randperm(len(drawn), generator=torch.Generator().manual_seed(self._seed + number))
        return [drawn[i] for i in turn.tolist()]  # tempered groups are the first ones: of no task in particular

    def observe(self, trainer: Any, examples: Sequence[Mapping[str, Any]], reward: Tensor) -> None:
        """Note what a sampling gave. examples: this rank's; reward: [N] of all ranks, rank after rank."""
        if not self._has_curriculum or trainer._mode != "train":
            return
        own = [self._numbers[_key(example)] for example in examples]
        problems, rewards = gather_object(own), reward.tolist()
        size = trainer._group_size
        for start in range(0, len(problems), size):
            self._rates.observe(problems[start], rewards[start : start + size])

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint keeps; the same on all ranks."""
        return self._rates.state() if self._has_curriculum else None

    def load(self, state: Mapping[str, Any] | None) -> None:
        """The inverse of `state`; CheckpointError if only one of the two runs has a curriculum, or other problems."""
        if (state is not None) != self._has_curriculum:
            there, here = ("no", "a") if state is None else ("a", "no")
            raise CheckpointError(
                f"the checkpoint was saved with {there} curriculum and this run has {here} curriculum; resume with the "
                "same order of prompts"
            )
        if state is not None:
            try:
                self._rates.load(state)
            except IsentropeError as error:
                raise CheckpointError(str(error)) from error


def _key(row: Mapping[str, Any]) -> str:
    """What tells problems apart: equal rows are one problem."""
    return "\x1f".join(str(row.get(name)) for name in ("task", "prompt", "answer"))
