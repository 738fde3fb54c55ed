"""The tabular engine: any objective on softmax policies over small problems, with exact numbers beside sampled ones.

`TabularTrainer(objective, recipe)` is a loop of `step()`; files are the business of who calls it. The loop is that of
every engine: sample a rollout batch, `prepare` it once, make `minibatches * passes` updates on slices of it. Columns:
`reward`, `group`, `task`, `mask`, `old_logp`, `old_entropy`, `logp`, `entropy` (exact, with gradient where a rule takes
it), `length_limit`, `length_limit_hit`, and where the objective reads them `rollout_logp` (unrounded), `value` (the
exact critic), `ref_logp` (of the initial policy) and `tempered`. A step returns what `engines.metrics` and
`tabular_metrics` log. Trainers with equal recipes go through the same problems in the same order, whatever their
objectives.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from isentrope.columns import Reads
from isentrope.engines import tabular_metrics as metrics
from isentrope.engines import tabular_policy as policy
from isentrope.engines.state import CheckpointError, check_state
from isentrope.engines.tabular_policy import Rows
from isentrope.engines.tabular_problems import DTYPE, Problems, World, draw, shares, world
from isentrope.engines.tabular_table import settings
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import Evaluation, Model, Recipe, Trainer

HELD_OUT_SEED = 1_000_003  # apart from the training problems' seed
VERSION = 1


@dataclass(frozen=True)
class Update:
    """An optimizer step under way: its rows with the current policy's columns, and who judges them."""

    now: Objective
    rows: dict[str, Tensor]
    sampled: Rows
    totals: Any
    row: Tensor  # [B], their places in the rollout batch


