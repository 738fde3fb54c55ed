"""Mixed precision in float16 (`fp16=True`): weights in float32, forward and backward in float16, the loss scaled.

float16 has three bits more than bfloat16, so ratios of equal weights stay much closer to 1, and a range that ends at
65,504 and loses gradients under 6e-8. A gradient scaler multiplies the loss so that they survive, and leaves out the
optimizer step of a gradient that overflowed.

* Scaler, autocast, unscaling before `max_grad_norm`, and the scaler's state in checkpoints (`scaler.pt`) are those of
  accelerate and transformers, except that a skipped step of a fused optimizer is noticed (`SkippedSteps`).
* A step that overflows changes no weight, makes no scheduler step and no controller update of its own: controllers
  observe rollout batches, once each, whatever becomes of the updates on them. It counts as a step of the loop.
* Trainable weights are float32 whatever the model was loaded in, adapters too: a scaler refuses float16 gradients, and
  updates of a usual size vanish in 16-bit weights. Frozen weights stay in their type.
* On a CPU accelerate ignores `fp16=True` without a word; here scaler and autocast are set up there too. That is for
  trying a recipe out: torch emulates much of float16 on a CPU.

| key | meaning |
| --- | --- |
| `fp16/loss_scale` | the scaler's factor at the log line |
| `fp16/skipped_steps` | optimizer steps left out since the run began, resumed runs included |

DeepSpeed has a scaler of its own, and neither key.
"""

from typing import Any

import torch
from transformers import TrainerCallback

from isentrope.engines.trl_options import OptionError

NARROW = (torch.float16, torch.bfloat16)


def check(args: Any) -> None:
    """OptionError where TRL would turn the float32 weights into float16 ones before every rollout."""
    if not args.fp16:
        return
    for name in ("use_transformers_continuous_batching", "use_transformers_paged"):
        if getattr(args, name, None):
            raise OptionError(
                f"{name}={getattr(args, name)!r} turns the trained weights themselves into float16 before each "
                "rollout, which the gradient scaler of fp16=True refuses: leave it off, or use vLLM"
            )


def set_up(accelerator: Any) -> None:
    """Scaler and autocast on a CPU, where accelerate leaves them out; nothing elsewhere, or without fp16."""
    if accelerator.mixed_precision != "fp16" or accelerator.device.type != "cpu":
        return
    scaling = accelerator.scaler_handler.to_kwargs() if accelerator.scaler_handler is not None else {}
    accelerator.scaler = torch.amp.GradScaler("cpu", **scaling)
    accelerator.native_amp = True


def cast_trainable(model: torch.nn.Module) -> int:
    """Turn trainable 16-bit weights into float32 ones, in place; returns how many there were. Others stay."""
    narrow = [p for p in model.parameters() if p.requires_grad and p.dtype in NARROW]
    for parameter in narrow:
        parameter.data = parameter.data.float()
    return len(narrow)


class SkippedSteps(TrainerCallback):
    """Tells the training loop of steps that the scaler left out, so that the scheduler stands still, and counts them.

    accelerate takes a step for left out when the optimizer was not called, but a fused optimizer (the default) is
    always called, and skips inside its kernel. What both have in common is that the scale falls.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._scale = 0.0  # before the step
        self.count = 0

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        if (scaler := self._trainer.accelerator.scaler) is not None:
            self._scale = scaler.get_scale()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        scaler = self._trainer.accelerator.scaler
        if scaler is not None and scaler.get_scale() < self._scale:
            self.count += 1
            self._trainer.optimizer._is_overflow = True  # what accelerate's `step_was_skipped` returns

    def logged(self) -> dict[str, float]:
        """Metrics by key; none without a scaler."""
        scaler = self._trainer.accelerator.scaler
        if scaler is None:
            return {}
        return {"fp16/loss_scale": float(scaler.get_scale()), "fp16/skipped_steps": float(self.count)}


def begin(trainer: Any) -> SkippedSteps:
    """Make the trainable weights float32 if training is in float16, and count the skipped steps from now on."""
    if trainer.args.fp16:
        cast_trainable(trainer.model)
    counter = SkippedSteps(trainer)
    trainer.add_callback(counter)
    return counter
