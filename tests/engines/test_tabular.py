"""The tabular trainer: the loop of every engine on policies of which everything is known."""

import math
import time
import warnings
from dataclasses import replace

import pytest
import torch

from isentrope import presets, recipe
from isentrope.control import EntropyPI
from isentrope.correction import TruncatedImportance
from isentrope.engines.state import CheckpointError
from isentrope.engines.tabular import TabularTrainer
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.penalty import ReferenceKL

TASKS = """
[[task]]
name = "sharp"
options = { entropy = 0.2 }
[[task]]
name = "flat"
weight = 3.0
options = { entropy = 0.9 }
"""
LOOP = """
[trainer]
steps = 40
problems = 32
prompts = 8
group_size = 4
minibatches = 2
passes = 2
learning_rate = 0.1
"""
CHAINS = "[tabular]\nlength = 3\nvocabulary = 5\n"
STAGES = '[[stage]]\ntasks = ["sharp"]\nsteps = 12\n[[stage]]\ntasks = ["flat"]\nsteps = 28\n'


def trainer_of(objective: Objective, *parts: str, loop: str = LOOP) -> TabularTrainer:
    return TabularTrainer(objective, recipe.parse('engine = "tabular"\n' + TASKS + loop + "\n".join(parts)))


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_trains(name: str) -> None:
    trainer = trainer_of(getattr(presets, name), CHAINS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        logged = [trainer.step(measure=True) for _ in range(6)]
    assert all(math.isfinite(x) for line in logged for x in line.values())
    assert logged[-1]["exact/kl_start"] > 0  # it moved
    assert any(line.get("diagnostics/measured_change") for line in logged)


def test_training_raises_the_expected_reward() -> None:
    trainer = trainer_of(presets.grpo, loop=LOOP.replace("steps = 40", "steps = 200"))
    logged = [trainer.step() for _ in range(200)]
    assert logged[-1]["exact/reward"] > logged[0]["exact/reward"] + 0.2
    assert logged[-1]["exact/entropy"] < 0.7 * logged[0]["exact/entropy"]


@pytest.mark.parametrize("name", ["adapo", "arbitrary_entropy", "dapo_full"])
@pytest.mark.parametrize("at", [16, 18])  # between two rollout batches, and in the middle of one
def test_a_run_goes_on_bit_for_bit(name: str, at: int) -> None:
    objective = getattr(presets, name)
    straight, first = trainer_of(objective, CHAINS), trainer_of(objective, CHAINS)
    for _ in range(at):
        straight.step()
        first.step()
    second = trainer_of(objective, CHAINS)
    second.load_state_dict(first.state_dict())
    for _ in range(10):
        assert straight.step() == second.step()
    assert torch.equal(straight.learnt, second.learnt)


def test_the_state_of_another_objective_is_refused() -> None:
    saved = trainer_of(presets.adapo).state_dict()
    with pytest.raises(CheckpointError, match="holds the state of another objective"):
        trainer_of(presets.grpo).load_state_dict(saved)
    with pytest.raises(CheckpointError, match="has version 0; this library reads version 1"):
        trainer_of(presets.adapo).load_state_dict(saved | {"version": 0})


def test_objectives_see_the_same_problems_in_the_same_order() -> None:
    seen = []
    for objective in (presets.grpo, presets.repo_d, presets.dapo_full):
        trainer, own = trainer_of(objective), []
        choose = trainer._choose

        def noted(count: int, choose=choose, own=own) -> torch.Tensor:
            own.append(choose(count))
            return own[-1]

        trainer._choose = noted  # type: ignore[method-assign]
        for _ in range(12):
            trainer.step()
        seen.append(torch.stack(own))
    assert seen[0].shape == (3, 8)
    assert torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0], seen[2])
    assert (trainer.problems.task[seen[0]] == 0).sum(1).tolist() == [6, 6, 6]  # flat has three quarters of the weight


def test_every_pass_goes_through_every_row_once() -> None:
    trainer = trainer_of(presets.grpo)
    parts = []
    for _ in range(4):  # two minibatches, two passes
        trainer.step()
        assert trainer._last is not None
        parts.append(trainer._last.row.tolist())
        assert trainer._last.rows["reward"].tolist() == trainer._prepared["reward"][trainer._last.row].tolist()
    assert sorted(parts[0] + parts[1]) == list(range(32))
    assert parts[2:] == parts[:2]
    assert parts[0] != sorted(parts[0])  # shuffled


def test_a_step_changes_entropy_as_first_order_theory_says() -> None:
    """The error is of second order: a tenth of the learning rate makes it a hundredth."""
    errors = []
    for rate in ("0.1", "0.01"):
        sgd = LOOP.replace("learning_rate = 0.1", f"learning_rate = {rate}\nmax_grad_norm = 0.0")
        trainer = trainer_of(presets.rloo, '[tabular]\noptimizer = "sgd"\n', loop=sgd)
        logged = trainer.step(measure=True)
        assert abs(logged["diagnostics/measured_change"]) > 1e-5 * float(rate)
        errors.append(abs(logged["diagnostics/predicted_change"] - logged["diagnostics/measured_change"]))
    assert errors[1] < errors[0] / 50


def test_sampled_gradients_point_along_the_exact_one() -> None:
    many = LOOP.replace("group_size = 4", "group_size = 256").replace("minibatches = 2", "minibatches = 1")
    logged = trainer_of(presets.rloo, loop=many).step(measure=True)
    assert logged["exact/gradient_cosine"] > 0.97
    few = trainer_of(presets.rloo).step(measure=True)
    assert few["exact/gradient_cosine"] < 0.95


