"""What is settled before training: configuration, reference model, the sampler's correction, the order of prompts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig
from trl.trainer.utils import RepeatSampler, get_config_model_id

from isentrope.engines.trl_batch import SamplerCorrection, refuse_empty
from isentrope.engines.trl_options import OptionError
from isentrope.objective import Objective
from isentrope.rollout import Rollout


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


def checked_rollouts(rollout_func: Any) -> Any:
    """The user's rollout function, refusing completions without a token; None stays None."""
    if rollout_func is None:
        return None

    def checked(prompts: Any, trainer: Any) -> Any:
        output = rollout_func(prompts, trainer)
        refuse_empty(output.get("completion_ids", ()), "rollout_func")
        return output

    return checked


def check_rollout(objective: Objective) -> None:
    """OptionError for an objective that asks for a way of sampling which this engine does not have."""
    if objective.rollout != Rollout():
        raise OptionError(
            f"the objective asks for {objective.rollout!r}, which this engine cannot do yet: it samples every prompt "
            "once, at the option `temperature`; leave the slot `rollout` empty"
        )


def check_sink(sink: Any, interval: int) -> None:
    """ValueError for an interval that never, or an interval without a sink."""
    if interval < 0 or (interval and sink is None):
        raise ValueError(f"token_interval={interval} needs a token_sink, and a number of steps >= 0; 0 switches it off")


def task_names(dataset: Any) -> list[str]:
    """The values of the column `task`, sorted, where a dataset can be read without walking through a stream."""
    if isinstance(dataset, Dataset) and "task" in dataset.column_names:
        return sorted({str(name) for name in dataset.unique("task") if name is not None})
    return []
