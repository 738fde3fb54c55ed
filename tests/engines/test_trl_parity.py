"""With TRL's conventions chosen through our rules, a seeded run is TRL's own: losses, gradients and parameters."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from datasets import Dataset
from trl import GRPOTrainer

from isentrope import Objective, presets
from isentrope.advantage import GroupRelative
from isentrope.engines.trl import ObjectiveTrainer
from isentrope.surrogate import ClippedWeight

from .conftest import length_reward
from .harness import MARKS, Run, relative_distance, train

pytestmark = MARKS

TRL_STD = GroupRelative(eps=1e-4)  # TRL adds 1e-4 to a group's std


@dataclass(frozen=True)
class Case:
    objective: Objective
    options: dict[str, Any]


CASES = {
    "grpo": Case(replace(presets.grpo, advantage=TRL_STD), {"loss_type": "grpo"}),
    "dapo": Case(
        replace(presets.dapo, advantage=TRL_STD, select=()),  # TRL's loss_type filters no groups
        {"loss_type": "dapo", "epsilon_high": 0.28},
    ),
    "dr_grpo": Case(presets.dr_grpo, {"loss_type": "dr_grpo", "scale_rewards": "none"}),
    "cispo": Case(  # TRL's epsilon_high is the cap itself
        replace(presets.cispo, advantage=TRL_STD, surrogate=ClippedWeight(low=None, high=0.05)),
        {"loss_type": "cispo", "epsilon_high": 1.05},
    ),
    "gspo": Case(
        replace(presets.gspo, advantage=TRL_STD),
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
}

SETTINGS: dict[str, dict[str, Any]] = {
    "one update a rollout": {},
    "accumulated": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "several updates a rollout": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
    },
    "one rollout over two updates and a half": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 5,
        "num_generations": 2,
    },
    "two rollouts an update, less at the end of an epoch": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 2,
    },
}
NUM_PROMPTS = {"two rollouts an update, less at the end of an epoch": 10}  # 5 rollouts an epoch: updates of 2, 2 and 1


def both(case: Case, name: str, tiny: Any, config: Any, prompts: Dataset, tokenizer: Any) -> tuple[Run, Run]:
    prompts = prompts.select(range(NUM_PROMPTS.get(name, len(prompts))))
    common = {"train_dataset": prompts, "processing_class": tokenizer, "reward_funcs": length_reward}
    shared = {"max_steps": 5, "optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0} | SETTINGS[name]
    stock = train(GRPOTrainer, model=tiny(), args=config(**shared | case.options), **common)
    ours = train(ObjectiveTrainer, model=tiny(), args=config(**shared), objective=case.objective, **common)
    return stock, ours


def assert_same_run(stock: Run, ours: Run) -> None:
    assert len(ours.gradients) == len(stock.gradients) > 1
    for mine, theirs in zip(ours.gradients, stock.gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert relative_distance(mine, theirs) < 1e-4
    for mine, theirs in zip(ours.parameters, stock.parameters, strict=True):
        assert relative_distance(mine, theirs) < 1e-5
    assert ours.logged("loss") == pytest.approx(stock.logged("loss"), rel=1e-4, abs=1e-6)
    for key in ("reward", "reward_std", "completions/mean_length"):
        assert ours.logged(key) == pytest.approx(stock.logged(key), rel=1e-5)
    # TRL averages the micro-batches' means, we pool their tokens
    assert ours.logged("entropy") == pytest.approx(stock.logged("entropy"), rel=2e-2)


@pytest.mark.parametrize("name", CASES)
def test_several_updates_a_rollout_are_trls(
    name: str, tiny: Callable[[], Any], config: Any, prompts: Dataset, tokenizer: Any
) -> None:
    stock, ours = both(CASES[name], "several updates a rollout", tiny, config, prompts, tokenizer)
    assert_same_run(stock, ours)
    assert sum(ours.logged("clip/high")) > 0, "the example must reach the clip"


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s != "several updates a rollout"])
@pytest.mark.parametrize("name", ["grpo", "dapo"])
@pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")
def test_other_schedules_are_trls(
    name: str, setting: str, tiny: Callable[[], Any], config: Any, prompts: Dataset, tokenizer: Any
) -> None:
    stock, ours = both(CASES[name], setting, tiny, config, prompts, tokenizer)
    assert_same_run(stock, ours)
