"""What is settled before training: configuration, reference model, the sampler's correction, the order of prompts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig
from trl.trainer.utils import RepeatSampler, get_config_model_id

from isentrope.engines import trl_fp16, trl_head, trl_limits, trl_mix
from isentrope.engines.trl_batch import SamplerCorrection, refuse_empty
from isentrope.engines.trl_options import OptionError, check_options
from isentrope.engines.trl_sampling import Sampling
from isentrope.objective import Objective
from isentrope.rollout import Rollout
from isentrope.tasks.mix import Order

# "rollout_logp" is there with vLLM or a rollout function, "task" with the dataset's column
SUPPLIED = {
    "entropy",
    "group",
    "importance_sampling_ratio",
    "length_limit",
    "length_limit_hit",
    "logp",
    "mask",
    "old_entropy",
    "old_logp",
    "ref_logp",
    "reward",
    "rollout_logp",
    "task",
}


class EpochSampler(RepeatSampler):
    """TRL's sampler with an order of prompts that depends on seed and epoch alone.

    TRL's own goes through the epochs with one generator, so that a run resumed in its second epoch sees the first
    epoch's order again. An uninterrupted run sees the same order from both.
    """

    def __init__(self, sampler: RepeatSampler, epoch: Callable[[], int]) -> None:
        super().__init__(
            data_source=sampler.data_source,
            mini_repeat_count=sampler.mini_repeat_count,
            batch_size=sampler.batch_size,
            repeat_count=sampler.repeat_count,
            shuffle=sampler.shuffle,
            seed=sampler.seed,
        )
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        yield from super().__iter__()


@contextmanager
def reference_model(args: GRPOConfig, wanted: bool) -> Iterator[None]:
    """TRL loads and scores a reference model if `beta` is not 0 at construction; its value enters no loss of ours."""
    beta = args.beta
    args.beta = 1.0 if wanted else beta
    try:
        yield
    finally:
        args.beta = beta


def default_config(model: Any) -> GRPOConfig:
    """The configuration of a trainer that is given none."""
    name = model if isinstance(model, str) else get_config_model_id(model.config)
    return GRPOConfig(f"{name.split('/')[-1]}-Isentrope")


def check(args: GRPOConfig, dataset: Any, order: Order | None, head: str, reward_time_limit: float | None) -> None:
    """OptionError or ValueError for what no trainer can be given, whatever its objective."""
    check_options(args)
    trl_fp16.check(args)
    trl_head.check_head(head)
    trl_limits.check_time_limit(reward_time_limit)
    trl_mix.check_order(order, dataset, args)


def settled(objective: Objective, args: GRPOConfig, dataset: Any, has_tools: bool) -> Objective:
    """The objective as it is trained, with TRL's correction in its slot; OptionError where it cannot be.

    has_tools: tools or environments take part in the rollouts.
    """
    found = with_sampler_correction(objective, args)
    check_columns(found)
    check_rollout(found, args, dataset, has_tools)
    return found


def with_sampler_correction(objective: Objective, args: GRPOConfig) -> Objective:
    """TRL's vLLM correction as the objective's `correction`, where it is on; OptionError where both would correct."""
    if not (args.use_vllm and args.vllm_importance_sampling_correction):
        return objective
    if objective.correction is not None:
        raise OptionError(
            f"the sampler would be corrected twice: by {objective.correction!r} in the slot `correction` and by "
            "vllm_importance_sampling_correction=True; set the option to False, or leave the slot empty"
        )
    return replace(objective, correction=SamplerCorrection())


def checked_rollouts(rollout_func: Any, sampling: Sampling) -> Any:
    """The user's rollout function, called for each part of the rows that has its own temperature, refusing completions
    without a token; None stays None.
    """
    if rollout_func is None:
        return None

    def checked(prompts: Any, trainer: Any) -> Any:
        output = sampling.roll_out(trainer, rollout_func, prompts)
        refuse_empty(output.get("completion_ids", ()), "rollout_func")
        return output

    return checked


def check_columns(objective: Objective) -> None:
    """OptionError for a column that the objective needs and TRL has no source of, such as a critic's value."""
    needs = objective.columns()
    own = SUPPLIED | ({"tempered"} if objective.rollout.share < 1 else set())
    missing = sorted((needs.prepare | needs.loss) - own)
    if missing:
        raise OptionError(
            f"the objective needs {', '.join(f'`{name}`' for name in missing)}, which the TRL engine has no source of; "
            f"it supplies {', '.join(sorted(own))}"
        )


