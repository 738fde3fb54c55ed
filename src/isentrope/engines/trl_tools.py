"""Rollouts of several turns in TRL, for tasks with an environment of their own.

TRL's own way, `tools` and `environment_factory`, calls functions that a model names in the format of its chat template;
`ObjectiveTrainer` takes both, and what tools write is masked out of every statistic. A model without such a template
plays the tasks of `isentrope.tasks.turns` through this rollout function instead:

    mix = tasks.get_mix("apps=2,countdown=1")
    trainer = ObjectiveTrainer(..., rollout_func=TaskRollouts(mix))

What the environment writes reaches TRL as `env_mask`, which becomes `tool_mask` and the holes of the column `mask`.
"""

import json
from collections.abc import Sequence
from typing import Any

import torch

from isentrope.engines.trl_options import OptionError
from isentrope.engines.trl_sampler import check_sampling, shared_prefill
from isentrope.episodes import play
from isentrope.tasks.base import Example
from isentrope.tasks.registry import Mix, weighted
from isentrope.tasks.turns import is_interactive


class TaskRollouts:
    """TRL's `rollout_func` for a mix: episodes of interactive tasks, single completions (`shared_prefill`) of others.

    The data set's rows are those of `tasks.dataset_rows`. Seeds come from torch's random state, which a checkpoint
    keeps: a resumed run samples what the uninterrupted one would have.
    Raises OptionError as `shared_prefill` does, and where a part of the rows is sampled at another temperature.
    """

    def __init__(self, mix: Mix) -> None:
        self._tasks = {task.name: task for task, _ in weighted(mix)}

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """See TRL's `rollout_func`; logprobs are None, env_mask is 1 at the policy's tokens."""
        check_sampling(trainer)
        rows = trainer.rollout_examples
        if len(rows) != len(prompts):
            raise OptionError(
                "episodes of several turns cannot be sampled in parts at several temperatures: leave the objective's "
                "Rollout(share=...) at 1"
            )
        several = [i for i, row in enumerate(rows) if is_interactive(self._task(row))]
        single = [i for i in range(len(rows)) if i not in set(several)]
        found: dict[int, tuple[list[int], list[int], list[int]]] = {}
        for name in sorted({rows[i]["task"] for i in several}):
            found |= self._play(name, [i for i in several if rows[i]["task"] == name], trainer)
        if single:
            plain = shared_prefill([prompts[i] for i in single], trainer)
            pairs = zip(single, plain["prompt_ids"], plain["completion_ids"], strict=True)
            found |= {i: (prompt, ids, [1] * len(ids)) for i, prompt, ids in pairs}
        columns = zip(*(found[i] for i in range(len(rows))), strict=True)
        keys = ("prompt_ids", "completion_ids", "env_mask")
        return dict(zip(keys, map(list, columns), strict=True)) | {"logprobs": None}

    def _task(self, row: dict[str, Any]) -> Any:
        if row.get("task") not in self._tasks:
            raise OptionError(
                f"a row belongs to task {row.get('task')!r}, which the rollout function lacks; it has "
                f"{', '.join(self._tasks)}"
            )
        return self._tasks[row["task"]]

    def _play(
        self, name: str, places: Sequence[int], trainer: Any
    ) -> dict[int, tuple[list[int], list[int], list[int]]]:
        rows, task = trainer.rollout_examples, self._tasks[name]
        assert is_interactive(task)
        episodes = play(
            trainer.accelerator.unwrap_model(trainer.model),
            trainer._tokenizer,
            task,
            [Example(rows[i]["prompt"], json.loads(rows[i]["answer"]), name) for i in places],
            trainer.max_completion_length,
            temperature=trainer.temperature,
            seeds=torch.randint(2**62, (len(places),)).tolist(),
            batch_size=len(places),
        )
        pairs = zip(places, episodes, strict=True)
        return {i: (one.prompt, one.tokens, list(map(int, one.mask))) for i, one in pairs}
