"""`isentrope eval`: how good a model is at tasks, how sure that is, and how it differs from another."""

from pathlib import Path
from typing import Annotated

import typer

from isentrope.cli import _completion
from isentrope.errors import IsentropeError


def eval(
    model: Annotated[
        str | None,
        typer.Argument(
            help="embedded, smollm2, a folder, a cached hub id, or a run folder (its last checkpoint).",
            autocompletion=_completion.models,
        ),
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Tasks, or file.py:name. [default: those of the run]",
            autocompletion=_completion.task_list,
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", "--samples", min=1, help="Completions of each problem.")] = 8,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of evaluation sets. [default: $ISENTROPE_DATA]")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", metavar="TASK.OPTION=VALUE", help="An option of a task.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="MODEL|FILE", help="Compare with a model, or with its results.json.")
    ] = None,
    completions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Score the completions in a file; no model is loaded.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the results. [default: evaluations/TIME-MODEL]")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue in --out; the other options must be as they were.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples.")] = 0,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of the samples; 0 is greedy. [default: 1]")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a completion. [default: those of the run, or up to 1024]")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Problems of a task at most.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Completions sampled at a time.")] = 64,
    backend: Annotated[
        str, typer.Option(help="transformers, vllm, or auto.", autocompletion=_completion.backends)
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(help="Of the weights: float32, bfloat16, float16, or auto.", autocompletion=_completion.dtypes),
    ] = "auto",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON, everything else on stderr.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Measure a model on tasks: pass@k, avg@k, majority@k, entropy and length, with intervals over problems.

    Example: isentrope eval runs/mine --baseline embedded

    Saved completions of any program: isentrope eval --completions mine.jsonl --tasks gsm8k

    Ctrl-C loses nothing: --resume goes on in the same folder, with the same numbers in the end.
    """
    from isentrope.cli import _evaluation, _evaluation_run

    request = _evaluation.Request(
        model=model,
        tasks=tasks,
        samples=k,
        data_dir=data_dir,
        assign=tuple(assign or ()),
        seed=seed,
        temperature=temperature,
        max_tokens=max_tokens,
        limit=limit,
        batch=batch,
        backend=backend,
        dtype=dtype,
    )
    if completions is None and model is None:
        raise IsentropeError("name a model to evaluate, or a file of completions with --completions")
    if completions is not None and model is not None:
        raise IsentropeError(f"--completions scores a file without a model; leave out {model} or --completions")
    _evaluation_run.run(request, completions, baseline, out, resume=resume, as_json=as_json)
