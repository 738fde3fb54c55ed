"""An order of prompts in TRL: weights in every rollout batch, a curriculum, and both resumed exactly."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset

from isentrope import presets
from isentrope.engines.trl import CheckpointError, ObjectiveTrainer, OptionError
from isentrope.engines.trl_mix import Prompts
from isentrope.rollout import Rollout
from isentrope.select import VaryingReward
from isentrope.tasks.curriculum import Curriculum
from isentrope.tasks.mix import Batches, Order, Stretch

from .harness import MARKS, Run, train
from .test_trl_resume import lines_after

pytestmark = MARKS

# rollouts of 4 prompts x 2 rows; each serves 4 updates, so steps 1 to 3 of 4 are in the middle of one
SCHEDULE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
    "num_iterations": 2,
    "num_generations": 2,
}
ORDERS = {
    "weights": Order(weights={"a": 2.0, "b": 1.0}),
    "curriculum": Order(curriculum=Curriculum(low=0.3, high=0.7, width=0.0, floor=0.01, keep=0.5)),
    "stages": Order(stages=(Stretch(("a",), 1), Stretch(("b",), 2), Stretch(("a", "b"), 2))),
}


class Seen:
    """A reward function that keeps the prompts of every rollout batch."""

    __name__ = "seen"

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        """Passes odd numbers always, the others never; the length breaks ties among what passes."""
        self.batches.append(prompts[::2])
        odd = [int(prompt.split("+")[0]) % 2 == 1 for prompt in prompts]
        return [1.0 + len(ids) / 100 if o else sum(ids) % 7 / 10 for o, ids in zip(odd, completion_ids, strict=True)]


class Constant(Seen):
    """The same reward for all: every group is sampled again."""

    def __call__(self, prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
        super().__call__(prompts, completion_ids)
        return [1.0] * len(prompts)


@pytest.fixture
def go(tiny: Callable[[], Any], config: Callable[..., Any], tokenizer: Any, tmp_path: Path) -> Callable[..., Any]:
    """go(order, folder, resume): train on 9 prompts, 5 of task a and 4 of b; an epoch of TRL's is 2 rollouts."""
    data = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(9)], "task": ["a"] * 5 + ["b"] * 4})

    def run(
        order: Order | None,
        folder: str = "out",
        resume: str | None = None,
        data: Dataset = data,
        held_out: Dataset | None = None,
        objective: Any = "ce_gppo",
        reward: Seen | None = None,
        **options: Any,
    ) -> tuple[Run, list[list[str]]]:
        settings = SCHEDULE | {"save_strategy": "steps", "max_steps": 20, "save_steps": 1} | options
        seen = reward or Seen()
        found = train(
            ObjectiveTrainer,
            resume=resume,
            model=tiny(),
            args=config(output_dir=str(tmp_path / folder), **settings),
            train_dataset=data,
            eval_dataset=held_out,
            processing_class=tokenizer,
            reward_funcs=seen,
            objective=objective,
            order=order,
        )
        return found, seen.batches

    return run


def tasks_of(batch: list[str]) -> Counter[str]:
    return Counter("a" if int(prompt.split("+")[0]) < 5 else "b" for prompt in batch)


def test_every_rollout_batch_keeps_the_weights(go: Any) -> None:
    _, batches = go(ORDERS["weights"], save_strategy="no")
    assert len(batches) == 5
    expected = Batches(["a"] * 5 + ["b"] * 4, 4, 1, {"a": 2.0, "b": 1.0})
    assert [tasks_of(batch) for batch in batches] == [expected.counts(n) for n in range(5)]
    assert batches == [[f"{row}+{row}=" for row in expected(n)] for n in range(5)]
    shuffled = go(None, save_strategy="no")[1]
    assert [tasks_of(batch) for batch in shuffled] != [tasks_of(batch) for batch in batches]


