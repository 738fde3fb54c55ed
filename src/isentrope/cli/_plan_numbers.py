"""The arithmetic of a recipe: batches, tokens, epochs, bytes on a GPU. No host framework, no download."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.recipe import Recipe
from isentrope.sizing import BYTES, GIB, Architecture, Step
from isentrope.tasks import Prompt, Task

ASSUMED_PROMPT = 1024  # tokens, where no problem is at hand
LOOKED_AT = 64  # problems of a task whose prompts are measured
COMPUTE = 2  # bytes of a number under bf16 or fp16
UTILIZATION = 0.3  # of a GPU's memory that TRL gives to a vLLM beside the trainer, its default


def batches(recipe: Recipe, gpus: int) -> dict[str, Any]:
    """Rows, updates and tokens, from the recipe alone; tokens are at full length, so a bound.

    rows: completions of a rollout batch. update_rows: of an optimizer step, over all GPUs. micro_rows: of a forward
    pass on one GPU (not whole where GPUs cannot share evenly). accumulation: forward passes of an optimizer step on
    one GPU. epochs: how often the run goes through its problems. steps_per_epoch: optimizer steps.
    """
    loop = recipe.trainer
    rollouts = math.ceil(loop.steps / loop.updates_per_rollout)
    update_rows = loop.rows // loop.minibatches
    return {
        "prompts": loop.prompts,
        "group_size": loop.group_size,
        "rows": loop.rows,
        "updates_per_rollout": loop.updates_per_rollout,
        "passes": loop.passes,
        "update_rows": update_rows,
        "micro_rows": loop.micro_rows / gpus,
        "accumulation": update_rows // loop.micro_rows,
        "steps": loop.steps,
        "rollouts": rollouts,
        "problems": loop.problems,
        "epochs": rollouts * loop.prompts / loop.problems,
        "steps_per_epoch": loop.problems / loop.prompts * loop.updates_per_rollout,
        "tokens_per_rollout": loop.rows * loop.max_completion_length,
        "tokens_per_update": update_rows * loop.max_completion_length,
        "tokens": rollouts * loop.rows * loop.max_completion_length,
    }


def data(recipe: Recipe) -> list[dict[str, Any]]:
    """Each task of the mix: its share of the prompts, where its problems come from, and whether they are here.

    present: whether a training problem can be had; why: if not, the reason. held_out: the same for the problems of the
    evaluation. prompt: the most characters among the prompts looked at, which bounds their tokens; chat: whether they
    are chat messages; both None where absent.
    Raises IsentropeError for a task or an option that does not exist.
    """
    weights = math.fsum(task.weight for task in recipe.task)
    found = []
    for entry in recipe.task:
        task = tasks.get(entry.name, **entry.options)
        prompts, why = _prompts(task, recipe)
        lengths = [len(str(prompt)) for prompt in prompts]
        found.append(
            {
                "task": task.name,
                "share": entry.weight / weights,
                "options": dict(entry.options),
                "present": not why,
                "why": why,
                "held_out": _held_out(task, recipe),
                "prompt": max(lengths, default=None),
                "chat": not isinstance(prompts[0], str) if prompts else None,
            }
        )
    return found


def _prompts(task: Task, recipe: Recipe) -> tuple[list[Prompt], str]:
    try:
        examples = task.examples("train", min(LOOKED_AT, recipe.trainer.problems), recipe.seed)
    except IsentropeError as error:
        return [], str(error)
    return [example.prompt for example in examples], ""


def _held_out(task: Task, recipe: Recipe) -> str:
    """Why the evaluation's problems cannot be had; nothing where they can, or none are wanted."""
    if not recipe.evaluation.problems:
        return ""
    try:
        task.examples("test", recipe.evaluation.problems, recipe.seed)
    except IsentropeError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU, by what holds them, and how many completions it samples at a time.

    train: in an optimizer step. rollout: while sampling. tokens: of prompt and completion at full length. rows: that
    one GPU samples in a rollout. room: of these a vLLM beside the trainer holds at a time; None without one.
    kept_logits: what the token-by-vocabulary matrix would take on top, which no head here keeps.
    """

    train: dict[str, int]
    rollout: dict[str, int]
    tokens: int
    rows: int
    room: int | None
    kept_logits: int

    @property
    def peak(self) -> int:
        """The larger of both sums."""
        return max(sum(self.train.values()), sum(self.rollout.values()))


def memory(
    recipe: Recipe, shape: Architecture, options: Mapping[str, Any], gpus: int, prompt: int, gpu_bytes: int
) -> Memory:
    """What a run with AdamW holds on one of `gpus` GPUs of `gpu_bytes` each.

    options: fields of trl.GRPOConfig; read are precision, checkpointing and vLLM's. Over one GPU weights, gradients and
    optimizer are shared out over all (FSDP, ZeRO-3). prompt: tokens.
    While transformers samples, a GPU holds a whole copy of the weights where they are shared out, and the cache of all
    its rows; a vLLM beside the trainer takes its share of the GPU, in training too unless it may sleep.
    """
    step = _step(recipe, shape, options, gpus, prompt)
    train = step.memory()
    state = {name: train[name] for name in ("weights", "optimizer")}
    rows, room = math.ceil(recipe.trainer.rows / gpus), None
    if not options.get("use_vllm"):
        copy = shape.parameters * step.compute_bytes if gpus > 1 else 0
        state |= {"copy of the weights": copy, "cache": rows * step.tokens * shape.cache_bytes(step.compute_bytes)}
    elif options.get("vllm_mode", "colocate") == "colocate":
        reserved = int(options.get("vllm_gpu_memory_utilization", UTILIZATION) * gpu_bytes)
        parallel = int(options.get("vllm_tensor_parallel_size", 1))
        free = reserved * parallel - shape.parameters * COMPUTE
        room = max(0, free // (step.tokens * shape.cache_bytes(COMPUTE)))
        state["vLLM"] = reserved
        if not options.get("vllm_enable_sleep_mode"):
            train["vLLM"] = reserved
    kept = replace(step, full_logits=True).memory()["logits"]
    return Memory(train, state, step.tokens, rows, room, kept)


def _step(recipe: Recipe, shape: Architecture, options: Mapping[str, Any], gpus: int, prompt: int) -> Step:
    width = BYTES[recipe.model.dtype]
    mixed = options.get("bf16") or options.get("fp16")
    return Step(
        shape,
        rows=max(1, math.ceil(recipe.trainer.micro_rows / gpus)),
        tokens=prompt + recipe.trainer.max_completion_length,
        weight_bytes=width,
        compute_bytes=min(width, COMPUTE) if mixed else width,
        gpus=gpus,
        recompute=bool(options.get("gradient_checkpointing") or options.get("activation_checkpointing")),
    )


def gib(amount: float) -> str:
    """Bytes as a text.

    >>> gib(1.25 * 2**30), gib(12 * 2**20)
    ('1.25 GiB', '12.0 MiB')
    """
    return f"{amount / GIB:.2f} GiB" if amount >= GIB else f"{amount / 2**20:.1f} MiB"


def short(count: float) -> str:
    """A large number as a text of three digits.

    >>> short(7_615_616_512), short(341_952), short(512)
    ('7.62 B', '342 k', '512')
    """
    for unit, name in ((1e9, " B"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return f"{count:.3g}"
