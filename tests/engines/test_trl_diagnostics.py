"""Live diagnostics: what is measured on which step, and that it is the truth."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback

from isentrope import diagnostics, presets
from isentrope.curves import correlation, cumulative_entropy
from isentrope.engines.trl_diagnostics import LiveDiagnostics, Place
from isentrope.engines.trl_metrics import MetricPool
from isentrope.surrogate import ClippedWeight, EntropyRatioClip, PPOClip

from .harness import MARKS

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]

OFF_POLICY = {"steps_per_generation": 2, "num_iterations": 2, "per_device_train_batch_size": 4}  # 4 updates a rollout
TAMED = {"learning_rate": 1e-3}


def steps_with(done: Any, key: str) -> list[int]:
    return [line["step"] for line in done.history if key in line]


def test_the_place_of_an_update_and_what_comes_after_it() -> None:
    assert Place(20, 4, 4).is_due(10)
    assert not Place(19, 3, 4).is_due(10)
    assert Place(19, 3, 4).is_before_one(10)
    assert Place(17, 1, 4).is_before_one(10)
    assert not Place(16, 4, 4).is_before_one(10)
    assert not Place(20, 4, 4).is_before_one(10)
    assert Place(4, 1, 4).is_before_one(2)
    assert not Place(20, 1, 4).is_due(0)
    assert not Place(20, 1, 4).is_before_one(0)


def test_nothing_is_measured_unless_asked(run: Callable[..., Any]) -> None:
    done = run("ce_gppo", OFF_POLICY | TAMED)
    assert not [key for line in done.history for key in line if "diagnostics" in key or "numerical" in key]


def test_measuring_changes_nothing_of_the_run(run: Callable[..., Any]) -> None:
    options = OFF_POLICY | TAMED | {"max_steps": 6, "gradient_accumulation_steps": 2, "steps_per_generation": 4}
    for name in ("ce_gppo", "entropy_bonus"):
        alone, watched = run(name, options), run(name, options, diagnostics_interval=1)
        for a, b in zip(alone.parameters, watched.parameters, strict=True):
            assert torch.equal(a, b)


def test_diagnostic_steps_are_those_of_the_interval(run: Callable[..., Any]) -> None:
    options = OFF_POLICY | TAMED | {"max_steps": 12, "per_device_train_batch_size": 16}
    done = run("ce_gppo", options, diagnostics_interval=3)
    assert steps_with(done, "diagnostics/entropy") == [3, 6, 9, 12]
    assert steps_with(done, "diagnostics/change/PA&HP") == [3, 6, 9, 12]
    assert steps_with(done, "clip/numerical_low") == [1, 5, 9], "the first update after each rollout"
    assert steps_with(done, "diagnostics/measured_change") == [3, 6, 12], "9 is the first update on its rollout"
    assert steps_with(done, "diagnostics/change_correlation") == [12], "three pairs"
    parts = [[line[f"diagnostics/change_share/{q}"] for q in diagnostics.QUADRANTS] for line in done.history[2::3]]
    shares = [sum(map(abs, quadrants)) for quadrants in parts]
    assert shares == pytest.approx([1.0] * 4)


def test_a_wide_log_window_shows_the_latest_diagnostic_step(run: Callable[..., Any]) -> None:
    fine = run("ce_gppo", OFF_POLICY | TAMED | {"max_steps": 8}, diagnostics_interval=2)
    wide = run("ce_gppo", OFF_POLICY | TAMED | {"max_steps": 8, "logging_steps": 4}, diagnostics_interval=2)
    assert wide.logged("diagnostics/change") == fine.logged("diagnostics/change")[1::2]
    assert wide.logged("diagnostics/cumulative_entropy") == fine.logged("diagnostics/cumulative_entropy")[1::2]


def tokens_of(run: Callable[..., Any], objective: Any, options: dict[str, Any], **more: Any) -> tuple[Any, list[Any]]:
    seen: list[tuple[int, dict[str, Tensor]]] = []
    done = run(objective, options, token_sink=lambda step, c: seen.append((step, c)), token_interval=1, **more)
    return done, seen


def predicted(columns: dict[str, Tensor]) -> float:
    """-w p L over the tokens, from what the token sink got, written out once more."""
    p = columns["logp"].exp()
    change = -columns["weight"] * p * (columns["logp"] + columns["entropy"])
    return float(change[columns["mask"]].double().sum())


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_change_is_that_of_the_whole_update(accumulation: int, run: Callable[..., Any]) -> None:
    options = OFF_POLICY | TAMED | {"max_steps": 4, "gradient_accumulation_steps": accumulation}
    options |= {"steps_per_generation": 2 * accumulation}
    done, seen = tokens_of(run, "repo_r", options, diagnostics_interval=2)
    for i, step in enumerate((2, 4)):
        parts = [columns for s, columns in seen if s == step]
        assert len(parts) == accumulation
        expected = sum(predicted(columns) for columns in parts)
        assert abs(expected) > 1e-4
        assert done.logged("diagnostics/change")[i] == pytest.approx(expected, rel=1e-4)
        entropy = torch.cat([c["entropy"][c["mask"]] for c in parts]).double().mean()
        assert done.logged("diagnostics/entropy")[i] == pytest.approx(float(entropy), rel=1e-6)


def test_what_was_predicted_stands_beside_what_it_led_to(run: Callable[..., Any]) -> None:
    """At update j: the sum over updates 1 to j - 1 of learning rate times change, against entropy - old_entropy."""
    options = OFF_POLICY | {"max_steps": 16, "learning_rate": 1e-3, "lr_scheduler_type": "linear", "warmup_steps": 6}
    done, seen = tokens_of(run, "dapo", options, diagnostics_interval=3)
    changes = {step: predicted(columns) for step, columns in seen}
    rates = {step: 1e-3 * ((step - 1) / 6 if step <= 6 else (17 - step) / 10) for step in range(1, 17)}
    expected = {}
    for step in (3, 6, 12, 15):  # 9 is a first update
        first = (step - 1) // 4 * 4 + 1
        expected[step] = sum(changes[s] * rates[s] for s in range(first, step))
    key = "diagnostics/predicted_change"
    found = dict(zip(steps_with(done, key), done.logged(key), strict=True))
    assert found == pytest.approx(expected, rel=1e-3)
    measured = done.logged("diagnostics/measured_change")
    assert len(measured) == 4
    assert all(abs(x) > 1e-7 for x in measured)
    along = correlation(list(expected.values()), measured)
    assert done.logged("diagnostics/change_correlation")[-1] == pytest.approx(along, rel=1e-3)


def test_the_area_under_the_entropy_of_diagnostic_steps(run: Callable[..., Any]) -> None:
    done = run("ce_gppo", OFF_POLICY | TAMED | {"max_steps": 9}, diagnostics_interval=3)
    entropies = done.logged("diagnostics/entropy")
    expected = [cumulative_entropy(entropies[:k], [3, 6, 9][:k]) for k in (1, 2, 3)]
    assert done.logged("diagnostics/cumulative_entropy") == pytest.approx(expected)
    assert expected[0] == 0


def test_heterogeneity_is_measured_with_several_tasks(run: Callable[..., Any], prompts: Dataset) -> None:
    options = OFF_POLICY | TAMED | {"max_steps": 8, "per_device_train_batch_size": 16}
    done = run("ce_gppo", options, diagnostics_interval=5)
    assert steps_with(done, "diagnostics/heterogeneity") == [5]
    assert 0 <= done.logged("diagnostics/heterogeneity")[0] <= 1
    alone = run("ce_gppo", options, diagnostics_interval=5, train_dataset=prompts.remove_columns("task"))
    assert not steps_with(alone, "diagnostics/heterogeneity")
    assert not steps_with(run("grpo", {"max_steps": 1}, diagnostics_interval=1), "diagnostics/heterogeneity")


# the gradient


class MicroBatches(TrainerCallback):
    """The gradient after every micro-batch but the last of a step."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []

    def on_substep_end(self, *args: Any, model: torch.nn.Module, **kwargs: Any) -> None:
        self.parts.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())