def test_all_ratios_are_one_in_the_first_update_at_every_precision() -> None:
    for precision in ("fp32", "bf16", "fp16"):
        trainer = trainer_of(presets.grpo, f'[tabular]\nprecision = "{precision}"\n')
        logged = [trainer.step() for _ in range(2)]
        assert logged[0]["ratio/mean"] == 1
        assert logged[1]["ratio/mean"] != 1


def test_rounding_separates_the_trainer_from_the_sampler() -> None:
    corrected = replace(presets.grpo, correction=TruncatedImportance())
    gaps = [
        trainer_of(corrected, f'[tabular]\nprecision = "{precision}"\n').step()["kl_rollout"]
        for precision in ("fp32", "fp16", "bf16")
    ]
    assert gaps[0] < 1e-12 < gaps[1] < gaps[2]


def test_dynamic_sampling_replaces_groups_of_equal_reward() -> None:
    full = trainer_of(replace(presets.grpo, rollout=presets.dapo_full.rollout)).step()
    assert full["frac_reward_zero_std"] < trainer_of(presets.grpo).step()["frac_reward_zero_std"]


def test_a_controlled_temperature_is_that_of_the_policy() -> None:
    hotter = EntropyPI(start=1.5, kp=0.1, low=0.5, high=2.0, target=1.0)
    objective = replace(presets.grpo, rollout=replace(presets.grpo.rollout, temperature=hotter))
    trainer = trainer_of(objective)
    first = trainer.step()
    assert first["rollout/temperature"] == pytest.approx(trainer.state["rollout.temperature.value"])
    assert first["entropy/old_exact"] > trainer_of(presets.grpo).step()["entropy/old_exact"]
    assert first["ratio/mean"] == 1


def test_tempered_prompts_are_marked_and_judged_at_the_policys_temperature() -> None:
    half = replace(presets.arbitrary_entropy.rollout, share=0.5)
    trainer = trainer_of(replace(presets.arbitrary_entropy, rollout=half))
    logged = trainer.step()
    assert trainer._prepared["tempered"].sum() == 16  # four of eight prompts, four completions each
    assert "rollout/tempered_reward" in logged
    assert logged["ratio/mean"] == 1


def test_a_reference_is_the_initial_policy() -> None:
    trainer = trainer_of(replace(presets.grpo, penalties=(ReferenceKL(coef=0.1),)))
    logged = [trainer.step() for _ in range(8)]
    assert logged[0]["kl"] == 0
    assert logged[7]["kl"] > 0


def test_stages_train_their_tasks_alone() -> None:
    trainer = trainer_of(presets.grpo, STAGES)
    tasks, stages = [], []
    for _ in range(40):
        stages.append(trainer.step()["stage"])
        tasks.append(set(trainer._prepared["task"].tolist()))
    assert trainer.world.names == ("flat", "sharp")
    assert tasks[:12] == [{1}] * 12
    assert tasks[12:] == [{0}] * 28
    assert stages == [1.0] * 12 + [2.0] * 28
    assert "stage" not in trainer_of(presets.grpo).step()


@pytest.mark.parametrize(
    ("schedule", "at_start", "halfway", "at_end"),
    [("constant", 0.1, 0.1, 0.1), ("linear", 0.0, 0.1, 0.0), ("cosine", 0.0, 0.1, 0.0)],
)
def test_the_learning_rate_follows_its_schedule(schedule: str, at_start: float, halfway: float, at_end: float) -> None:
    loop = LOOP + f'lr_schedule = "{schedule}"\nwarmup_steps = 20\n'
    trainer, found = trainer_of(presets.grpo, loop=loop), []
    for step in (0, 20, 40):
        trainer.num_steps = step
        found.append(trainer.learning_rate())
    assert found == pytest.approx([at_start, halfway, at_end])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.name", "gpt2"),
        ("model.dtype", "bfloat16"),
        ("trainer.micro_batch", 4),
        ("trainer.sampler", "transformers"),
        ("trainer.max_completion_length", 8),
        ("evaluation.batch", 8),
        ("output.report_to", ["wandb"]),
    ],
)
def test_what_has_no_meaning_here_is_refused(key: str, value: object) -> None:
    found = recipe.load("tabular", overrides={key: value})
    with pytest.raises(IsentropeError, match=rf"engine tabular has no use for \[{key.split('.')[0]}\]"):
        TabularTrainer(presets.grpo, found)


def test_held_out_problems_are_others() -> None:
    trainer = trainer_of(presets.grpo, "[evaluation]\nproblems = 5\n")
    held_out = trainer.held_out()
    assert [len(part) for part in held_out] == [5, 5]
    assert [set(part.task.tolist()) for part in held_out] == [{0}, {1}]
    trained = trainer.problems.logits
    assert not any((one == trained).all((1, 2, 3)).any() for part in held_out for one in part.logits)


@pytest.mark.slow
def test_a_thousand_updates_of_eight_tasks_take_seconds() -> None:
    trainer = TabularTrainer(presets.ce_gppo, recipe.load("tabular"))
    assert len(trainer.world.names) == 8
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    started = time.process_time()
    for _ in range(1000):
        trainer.step()
    torch.set_num_threads(before)
    assert time.process_time() - started < 10  # seconds of one core
