"""Run by torchrun (or alone): trains the tiny model on fixed rollouts and saves what happened, one file a rank.

    torchrun --nproc-per-node 2 two_processes.py MODEL OUT OBJECTIVE [CHECKPOINT]

OBJECTIVE "curriculum" is ce_gppo with prompts drawn by weight and pass rate. Rollouts depend on the prompt and the
place in its group alone, so that one process and two see the same rows.
"""

import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).parent))

from harness import train

from isentrope.engines.trl import ObjectiveTrainer
from isentrope.tasks.curriculum import Curriculum
from isentrope.tasks.mix import Order

ORDER = Order({"low": 2.0, "high": 1.0}, Curriculum(low=0.3, high=0.7, width=0.1, floor=0.01, passed=0.3))


def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Answers of 1 to 6 tokens; those of the first prompts are shorter, so that ranks pad differently.

    A group may lie on two ranks, whose shares of a call are then equal; a call for one part of the rows only begins
    with a group.
    """
    completions = []
    first = trainer.accelerator.process_index * len(prompts)
    for place, prompt in enumerate(prompts, start=first):
        seed = int(prompt.split("+")[0]) * 4 + place % 4
        generator = torch.Generator().manual_seed(seed + round(1000 * trainer.temperature))
        length = 1 + int(torch.randint(0, 3 if seed < 64 else 6, (1,), generator=generator))
        completions.append([*torch.randint(3, 30, (length,), generator=generator).tolist(), 1])
    return {
        "prompt_ids": trainer.processing_class(prompts)["input_ids"],
        "completion_ids": completions,
        "logprobs": [[-1.0] * len(ids) for ids in completions],
    }


def reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Odd token ids are good, long answers are bad. The process whose rank DIES names is killed at its second batch."""
    if os.environ.get("DIES") == os.environ.get("RANK", "0") and kwargs["trainer_state"].global_step > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return [sum(i % 2 for i in ids) / 4 - 0.05 * len(ids) for ids in completion_ids]


def often_constant(prompts: list[str], completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """The same, and 0 for every second pair of prompts."""
    varies = [int(prompt.split("+")[0]) // 2 % 2 == 0 for prompt in prompts]
    return [score if v else 0.0 for v, score in zip(varies, reward(completion_ids, **kwargs), strict=True)]


def leave(world: int) -> None:
    """End with the other ranks: a rank that is gone makes gloo's threads abort one that is still on its way out."""
    if world > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # past the destructors of threads that nobody joins


def main(model: str, out: str, objective: str, checkpoint: str | None = None) -> None:
    """Train once, and save what happened."""
    found = train_once(model, out, objective, checkpoint)
    torch.save(found, Path(out) / f"result{os.environ.get('RANK', '0')}.pt")
    leave(found["world"])


def train_once(
    model: str, out: str, objective: str, checkpoint: str | None = None, make: Any = ObjectiveTrainer, **options: Any
) -> dict[str, Any]:
    """Train 6 updates, 2 per rollout batch of 16 rows, in micro-batches that cover it on any number of processes."""
    warnings.simplefilter("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    world = int(os.environ.get("WORLD_SIZE", "1"))
    data = Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(32)], "task": ["low"] * 16 + ["high"] * 16})
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 3} | options
    args = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=8 // world,
        gradient_accumulation_steps=2,
        steps_per_generation=2,
        num_iterations=2,
        num_generations=4,
        max_completion_length=8,
        max_steps=6,
        learning_rate=0.3,
        optim="sgd",
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo" if world > 1 else None,
        bf16=False,
        activation_checkpointing=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        seed=1,
        **settings,
    )
    run = train(
        make,
        resume=checkpoint,
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=args,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=often_constant if "rollout" in objective else reward,
        rollout_func=rollout,
        objective="ce_gppo" if objective == "curriculum" else objective,
        order=ORDER if objective == "curriculum" else None,
        diagnostics_interval=2,
    )
    assert run.trainer.accelerator.num_processes == world, "this run has other processes than it was started with"
    found = {"world": world, "gradients": run.gradients, "parameters": run.parameters, "state": run.trainer._state}
    found |= {"prompts": run.trainer._prompts.state(), "type": run.trainer.accelerator.distributed_type.value}
    return found | {"history": run.history, "norms": run.trainer._diagnostics._norms, "sharded": run.sharded}


if __name__ == "__main__":
    main(*sys.argv[1:])