def test_the_noise_is_that_of_the_micro_batches(run: Callable[..., Any]) -> None:
    watcher = MicroBatches()
    options = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "max_steps": 3, "max_grad_norm": 0.0}
    done = run("grpo", options | TAMED, callbacks=[watcher], diagnostics_interval=1)
    firsts = watcher.parts[::3]
    assert len(firsts) == len(done.gradients) == 3
    averages = None
    for first, whole in zip(firsts, done.gradients, strict=True):
        norms = torch.tensor([16 * first.square().sum(), whole.square().sum()], dtype=torch.float64)
        averages = norms if averages is None else 0.9 * averages + 0.1 * norms
    expected = diagnostics.noise_scale(float(averages[0]), float(averages[1]), 8, 32)
    assert done.trainer._diagnostics._norms == pytest.approx(averages.tolist(), rel=1e-4)
    logged = done.logged("diagnostics/gradient_noise")
    if math.isfinite(expected):
        assert logged[-1] == pytest.approx(expected, rel=1e-3)
    else:
        assert len(logged) < 3


def test_one_micro_batch_has_no_noise(run: Callable[..., Any]) -> None:
    assert not run("grpo", TAMED, diagnostics_interval=1).logged("diagnostics/gradient_noise")


# number formats


def test_what_numbers_alone_clip_is_measured_in_the_first_update(run: Callable[..., Any]) -> None:
    exact = run("ce_gppo", OFF_POLICY | TAMED | {"max_steps": 8}, diagnostics_interval=5)
    assert exact.logged("clip/numerical_low") == exact.logged("clip/numerical_high") == [0.0, 0.0]