@pytest.mark.parametrize("name", [pytest.param("weights", marks=pytest.mark.slow), "curriculum", "stages"])
def test_a_resumed_mix_is_the_uninterrupted_one(name: str, go: Any, tmp_path: Path) -> None:
    whole, batches = go(ORDERS[name], "whole")
    assert len(batches) == 5
    for step in (2, 4, 9):  # in the middle of the first rollout, between two (and stages), in TRL's second epoch
        resumed, rest = go(ORDERS[name], "again", resume=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert rest == batches[-(-step // 4) :]
        for a, b in zip(resumed.parameters, whole.parameters[step:], strict=True):
            assert torch.equal(a, b)
        assert lines_after(resumed, step) == lines_after(whole, step)
        assert resumed.trainer._prompts.state() == whole.trainer._prompts.state()


def test_stages_follow_each_other_and_every_step_says_which(go: Any) -> None:
    run, batches = go(ORDERS["stages"], save_strategy="no", max_steps=24)
    assert [set(tasks_of(batch)) for batch in batches] == [{"a"}, {"b"}, {"b"}, {"a", "b"}, {"a", "b"}, {"a", "b"}]
    assert run.logged("stage") == [1.0] * 4 + [2.0] * 8 + [3.0] * 12
    assert "stage" not in go(None, save_strategy="no", max_steps=1)[0].history[0]


def test_a_curriculum_prefers_among_the_problems_of_the_stage(go: Any) -> None:
    order = replace(ORDERS["stages"], curriculum=Curriculum(floor=0.01))
    run, batches = go(order, save_strategy="no")
    assert [set(tasks_of(batch)) for batch in batches[:3]] == [{"a"}, {"b"}, {"b"}]
    assert run.logged("curriculum/new")[:2] == [1.0, 1.0]


def test_further_prompts_of_a_stage_are_of_its_tasks(go: Any) -> None:
    objective = replace(presets.dapo_full, select=(VaryingReward(),), rollout=Rollout(rounds=2))
    run, batches = go(ORDERS["stages"], objective=objective, reward=Constant(), save_strategy="no", max_steps=12)
    assert run.logged("dynamic_sampling/rounds") == [2.0] * 3
    assert len(batches) == 9  # a first sampling and two rounds each
    assert [set(tasks_of(batch)) for batch in batches] == [{"a"}] * 3 + [{"b"}] * 6


@pytest.mark.slow
def test_a_curriculum_prefers_what_passes_now_and_then(go: Any) -> None:
    order = Order(curriculum=Curriculum(low=0.0, high=0.5, width=0.0, floor=1e-6))
    run, batches = go(order, save_strategy="no", max_steps=48)
    rates = run.trainer._prompts.state()["rates"]
    assert set(rates) <= {0.0, 1.0}  # odd prompts always pass, even ones never
    late = [int(prompt.split("+")[0]) for batch in batches[6:] for prompt in batch]
    assert all(number % 2 == 0 for number in late)
    assert run.logged("curriculum/seen")[0] == 0.0
    assert run.logged("curriculum/seen")[-1] == 1.0
    assert run.logged("curriculum/new")[0] == 1.0
    assert run.logged("curriculum/new")[-1] == 0.0
    assert run.logged("curriculum/in_band")[-1] == pytest.approx(5 / 9)
    assert run.logged("curriculum/pass_rate")[-1] == 0.0


def test_a_task_keeps_its_share_under_a_curriculum(go: Any) -> None:
    order = Order(weights={"a": 1.0, "b": 3.0}, curriculum=Curriculum(floor=0.01))
    _, batches = go(order, save_strategy="no", max_steps=24)
    assert [tasks_of(batch) for batch in batches] == [{"a": 1, "b": 3}] * 6


@pytest.mark.parametrize("name", ["weights", "curriculum"])
def test_a_batch_is_in_random_order_so_that_its_first_groups_are_of_no_task_in_particular(name: str) -> None:
    data = Dataset.from_dict({"prompt": [f"{i}" for i in range(9)], "task": ["a"] * 5 + ["b"] * 4})
    prompts = Prompts(ORDERS[name], data, 4, seed=0)
    batches = [prompts.rows(number) for number in range(30)]
    assert {row < 5 for row in (batch[0] for batch in batches)} == {True, False}
    assert batches == [Prompts(ORDERS[name], data, 4, seed=0).rows(number) for number in range(30)]
    assert batches != [Prompts(ORDERS[name], data, 4, seed=1).rows(number) for number in range(30)]


def test_evaluation_keeps_its_own_prompts_and_leaves_the_pass_rates_alone(go: Any) -> None:
    held_out = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(20, 24)], "task": ["a", "b"] * 2})
    options = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "save_strategy": "no"}
    run, batches = go(ORDERS["curriculum"], held_out=held_out, max_steps=8, **options)
    asked = {int(prompt.split("+")[0]) for batch in batches for prompt in batch}
    assert {20, 21, 22, 23} <= asked
    plain, _ = go(ORDERS["curriculum"], max_steps=8, save_strategy="no")
    assert len(run.trainer._prompts.state()["rates"]) == len(plain.trainer._prompts.state()["rates"]) == 9


def test_a_checkpoint_with_other_pass_rates_is_refused(go: Any, tmp_path: Path) -> None:
    go(ORDERS["curriculum"], "whole", max_steps=2)
    checkpoint = str(tmp_path / "whole" / "checkpoint-2")
    with pytest.raises(CheckpointError, match="saved with a curriculum and this run has no curriculum"):
        go(None, "again", resume=checkpoint)
    fewer = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(8)], "task": ["a"] * 4 + ["b"] * 4})
    with pytest.raises(CheckpointError, match="the pass rates are of 9 problems, the data set has 8"):
        go(ORDERS["curriculum"], "again", resume=checkpoint, data=fewer)
    go(None, "plain", max_steps=2)
    with pytest.raises(CheckpointError, match="saved with no curriculum and this run has a curriculum"):
        go(ORDERS["curriculum"], "again", resume=str(tmp_path / "plain" / "checkpoint-2"))


def test_what_has_no_order_is_refused(go: Any) -> None:
    bare = Dataset.from_dict({"prompt": ["1+1="] * 8})
    with pytest.raises(OptionError, match="has weights of tasks and the data set no column `task`"):
        go(ORDERS["weights"], data=bare)
    with pytest.raises(OptionError, match="has stages of tasks and the data set no column `task`"):
        go(ORDERS["stages"], data=bare)
    with pytest.raises(OptionError, match="load it whole"):
        go(ORDERS["weights"], data=bare.to_iterable_dataset())
    with pytest.raises(OptionError, match="shuffle_dataset=False asks for the data's own order"):
        go(ORDERS["weights"], shuffle_dataset=False)