def check_rollout(objective: Objective, args: GRPOConfig, dataset: Any, has_tools: bool) -> None:
    """OptionError where the way of sampling that the objective asks for cannot be had with these arguments.

    objective: with the sampler's correction in its slot. has_tools: tools or environments take part in the rollouts.
    """
    rollout = objective.rollout
    for problem in (_temperature_problem(rollout, args), _mixture_problem(objective), _rows_problem(rollout, dataset)):
        if problem:
            raise OptionError(f"the objective asks for {rollout!r}, {problem}")
    if has_tools and (rollout.rounds or rollout.share < 1):
        raise OptionError(
            f"the objective asks for {rollout!r}, which cannot be had with tools or environments: they take several "
            "turns, and rows are sampled again or apart in one; leave `rounds` at 0 and `share` at 1"
        )


def _temperature_problem(rollout: Rollout, args: GRPOConfig) -> str:
    overrides = args.generation_kwargs or {}
    if rollout.temperature is None or "temperature" not in overrides:
        return ""
    return (
        f"but generation_kwargs fixes temperature={overrides['temperature']!r}: take it out there; the option "
        "`temperature` is where the objective sets none"
    )


def _mixture_problem(objective: Objective) -> str:
    if objective.rollout.share == 1 or objective.correction is None:
        return ""
    found = objective.correction
    cause = "vllm_importance_sampling_correction=True" if isinstance(found, SamplerCorrection) else f"{found!r}"
    return (
        f"but {cause} would correct tempered rows back to the untempered policy, since their sampler's "
        "log-probabilities are of another temperature: set vllm_importance_sampling_correction=False and leave the "
        "slot `correction` empty, or set share=1"
    )


def _rows_problem(rollout: Rollout, dataset: Any) -> str:
    names = set(getattr(dataset, "column_names", None) or ())
    if (rollout.rounds or rollout.share < 1) and names & {"image", "images"}:
        return "which cannot be had with images: leave `rounds` at 0 and `share` at 1"
    if rollout.rounds and not isinstance(dataset, Dataset):
        return (
            "but train_dataset is a stream, from which no further prompts can be drawn at will: load it whole "
            "(streaming=False), or set rounds=0"
        )
    return ""


def refuse_images(images: Any) -> None:
    """OptionError for images in rows that must be sampled in parts or put together from several rounds."""
    if images is not None:
        raise OptionError("images in the prompts: the objective's slot `rollout` cannot have rounds or a share below 1")


def check_measuring(sink: Any, interval: int, diagnostics_interval: int) -> None:
    """ValueError for an interval that never comes, or an interval of tokens without a sink."""
    if interval < 0 or (interval and sink is None):
        raise ValueError(f"token_interval={interval} needs a token_sink, and a number of steps >= 0; 0 switches it off")
    if diagnostics_interval < 0:
        raise ValueError(
            f"diagnostics_interval={diagnostics_interval} must be a number of steps >= 0; 0 switches it off"
        )


def task_names(dataset: Any) -> list[str]:
    """The values of the column `task`, sorted, where a dataset can be read without walking through a stream."""
    if isinstance(dataset, Dataset) and "task" in dataset.column_names:
        return sorted({str(name) for name in dataset.unique("task") if name is not None})
    return []