def test_tokens_beyond_the_bounds_are_counted_by_side() -> None:
    logp = torch.tensor([[0.0, -0.3, 0.2], [0.3, 0.0, 9.0]])
    rows = {"logp": logp, "old_logp": torch.zeros(2, 3), "mask": torch.tensor([[True] * 3, [True, True, False]])}
    pool, live = MetricPool(), LiveDiagnostics(10)
    live.first_update(pool, Place(5, 1, 4), presets.dapo, rows)
    live.first_update(pool, Place(6, 2, 4), presets.dapo, rows)
    found = pool.flush(Accelerator(cpu=True))
    assert found == {"clip/numerical_low": 1 / 5, "clip/numerical_high": 1 / 5}, "exp(.2) is inside of 1.28"
    LiveDiagnostics(0).first_update(pool, Place(5, 1, 4), presets.dapo, rows)
    assert pool.flush(Accelerator(cpu=True)) == {}


def test_the_bounds_are_those_of_the_ratio_clip() -> None:
    from isentrope.engines.trl_diagnostics import ratio_bounds

    assert ratio_bounds(presets.dapo) == (0.2, 0.28)
    assert ratio_bounds(presets.gspo) == (0.2, 0.2), "its bounds are of the sequence ratio"
    assert ratio_bounds(replace(presets.dapo, surrogate=EntropyRatioClip(PPOClip(0.1, 0.3), 0.9, 1.1))) == (0.1, 0.3)
    assert ratio_bounds(replace(presets.dapo, surrogate=ClippedWeight(low=None, high=0.3))) == (math.inf, 0.3)
    assert ratio_bounds(presets.sapo) == (0.2, 0.2)


def test_an_interval_below_zero_is_refused(run: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="diagnostics_interval=-1"):
        run("grpo", diagnostics_interval=-1)


def test_steps_that_straddle_rollouts_are_measured_without_a_prediction(run: Callable[..., Any]) -> None:
    options = TAMED | {"gradient_accumulation_steps": 2, "steps_per_generation": 3, "max_steps": 6}
    done = run("ce_gppo", options | {"per_device_train_batch_size": 4}, diagnostics_interval=1)
    assert len(done.logged("diagnostics/entropy")) == 6
    assert not done.logged("diagnostics/predicted_change")
