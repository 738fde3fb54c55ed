"""float16 with a gradient scaler, run for real on a CPU: an overflow skips one step and loses nothing else."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from isentrope import presets, recipe
from isentrope.engines.trl import ObjectiveTrainer, OptionError
from isentrope.engines.trl_fp16 import cast_trainable, check
from isentrope.shaping import RescaleBySurprisal

from .harness import MARKS, Run

pytestmark = [*MARKS, pytest.mark.filterwarnings("ignore::isentrope.engines.trl_options.InertObjectiveWarning")]
FP16 = {"fp16": True, "num_iterations": 2, "max_steps": 6}


class Overflowing(ObjectiveTrainer):
    """Makes a gradient infinite in one optimizer step, and keeps the controllers' state after each rollout."""

    at = 0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        if self.state.global_step + 1 == self.at:
            next(p for p in self.model.parameters() if p.requires_grad).grad.view(-1)[0] = math.inf
        return loss

    def _prepare(self, batch: Any) -> Any:
        found = super()._prepare(batch)
        self.states = [*getattr(self, "states", []), dict(self._state)]
        return found


class Watcher(TrainerCallback):
    """Weights and learning rate after each step."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []
        self.rates: list[float] = []

    def on_step_end(self, *args: Any, model: Any, lr_scheduler: Any, **kwargs: Any) -> None:
        self.weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]).clone())
        self.rates.append(lr_scheduler.get_last_lr()[0])


def train(run: Any, at: int = 0, resume: str | None = None, **options: Any) -> tuple[Run, Watcher]:
    watcher = Watcher()
    trainer = type("At", (Overflowing,), {"at": at})
    settings = FP16 | {"lr_scheduler_type": "linear"} | options
    return run("adapo", settings, trainer, callbacks=[watcher], resume=resume), watcher


def test_fp16_on_a_cpu_has_a_scaler_and_autocast(run: Any) -> None:
    done, watcher = train(run)
    accelerator = done.trainer.accelerator
    assert isinstance(accelerator.scaler, torch.amp.GradScaler)
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float16
    assert done.logged("fp16/skipped_steps")[-1] == 0
    assert done.logged("fp16/loss_scale")[-1] == 65536
    assert all(torch.isfinite(w).all() for w in watcher.weights)
    assert not torch.equal(watcher.weights[0], watcher.weights[-1])


def test_gradients_of_a_float16_run_are_near_those_of_a_float32_run(run: Any) -> None:
    narrow, wide = run("ce_gppo", {"fp16": True, "max_steps": 1}), run("ce_gppo", {"max_steps": 1})
    (a,), (b,) = narrow.gradients, wide.gradients
    assert not torch.equal(a, b)
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.999
    assert 0.98 < a.norm() / b.norm() < 1.02, "the gradient is unscaled before it is clipped"


@pytest.mark.parametrize(("at", "max_grad_norm"), [(2, 0.0), (3, 1.0)])
def test_an_overflow_skips_one_step_and_the_scheduler_and_is_counted(run: Any, at: int, max_grad_norm: float) -> None:
    _, clean = train(run, max_grad_norm=max_grad_norm)
    done, watcher = train(run, at, max_grad_norm=max_grad_norm)
    stood = [torch.equal(a, b) for a, b in pairwise(watcher.weights)]
    assert stood == [step == at for step in range(2, 7)]
    assert watcher.rates == pytest.approx([*clean.rates[: at - 1], *clean.rates[at - 2 : -1]])
    assert done.logged("fp16/skipped_steps") == [0.0] * (at - 1) + [1.0] * (7 - at)
    assert done.logged("fp16/loss_scale") == [65536.0] * (at - 1) + [32768.0] * (7 - at)


def test_an_overflow_neither_loses_nor_doubles_an_observation_of_a_controller(run: Any) -> None:
    (clean, _), (overflown, _) = train(run), train(run, at=2)
    for done in (clean, overflown):
        assert done.trainer._num_rollouts == len(done.trainer.states) == 3
        assert done.trainer._state == done.trainer.states[-1], "updates leave the state alone"
    high = "surrogate.high.value"
    values = [state[high] for state in overflown.trainer.states]
    assert overflown.trainer.states[0] == clean.trainer.states[0]
    assert overflown.logged(f"controller/{high}") == [value for value in values for _ in range(2)]


def test_a_first_update_that_overflowed_leaves_the_ratio_at_one_for_the_second(run: Any) -> None:
    done, _ = train(run, at=1, max_steps=2)
    assert done.logged("ratio/mean")[1] == pytest.approx(1.0, abs=1e-6)
    done, _ = train(run, max_steps=2)
    assert done.logged("ratio/mean")[1] != pytest.approx(1.0, abs=1e-6)


def test_skipped_steps_and_the_scale_survive_a_checkpoint(run: Any, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 3}
    whole, _ = train(run, at=2, **saving)
    resumed, _ = train(run, resume=str(tmp_path / "out" / "checkpoint-3"), **saving)
    for key in ("fp16/skipped_steps", "fp16/loss_scale"):
        assert resumed.logged(key)[-1] == whole.logged(key)[-1] != 0
    assert resumed.logged("fp16/loss_scale")[-1] == 32768
    assert torch.equal(resumed.parameters[-1], whole.parameters[-1])


def test_trainable_weights_become_float32_and_frozen_ones_stay(run: Any, tiny: Any) -> None:
    model = tiny().half()
    model.lm_head.weight.requires_grad_(False)
    done = run("ce_gppo", {"fp16": True, "max_steps": 2}, model=model)
    found = {name: p.dtype for name, p in done.trainer.model.named_parameters()}
    assert found.pop("lm_head.weight") is torch.float16
    assert set(found.values()) == {torch.float32}
    assert cast_trainable(done.trainer.model) == 0


def test_adapters_of_a_float16_model_are_trained_in_float32(run: Any, tiny: Any) -> None:
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    done = run("ce_gppo", {"fp16": True, "max_steps": 2}, model=tiny().half(), peft_config=adapter)
    kinds = {(p.requires_grad, p.dtype) for p in done.trainer.model.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.float16)}
    assert any(g.abs().max() > 0 for g in done.gradients)


def test_adapters_that_were_made_in_float16_are_cast(tiny: Any) -> None:
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(tiny().half(), adapter, autocast_adapter_dtype=False)
    assert cast_trainable(model) == 2
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.float16}


def test_without_fp16_there_is_neither_scaler_nor_metric(run: Any) -> None:
    done = run("ce_gppo", {"max_steps": 1})
    assert done.trainer.accelerator.scaler is None
    assert not [key for line in done.history for key in line if key.startswith("fp16/")]


def test_generation_that_would_make_the_weights_float16_is_refused(config: Any) -> None:
    check(config(fp16=True))
    args = config(fp16=True)
    args.use_transformers_continuous_batching = True
    with pytest.raises(OptionError, match="use_transformers_continuous_batching=True turns the trained weights"):
        check(args)


def test_the_scaler_alone_does_to_the_loss_of_an_objective_what_the_engine_does() -> None:
    """Without a host framework: an infinite gradient leaves weights, scheduler and state as they were."""
    objective = replace(presets.grpo, shaping=(RescaleBySurprisal(zeta=0.01),))
    weights = torch.nn.Parameter(torch.zeros(4, 3))
    optimizer = torch.optim.SGD([weights], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    batch = {
        "reward": torch.tensor([1.0, 0.0, 1.0, 0.0]),
        "group": torch.tensor([0, 0, 1, 1]),
        "mask": torch.ones(4, 3, dtype=torch.bool),
        "old_logp": torch.full((4, 3), -1.0),
    }
    state = objective.init()
    prepared, state = objective.prepare(batch, state)
    now = objective.at(state)
    before = dict(state)
    for overflow, moves in ((True, False), (False, True)):
        start = weights.detach().clone()
        scaler.scale(now.loss(prepared | {"logp": weights - 1.0}, now.count(prepared))).backward()
        if overflow:
            assert weights.grad is not None
            weights.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert torch.equal(weights, start) is not moves
        assert state == before


def test_the_packaged_recipe_asks_for_it() -> None:
    found = recipe.load("fp16")
    assert found.trl["fp16"] is True
    assert found.model.dtype == "float32"
    assert recipe.parse(found.to_toml()) == found
