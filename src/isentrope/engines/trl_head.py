"""Our head (`isentrope.logprobs`) in place of TRL's fused one: the same numbers from fewer products and less memory.

TRL asks a model for log-probabilities with `model(..., labels=labels, fused_lm_head=True)`. On a CPU its fused head
sends every position, prompts included, through the head, keeps the logits of a tile in the compute dtype and computes
them again in the backward pass. Ours scores the completion's positions alone, with statistics in float32. What ours
does not cover goes TRL's way, call by call: see `why_trl`.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from trl.trainer import grpo_trainer
from trl.trainer.utils import FusedCausalLMOutput

from isentrope.engines.trl_options import OptionError
from isentrope.logprobs import logprobs

HEADS = ("auto", "isentrope", "trl")
_SCALES = ("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")  # factors on logits, by family


def check_head(head: str) -> None:
    """OptionError for a head that does not exist."""
    if head not in HEADS:
        raise OptionError(f"head is {head!r}; it must be one of {', '.join(HEADS)}")


def why_trl(model: Any, head: str, inputs: dict[str, Any]) -> str:
    """Why a call takes TRL's head rather than ours; "" where ours serves.

    head: "auto" takes ours on a CPU (TRL's Triton kernel is made for GPUs), "isentrope" wherever it can, "trl" never.
    """
    config, layer = model.config, model.get_output_embeddings()
    weight = layer.weight
    scaled = [name for name in _SCALES if getattr(config, name, None) not in (None, 1, 1.0)]
    reasons = {
        "head='trl'": head == "trl",
        "TRL's Triton kernel serves this device": head == "auto" and weight.device.type != "cpu",
        "the labels are already shifted": inputs.get("labels") is None or inputs.get("shift_labels") is not None,
        "the router's loss is asked for": bool(inputs.get("output_router_logits") or _routes(config)),
        f"the logits are scaled by {', '.join(scaled)}": bool(scaled),
        "the model is multimodal": config.get_text_config() is not config,
        "the head is sharded": hasattr(weight, "full_tensor") or hasattr(weight, "ds_id"),
        "the head is quantised": not weight.is_floating_point(),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _routes(config: Any) -> bool:
    return bool(getattr(config, "output_router_logits", False))


@contextmanager
def taking_head(head: str, entropy_gradient: bool) -> Iterator[None]:
    """Within this TRL makes its trainer, whose models then have our head where it serves.

    entropy_gradient: whether the objective differentiates the entropy.
    """
    add = grpo_trainer.add_fused_lm_head
    if head != "trl":
        grpo_trainer.add_fused_lm_head = functools.partial(_add_head, add, head, entropy_gradient)
    try:
        yield
    finally:
        grpo_trainer.add_fused_lm_head = add


def _add_head(
    add: Callable[..., None], head: str, entropy_gradient: bool, model: Any, temperature: float = 1.0, **options: Any
) -> None:
    """Give a model TRL's fused forward, and ours in front of it."""
    add(model, temperature=temperature, **options)
    fused = model.forward
    wants_entropy = "entropy" in options.get("outputs", ())
    in_float32 = bool(options.get("cast_lm_head_to_fp32"))

    @functools.wraps(type(model).forward)  # `generate` checks its arguments against this signature
    def forward(self: Any, *args: Any, **inputs: Any) -> Any:
        if not inputs.get("fused_lm_head") or why_trl(self, head, inputs):
            return fused(*args, **inputs)
        del inputs["fused_lm_head"]
        labels = inputs.pop("labels")[:, 1:]
        inputs.pop("shift_labels", None)
        inputs.pop("num_items_in_batch", None)
        hidden = self.base_model(*args, **inputs | {"use_cache": False}).last_hidden_state[:, :-1]
        scored = _score(self, hidden, labels, temperature, in_float32, wants_entropy and entropy_gradient)
        if not wants_entropy:
            scored.entropy = None
        return scored

    model.forward = MethodType(forward, model)


def _score(
    model: Any, hidden: Tensor, labels: Tensor, temperature: float, in_float32: bool, entropy_gradient: bool
) -> Any:
    """log pi and entropy [B,T-1] of the labels, 0 where they are -100; the others do not reach the head."""
    layer = model.get_output_embeddings()
    dtype = torch.float32 if in_float32 else _compute_dtype(hidden)
    mask = labels != -100
    out = logprobs(
        hidden[mask].to(dtype),
        layer.weight.to(dtype),
        labels[mask],
        bias=getattr(layer, "bias", None),
        softcap=getattr(model.config, "final_logit_softcapping", None),
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )
    # masked_scatter keeps the graph where no label counts
    logp, entropy = (x.new_zeros(mask.shape).masked_scatter(mask, x) for x in (out.logp, out.entropy))
    loss = -logp.sum() / mask.sum().clamp(min=1)
    return FusedCausalLMOutput(loss=loss, log_probs=logp, entropy=entropy, label_mask=mask)


def _compute_dtype(hidden: Tensor) -> torch.dtype:
    """The dtype of a matrix product with `hidden` here: autocast's where it is on."""
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