class TabularTrainer:
    """Trains the tables of a recipe's families with an objective.

    Raises IsentropeError for settings that this engine cannot honour, and for families that do not fit.
    """

    def __init__(self, objective: Objective, recipe: Recipe) -> None:
        self.objective, self.recipe, self.settings = objective, recipe, settings(recipe.tabular)
        self.world: World = world([(t.name, t.options, t.weight) for t in recipe.task], self.settings)
        refuse_unhonoured(recipe)
        self.problems = draw(self.world, shares(recipe.trainer.problems, self.world.weights), recipe.seed)
        self.learnt = torch.zeros_like(self.world.prior).requires_grad_()
        self.initial_tables = policy.tables(self.learnt.detach(), self.problems, recipe.trainer.temperature)
        self.optimizer = _optimizer(self.learnt, recipe.trainer, self.settings.optimizer)
        self.state = objective.init()
        self.now = objective
        self.num_steps = 0
        self._prepared: dict[str, Tensor] = {}
        self._sampled = Rows(*(torch.zeros(0),) * 3)
        self._order = torch.zeros(0, dtype=torch.int64)
        self._totals: Any = None
        self._temperature = recipe.trainer.temperature  # of the policy that is trained
        self._num_rollouts = 0
        self._num_tokens = 0
        self._last: Update | None = None
        names = ("choose", "sample", "again")
        self._random = {n: torch.Generator().manual_seed(recipe.seed * 3 + i) for i, n in enumerate(names)}
        self._reads = _columns_read(objective)

    # -- the loop -------------------------------------------------------------------------------------------------

    def step(self, measure: bool = False, log: bool = True) -> dict[str, float]:
        """One optimizer step; the numbers that it logs.

        measure: with exact gradients and who moves the entropy. log: False leaves out what takes time to compute, which
        changes nothing of the run.
        """
        part = self.num_steps % self.recipe.trainer.updates_per_rollout
        logged = {"stage": float(self.stage_now())} if self.recipe.stage else {}
        logged |= self._rollout() if part == 0 else {}
        self._last = update = self._update(part)
        loss = update.now.loss(update.rows, update.totals)
        self.optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(loss)
        logged |= metrics.of_update(self, update, float(loss.detach())) if log else {}
        before = metrics.exact_before(self, update) if measure else None
        logged |= self._descend()
        self.num_steps += 1
        logged |= metrics.exact(self) if log else {}
        return logged | (metrics.exact_after(self, before) if before is not None else {}) | self._controllers()

    def _descend(self) -> dict[str, float]:
        bound = self.recipe.trainer.max_grad_norm or torch.inf
        norm = torch.nn.utils.clip_grad_norm_([self.learnt], bound)
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return {"grad_norm": float(norm), "learning_rate": rate}

    def learning_rate(self) -> float:
        """That of the step to come, by the recipe's schedule."""
        loop, done = self.recipe.trainer, self.num_steps
        if loop.lr_schedule != "constant" and done < loop.warmup_steps:
            return loop.learning_rate * done / loop.warmup_steps
        left = max(1, loop.steps - loop.warmup_steps)
        share = min(1.0, max(0.0, (done - loop.warmup_steps) / left))
        if loop.lr_schedule == "linear":
            return loop.learning_rate * (1 - share)
        if loop.lr_schedule == "cosine":
            return loop.learning_rate * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * share))))
        return loop.learning_rate

    def _controllers(self) -> dict[str, float]:
        return {f"controller/{name}": x for name, x in self.state.items()}

    # -- a rollout batch ------------------------------------------------------------------------------------------

    def _rollout(self) -> dict[str, float]:
        """Sample and prepare a rollout batch; the numbers that it logs."""
        rule = self.objective.at(self.state).rollout
        problem = self._choose(self.recipe.trainer.prompts)
        sampled, columns = self._sample(problem, rule)
        for _ in range(int(rule.rounds)):
            sampled, columns = self._replace_uniform(sampled, columns, rule)
        self._prepared, self.state = self.objective.prepare(columns, self.state)
        self.now = self.objective.at(self.state)
        self._sampled = sampled
        self._totals = self.now.count(self._prepared).scaled(1 / self.recipe.trainer.minibatches)
        self._order = torch.randperm(len(problem) * self.recipe.trainer.group_size, generator=self._random["sample"])
        self._num_rollouts += 1
        self._num_tokens += int(columns["mask"].sum())
        return metrics.of_rollout(self, self._prepared, columns) | {"num_tokens": self._num_tokens}

    def stage_now(self) -> int:
        """The stage that the next step belongs to, 1 the first; 0 where there are none."""
        done = self.num_steps
        for number, stage in enumerate(self.recipe.stage, start=1):
            if done < stage.steps:
                return number
            done -= stage.steps
        return len(self.recipe.stage)

    def tasks_now(self) -> tuple[int, ...]:
        """The tasks of that stage, by number."""
        stage = self.stage_now()
        names = self.recipe.stage[stage - 1].tasks if stage else self.world.names
        return tuple(sorted(self.world.names.index(name) for name in names))

    def _choose(self, count: int) -> Tensor:
        """`count` problems of the stage's tasks: as many of each as its weight says, drawn without replacement."""
        tasks = self.tasks_now()
        parts = []
        for task, number in zip(tasks, shares(count, [self.world.weights[t] for t in tasks]), strict=True):
            own = (self.problems.task == task).nonzero().squeeze(1)
            turns = -(-number // len(own)) if len(own) else 0
            drawn = [torch.randperm(len(own), generator=self._random["choose"]) for _ in range(turns)]
            parts += [own[torch.cat(drawn)[:number]]] if drawn else []
        return torch.cat(parts)

    def _sample(self, problem: Tensor, rule: Any) -> tuple[Rows, dict[str, Tensor]]:
        """Completions of problems, `group_size` each, and their columns."""
        each, base = self.recipe.trainer.group_size, self.recipe.trainer.temperature
        rows = problem.repeat_interleave(each)
        group = torch.arange(len(problem)).repeat_interleave(each)
        own = base if rule.temperature is None else float(rule.temperature)
        tempered = group < round(rule.share * len(problem)) if own != base else torch.zeros_like(group).bool()
        self._temperature = own if rule.share == 1 else base
        temperature = torch.where(tempered, torch.tensor(own, dtype=DTYPE), torch.tensor(base, dtype=DTYPE))
        with torch.no_grad():
            sampled = policy.sample(self.learnt, self.problems, rows, temperature, self._random["sample"])
            return sampled, self._columns(sampled, group, tempered if rule.share < 1 else None)

    def _columns(self, sampled: Rows, group: Tensor, tempered: Tensor | None) -> dict[str, Tensor]:
        states = policy.states(self.learnt, self.problems, sampled, self._temperature)
        logp, length = policy.chosen(states, sampled.symbols), sampled.symbols.shape[1]
        full = sampled.mask.all(1) & (sampled.symbols[:, -1] != 0) & self.settings.ends
        columns = {
            "reward": policy.rewards(self.problems, sampled),
            "group": group,
            "task": self.problems.task[sampled.problem],
            "mask": sampled.mask,
            "old_logp": policy.rounded(logp, self.settings.precision),
            "old_entropy": policy.state_entropy(states),
            "length_limit": torch.full((len(group),), float(length), dtype=DTYPE),
            "length_limit_hit": full,
        }
        if tempered is not None:
            columns["tempered"] = tempered
        if "rollout_logp" in self._reads:
            columns["rollout_logp"] = logp
        if "ref_logp" in self._reads:
            initial = policy.states(torch.zeros_like(self.learnt), self.problems, sampled, self._temperature)
            columns["ref_logp"] = policy.rounded(policy.chosen(initial, sampled.symbols), self.settings.precision)
        if "value" in self._reads:
            columns["value"] = policy.value(self.learnt, self.problems, sampled, self._temperature)
        return columns

    def _replace_uniform(self, sampled: Rows, columns: dict[str, Tensor], rule: Any) -> tuple[Rows, dict[str, Tensor]]:
        """Dynamic sampling: groups without reward variance are replaced by groups of other problems where those have
        some.
        """
        each = self.recipe.trainer.group_size
        rewards = columns["reward"].view(-1, each)
        dull = (rewards.amax(1) == rewards.amin(1)).nonzero().squeeze(1)
        if not len(dull):
            return sampled, columns
        place = torch.randint(len(self.problems), (len(dull),), generator=self._random["again"])
        tasks = torch.tensor(self.tasks_now())
        allowed = torch.isin(self.problems.task, tasks).nonzero().squeeze(1)
        other, fresh = self._sample(allowed[place % len(allowed)], rule)
        lively = fresh["reward"].view(-1, each)
        keep = (lively.amax(1) != lively.amin(1)).nonzero().squeeze(1)
        into, source = ((x[:, None] * each + torch.arange(each)).flatten() for x in (dull[keep], keep))
        fresh["group"] = columns["group"][(dull[:, None] * each + torch.arange(each)).flatten()]
        merged = {name: x.index_copy(0, into, fresh[name][source]) for name, x in columns.items()}
        pairs = ((getattr(sampled, f.name), getattr(other, f.name)) for f in fields(Rows))
        return Rows(*(x.index_copy(0, into, y[source]) for x, y in pairs)), merged

    # -- an update ------------------------------------------------------------------------------------------------

    def _update(self, part: int) -> Update:
        """The minibatch of update `part` on the rollout batch in use, with the current policy's columns."""
        loop = self.recipe.trainer
        size = loop.rows // loop.minibatches
        start = part % loop.minibatches * size
        index = self._order[start : start + size]
        sampled = Rows(*(getattr(self._sampled, f.name)[index] for f in fields(Rows)))
        rows = {name: x[index] for name, x in self._prepared.items()}
        states = policy.states(self.learnt, self.problems, sampled, self._temperature)
        entropy = policy.state_entropy(states if "entropy" in self.objective.columns().gradient else states.detach())
        logp = policy.rounded(policy.chosen(states, sampled.symbols), self.settings.precision)
        current = {"logp": logp, "entropy": entropy, "squared_mass": policy.squared_mass(states.detach())}
        return Update(self.now, rows | current, sampled, self._totals, index)

    def token_columns(self) -> dict[str, Tensor]:
        """The rows of the step just made, for a token dump: what the update saw before its step."""
        update = self._last
        assert update is not None, "a step was made"
        now, rows = update.now, {name: x.detach() for name, x in update.rows.items()}
        size = self.recipe.trainer.group_size
        first = (self._num_rollouts - 1) * self.recipe.trainer.rows
        found = {
            "mask": update.sampled.mask,
            "token_id": update.sampled.symbols,
            "row": first + update.row,
            "group": (first + update.row) // size,
            "weight": now.weights(rows, update.totals),
            "advantage": now.shaped(rows),
        }
        if len(self.world.names) > 1:
            found["task"] = rows["task"]
        names = ("logp", "old_logp", "rollout_logp", "entropy")
        return found | {name: rows[name] for name in names if name in rows}

    # -- evaluation and checkpoints -------------------------------------------------------------------------------

    def held_out(self) -> list[Problems]:
        """Problems that are not trained on, of each task."""
        number, seed = self.recipe.evaluation.problems, HELD_OUT_SEED + self.recipe.seed
        counts = [
            [number if i == task else 0 for i in range(len(self.world.names))] for task in range(len(self.world.names))
        ]
        return [draw(self.world, each, seed) for each in counts] if number else []

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run needs to go on bit for bit, as tensors and plain values."""
        return {
            "version": VERSION,
            "num_steps": self.num_steps,
            "num_rollouts": self._num_rollouts,
            "num_tokens": self._num_tokens,
            "learnt": self.learnt.detach(),
            "optimizer": self.optimizer.state_dict(),
            "controllers": dict(self.state),
            "random": {name: generator.get_state() for name, generator in self._random.items()},
            "prepared": self._prepared,
            "sampled": [getattr(self._sampled, f.name) for f in fields(Rows)],
            "order": self._order,
            "temperature": self._temperature,
        }

    def load_state_dict(self, saved: dict[str, Any], folder: str = "the checkpoint") -> None:
        """The inverse of `state_dict`. CheckpointError for the state of other controllers."""
        check_state(folder, saved["controllers"], self.objective)
        if saved.get("version") != VERSION:
            raise CheckpointError(
                f"{folder} has version {saved.get('version')!r}; this library reads version {VERSION}"
            )
        self.num_steps, self._num_rollouts = saved["num_steps"], saved["num_rollouts"]
        self._num_tokens = saved["num_tokens"]
        with torch.no_grad():
            self.learnt.copy_(saved["learnt"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.state = dict(saved["controllers"])
        self.now = self.objective.at(self.state)
        for name, generator in self._random.items():
            generator.set_state(saved["random"][name])
        self._prepared, self._order = dict(saved["prepared"]), saved["order"]
        self._sampled, self._temperature = Rows(*saved["sampled"]), saved["temperature"]
        if self._prepared:
            self._totals = self.now.count(self._prepared).scaled(1 / self.recipe.trainer.minibatches)


def _columns_read(objective: Objective) -> Reads:
    needs = objective.columns()
    return Reads(needs.prepare | needs.loss, needs.optional)


def _optimizer(parameter: Tensor, loop: Trainer, kind: str) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD([parameter], lr=loop.learning_rate)
    return torch.optim.Adam([parameter], lr=loop.learning_rate)


def refuse_unhonoured(recipe: Recipe) -> None:
    """IsentropeError for a key that was changed and has no meaning in this engine."""
    loop, base = recipe.trainer, Trainer()
    asked = {
        "[model] name": recipe.model.name != Model().name,
        "[model] dtype (use [tabular] precision)": recipe.model.dtype != Model().dtype,
        "[trainer] micro_batch": loop.micro_batch != base.micro_batch,
        "[trainer] sampler": loop.sampler != base.sampler,
        "[trainer] max_completion_length (use [tabular] length)": loop.max_completion_length
        != base.max_completion_length,
        "[evaluation] batch": recipe.evaluation.batch != Evaluation().batch,
        "[output] report_to": bool(recipe.output.report_to),
    }
    found = [name for name, is_set in asked.items() if is_set]
    if found:
        raise IsentropeError(f"engine tabular has no use for {', '.join(found)}; leave it out")
