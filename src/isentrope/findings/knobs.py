"""What to turn, in the words of the engine that made the run."""

from __future__ import annotations

from collections.abc import Mapping

ANY = ""  # an engine that is not known

KNOBS: Mapping[str, Mapping[str, str]] = {
    "clip_high": {
        ANY: "the upper clipping bound",
        "isentrope": "surrogate.high (PPOClip), or keep_high of GradientPreservingClip",
        "trl": "epsilon_high",
        "verl": "actor_rollout_ref.actor.clip_ratio_high",
        "ms-swift": "--epsilon_high",
        "slime": "--eps-clip-high",
        "prime-rl": "trainer.loss.dppo_mask_high",
    },
    "clip_low": {
        ANY: "the lower clipping bound",
        "isentrope": "surrogate.low (PPOClip), or keep_low of GradientPreservingClip",
        "trl": "epsilon",
        "verl": "actor_rollout_ref.actor.clip_ratio_low",
        "ms-swift": "--epsilon",
        "slime": "--eps-clip",
        "prime-rl": "trainer.loss.dppo_mask_low",
    },
    "entropy_coef": {
        ANY: "the coefficient of the entropy bonus",
        "isentrope": "penalties: EntropyBonus(coef=...), or EntropyStep or EntropyPI in its place",
        "trl": "entropy_coef, or use_adaptive_entropy with an entropy_target",
        "verl": "actor_rollout_ref.actor.entropy_coeff",
        "slime": "--entropy-coef",
    },
    "control": {
        ANY: "a rule that steers entropy, such as ce_gppo, adapo or repo_r",
        "isentrope": "objective: adapo (EntropyServo on surrogate.high), ce_gppo (keep_low, keep_high) or repo_r",
        "trl": "ObjectiveTrainer(objective='adapo'), or epsilon_high",
        "verl": "actor_rollout_ref.actor.policy_loss.loss_mode, or clip_ratio_high",
    },
    "servo": {
        ANY: "the gain of the controller: smaller steps",
        "isentrope": "EntropyServo: rate nearer to 1; EntropyStep: smaller step; EntropyPI: smaller kp, ki; dead_band",
        "trl": "entropy_coef_delta smaller",
    },
    "bound": {
        ANY: "the bounds of the controller, its target, or what else moves entropy",
        "isentrope": "the controller's low and high: wider; its target: nearer; or a controller on another number",
        "trl": "use_adaptive_entropy: entropy_coef_max",
    },
    "updates": {
        ANY: "fewer optimizer steps on one rollout batch",
        "isentrope": "trainer.minibatches and trainer.passes",
        "trl": "num_iterations, and steps_per_generation over gradient_accumulation_steps",
        "verl": "actor_rollout_ref.actor.ppo_mini_batch_size nearer to data.train_batch_size, ppo_epochs",
        "ms-swift": "--num_iterations, --steps_per_generation",
        "slime": "--global-batch-size nearer to --rollout-batch-size times --n-samples-per-prompt",
    },
    "length": {
        ANY: "the length limit",
        "isentrope": "trainer.max_completion_length, or select: Untruncated()",
        "trl": "max_completion_length, or mask_truncated_completions=True",
        "verl": "data.max_response_length, or a penalty for overlong answers in the reward",
        "ms-swift": "--max_completion_length, --overlong_filter true",
        "slime": "--rollout-max-response-len",
    },
    "temperature": {
        ANY: "the sampling temperature, and that the log-probabilities are taken at it",
        "isentrope": "trainer.temperature",
        "trl": "temperature",
        "verl": "actor_rollout_ref.rollout.temperature",
        "slime": "--rollout-temperature",
    },
    "precision": {
        ANY: "float32 log-probabilities in the trainer",
        "trl": "FSDP2's output_dtype=float32, cast_lm_head_to_fp32=True; or fp16 training",
        "isentrope": "model.dtype = 'float32', or FSDP2's output_dtype=float32",
        "verl": "actor_rollout_ref.actor.fsdp_config: model_dtype and mixed_precision (fp16 or fp32)",
    },
    "correction": {
        ANY: "a correction of the sampler's probabilities (truncated importance weights)",
        "isentrope": "correction: TruncatedImportance(), IcePop() or SequenceMask()",
        "trl": "vllm_importance_sampling_correction=True; no top_p, top_k, min_p",
        "verl": "algorithm.rollout_correction.rollout_is=token, and rollout.calculate_log_probs=True",
        "slime": "--use-tis, or --use-rollout-routing-replay for experts",
        "prime-rl": "trainer.loss bounds, fewer off-policy steps (orchestrator.max_off_policy_steps)",
    },
    "prompts": {
        ANY: "prompts of another difficulty, larger groups, or a filter of groups with equal rewards",
        "isentrope": "select: VaryingReward(), trainer.group_size, the task mix",
        "trl": "num_generations, the data set's difficulty",
        "verl": "algorithm.filter_groups.enable=True (DAPO), actor_rollout_ref.rollout.n",
        "ms-swift": "--dynamic_sample true, --num_generations",
        "slime": "--dynamic-sampling-filter-path, --n-samples-per-prompt",
    },
    "mix": {
        ANY: "the weights of the tasks, or thresholds by task",
        "isentrope": "the weight of the [[task]], or GroupEntropyGate with thresholds by_task=True",
        "verl": "the shares of the data files, or loss and advantage by data_source",
    },
    "rate": {
        ANY: "a smaller learning rate",
        "isentrope": "trainer.learning_rate",
        "trl": "learning_rate",
        "verl": "actor_rollout_ref.actor.optim.lr",
        "slime": "--lr",
        "ms-swift": "--learning_rate",
    },
}


def knob(engine: str, name: str) -> str:
    """The knob in an engine's words, in general words where the engine has none of its own.

    >>> knob("trl", "clip_high"), knob("nobody's", "clip_high")
    ('epsilon_high', 'the upper clipping bound')
    """
    words = KNOBS[name]
    return words.get(engine, words[ANY])
