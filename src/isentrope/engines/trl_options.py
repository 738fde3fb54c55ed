"""What becomes of each option of TRL's `GRPOConfig` when the objective takes over the loss.

Every field is in exactly one table:

* `HONOURED`: does what TRL says.
* `REPLACED`: a slot of the objective does this; anything but the default is refused, naming the slot.
* `REFUSED`: cannot be honoured (TRL itself ignores it in GRPO); anything but the default is refused, with the reason.

A field of a newer TRL is in none of them and is refused by `check_options` when set, by name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from isentrope.errors import IsentropeError


class OptionError(IsentropeError, ValueError):
    """An option of TRL that the objective replaces, that contradicts it, or that cannot be honoured."""


class InertObjectiveWarning(UserWarning):
    """A rule of the objective cannot act in this setting."""


class SamplerMismatchWarning(UserWarning):
    """Completions are drawn from another distribution than the one whose log-probabilities enter the loss."""


# option -> (slot, what to write there); the value found is put in for {value}
REPLACED: dict[str, tuple[str, str]] = {
    "beta": ("penalties", "penalties=(ReferenceKL({value}),)"),
    "epsilon": ("surrogate", "surrogate=PPOClip(low={value}, high={value})"),
    "epsilon_high": ("surrogate", "surrogate=PPOClip(low=.2, high={value}); for CISPO's cap high = cap - 1"),
    "delta": ("surrogate", "surrogate=PPOClip(dual={value})"),
    "sapo_temperature_neg": ("surrogate", "surrogate=SoftGate(tau_neg={value})"),
    "sapo_temperature_pos": ("surrogate", "surrogate=SoftGate(tau_pos={value})"),
    "vespo_k_pos": ("surrogate", "a surrogate of your own"),
    "vespo_lambda_pos": ("surrogate", "a surrogate of your own"),
    "vespo_k_neg": ("surrogate", "a surrogate of your own"),
    "vespo_lambda_neg": ("surrogate", "a surrogate of your own"),
    "importance_sampling_level": ("ratio", "ratio=SequenceRatio() or ratio=TokenRatio()"),
    "multi_objective_aggregation": ("advantage", "an advantage rule over the summed reward, or one of your own"),
    "scale_rewards": ("advantage", "advantage=GroupRelative(), GroupCentred() or another advantage rule"),
    "loss_type": (
        "surrogate and aggregate",
        "the preset of that name where there is one (presets.grpo, dapo, dr_grpo, ...)",
    ),
    "top_entropy_quantile": ("select", "select=(HighEntropyTokens(rho={value}),)"),
    "entropy_coef": ("penalties", "penalties=(EntropyBonus({value}),)"),
    "use_adaptive_entropy": ("penalties", "penalties=(EntropyBonus(<a controller>),)"),
    "entropy_coef_min": ("penalties", "the bounds of the controller in EntropyBonus"),
    "entropy_coef_max": ("penalties", "the bounds of the controller in EntropyBonus"),
    "entropy_coef_delta": ("penalties", "the step of the controller in EntropyBonus"),
    "entropy_target": ("penalties", "the target of the controller in EntropyBonus"),
    "off_policy_mask_threshold": ("correction", "correction=SequenceMask()"),
    "use_bias_correction_kl": ("penalties", "a KL penalty of your own that multiplies by the ratio"),
}

REFUSED: dict[str, str] = {
    "label_smoothing_factor": "TRL's GRPO has no labels to smooth and ignores it",
    "train_sampling_strategy": "TRL's GRPO samples prompts by itself and ignores it; use shuffle_dataset",
    "include_for_metrics": "TRL's GRPO computes no compute_metrics and ignores it",
    "batch_eval_metrics": "TRL's GRPO computes no compute_metrics and ignores it",
}

# TRL's own
_HONOURED_TRL = """
    model_init_kwargs trust_remote_code router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 num_generations
    num_generations_eval max_completion_length ds3_gather_for_generation shuffle_dataset pad_to_multiple_of
    generation_batch_size steps_per_generation temperature top_p top_k min_p generation_kwargs chat_template_kwargs
    repetition_penalty cache_implementation use_vllm vllm_mode vllm_model_impl vllm_enable_sleep_mode
    vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
    vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size num_iterations
    reward_weights mask_truncated_completions sync_ref_model ref_model_mixup_alpha ref_model_sync_steps
    max_tool_calling_iterations vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min log_completions log_multimodal
    num_completions_to_print log_unique_prompts log_completions_hub_repo use_transformers_continuous_batching
    transformers_continuous_batching_config use_transformers_paged vllm_importance_sampling_cap
"""
# inherited from transformers' TrainingArguments; the Liger layer kernels only, TRL refuses Liger's fused loss
_HONOURED_TRANSFORMERS = """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adam_beta1 adam_beta2 adam_epsilon
    auto_find_batch_size average_tokens_across_devices bf16 bf16_full_eval data_seed dataloader_drop_last
    dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
    dataloader_pin_memory
    dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters
    ddp_static_graph ddp_timeout debug deepspeed disable_tqdm do_eval do_predict do_train enable_jit_checkpoint
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps eval_strategy
    eval_use_gather_object fp16 fp16_full_eval fsdp fsdp_config full_determinism gradient_accumulation_steps
    gradient_checkpointing gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
    hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_num_input_tokens_seen label_names
    learning_rate length_column_name liger_kernel_config load_best_model_at_end local_rank log_level log_level_replica
    log_on_each_node logging_first_step logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs
    lr_scheduler_type max_grad_norm max_steps metric_for_best_model neftune_noise_alpha num_train_epochs optim
    optim_args optim_target_modules output_dir parallelism_config per_device_eval_batch_size
    per_device_train_batch_size prediction_loss_only project push_to_hub remove_unused_columns report_to
    restore_callback_states_from_checkpoint resume_from_checkpoint run_name save_on_each_node save_only_model
    save_steps save_strategy save_total_limit seed skip_memory_metrics tf32 torch_compile torch_compile_backend
    torch_compile_mode torch_empty_cache_steps trackio_bucket_id trackio_space_id trackio_static_space_id use_cache
    use_cpu use_liger_kernel warmup_steps weight_decay
"""
HONOURED = frozenset((_HONOURED_TRL + _HONOURED_TRANSFORMERS).split())


def check_options(args: Any) -> None:
    """Refuse every option that the objective replaces, that cannot be honoured, or that this engine does not know.

    args: a `GRPOConfig`. Raises OptionError for the first such field, naming option, value and slot.
    """
    for entry in dataclasses.fields(args):
        value = getattr(args, entry.name)
        if entry.name not in HONOURED and not _is_default(entry, value):
            raise OptionError(_refusal(entry.name, value))
    check_generation_kwargs(args)


def _is_default(entry: "dataclasses.Field[Any]", value: Any) -> bool:
    default = entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default
    return bool(value == default)


def _refusal(name: str, value: Any) -> str:
    if name in REPLACED:
        slot, advice = REPLACED[name]
        do = advice.format(value=value)
        return (
            f"{name}={value!r}: the objective's slot `{slot}` does this; leave {name} alone and set {do}"
            f" in the objective, as in replace(presets.grpo, {slot}=...)"
        )
    if name in REFUSED:
        return f"{name}={value!r} cannot be honoured: {REFUSED[name]}"
    return f"{name}={value!r}: this engine was written for TRL 1.16, which has no such option; leave it at its default"


def check_generation_kwargs(args: Any) -> None:
    """Refuse a sampling temperature that TRL would use for sampling but not for the log-probabilities."""
    overrides: Mapping[str, Any] = args.generation_kwargs or {}
    found = overrides.get("temperature", args.temperature)
    if found != args.temperature:
        raise OptionError(
            f"generation_kwargs has temperature={found!r} but log-probabilities are taken at {args.temperature!r}: "
            "set the option `temperature` alone"
        )


def sampler_mismatches(args: Any) -> list[str]:
    """The options by which the sampler's distribution departs from softmax(logits / temperature), as "name=value"."""
    overrides: Mapping[str, Any] = args.generation_kwargs or {}
    neutral = {"top_p": (1.0, None), "top_k": (0, -1, None), "min_p": (None, 0.0), "repetition_penalty": (1.0, None)}
    found = {name: overrides.get(name, getattr(args, name)) for name in neutral}
    return [f"{name}={value!r}" for name, value in found.items() if value not in neutral[name]]
