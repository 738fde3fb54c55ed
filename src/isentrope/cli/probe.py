"""`isentrope probe`: what number formats do to the ratios of a model."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from isentrope.cli import _completion
from isentrope.cli._output import console, print_json, table

if TYPE_CHECKING:
    from isentrope.precision import ProbeReport, Sample, SamplerReport


def probe(
    model: Annotated[
        str, typer.Argument(help="embedded, smollm2, a folder, or a hub id.", autocompletion=_completion.models)
    ],
    task: Annotated[
        str | None, typer.Option(help="Task whose prompts are continued.", autocompletion=_completion.tasks)
    ] = None,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="Prompts of your own, one a line.")] = None,
    count: Annotated[int, typer.Option(min=1, help="Prompts.")] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens a completion.")] = 48,
    batch: Annotated[int, typer.Option(min=2, help="Rows of the padded batches.")] = 8,
    temperature: Annotated[float, typer.Option(min=1e-3, help="Sampling temperature.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of prompts and completions.")] = 0,
    formats: Annotated[list[str] | None, typer.Option("--format", help="Only this format; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Write the comparison as an image.")] = None,
    sampler: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run folder with a token dump: its sampler against its trainer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001
) -> None:
    """Measure on a model's own completions what each number format does to ratios.

    Every completion is scored twice with the same weights, alone and in a padded batch: a ratio outside the clip band
    is an error of the format alone.

    Example: isentrope probe embedded --plot formats.png

    With prompts of your own: isentrope probe ./my-model --prompts prompts.txt
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    from isentrope import models, precision

    chosen = _chosen(formats)
    loaded, tokenizer = models.load(model)
    samples = _samples(loaded, tokenizer, _prompts(model, task, prompts, count, seed), tokens, temperature, seed)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True
    ) as bar:
        line = bar.add_task("scoring")
        report = precision.probe(
            loaded,
            samples,
            chosen,
            temperature=temperature,
            batch_size=batch,
            progress=lambda name: bar.update(line, description=f"scoring in {name}"),
        )
    against = None if sampler is None else _against_sampler(sampler)
    if plot is not None:
        write_plot(report, plot)
    if as_json:
        asked = {"model": model, "seed": seed, "temperature": temperature, "batch": batch}
        print_json(asked | report.to_dict() | ({} if against is None else {"sampler": asdict(against)}))
        return
    _print(report, plot)
    if against is not None:
        _print_sampler(against)


def _against_sampler(run: Path) -> "SamplerReport":
    """The sampler of a run against its trainer, on the tokens of its dumps."""
    import torch

    from isentrope.errors import IsentropeError
    from isentrope.precision import sampler_report, sampler_tally
    from isentrope.tally import merge
    from isentrope.token_dump import iter_tokens, token_steps

    folder = run / "tokens" if (run / "tokens").is_dir() else run
    steps = token_steps(folder)
    if not steps:
        raise IsentropeError(f"{run} holds no token dump: train with --tokens N")
    names = ["old_logp", "rollout_logp", "mask"]
    batches = (batch for step in steps for batch in iter_tokens(folder, step, names))
    columns = ([torch.tensor(batch.column(name).to_numpy(zero_copy_only=False)) for name in names] for batch in batches)
    return sampler_report(merge(sampler_tally(old[mask], rollout[mask]) for old, rollout, mask in columns))


def _print_sampler(found: "SamplerReport") -> None:
    out = console()
    tenths = [(f".{k}-", f"{x:.1g}") for k, x in enumerate(found.mismatch_by_tenth) if x == x]
    out.print(f"sampler against trainer, {found.num_tokens} tokens ({found.missing:.1%} without the sampler's number):")
    out.print(
        f"mean |log rho| {found.mismatch:.2g}, mean log rho {found.bias:+.1e} nats; rho < .8: {found.below:.2%},"
        f" rho > 1.2: {found.above:.2%}",
        markup=False,
        soft_wrap=True,
    )
    out.print(table(("probability", *(mark for mark, _ in tenths)), [("|log rho|", *(x for _, x in tenths))]))


def _chosen(names: list[str] | None) -> Any:
    from isentrope.errors import IsentropeError
    from isentrope.precision import FORMATS

    known = {form.name: form for form in FORMATS}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise IsentropeError(f"there is no format {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names] if names else FORMATS


def _prompts(model: str, task: str | None, file: Path | None, count: int, seed: int) -> list[Any]:
    from isentrope import tasks
    from isentrope.errors import IsentropeError

    if file is None:
        name = task or ("countdown" if model == "embedded" else "arithmetic_words")
        return [example.prompt for example in tasks.get(name).examples("test", count, seed)]
    try:
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise IsentropeError(f"cannot read prompts from {file}: {error}") from error
    if not lines:
        raise IsentropeError(f"{file} holds no prompt: write one a line")
    return lines[:count]


def _samples(
    model: Any, tokenizer: Any, prompts: list[Any], length: int, temperature: float, seed: int
) -> "list[Sample]":
    from isentrope.precision import Sample
    from isentrope.sampling import encode_prompt, sample

    drawn = sample(model, tokenizer, prompts, num_samples=1, max_new_tokens=length, temperature=temperature, seed=seed)
    encoded = [tuple(encode_prompt(tokenizer, prompt)) for prompt in prompts]
    return [Sample(ids, rows[0].tokens) for ids, rows in zip(encoded, drawn, strict=True)]


def _print(report: "ProbeReport", plot: Path | None) -> None:
    out = console()
    heads = ("format", "error", "largest", "E[r]-1", "std r", "r < .8", "r > 1.2", "pull", "bf16 grid")
    rows = [
        (
            form.name,
            f"{form.error:.2g}",
            f"{form.largest_error:.2g}",
            f"{form.ratio_bias:+.1e}",
            f"{form.ratio_spread:.1e}",
            f"{form.clipped_low:.2%}",
            f"{form.clipped_high:.2%}",
            f"{form.pull:+.1e}",
            f"{form.on_bfloat16_grid:.0%}",
        )
        for form in report.formats
    ]
    out.print(table(heads, rows))
    out.print("mean error of logp in nats, by tenth of the exact probability:")
    tenths = [k for k, n in enumerate(report.tokens_by_tenth) if n]
    marks = [f".{k}-" for k in tenths]
    body = [("tokens", *(str(report.tokens_by_tenth[k]) for k in tenths))]
    body += [(form.name, *(f"{form.error_by_tenth[k]:.1g}" for k in tenths)) for form in report.formats]
    out.print(table(("probability", *marks), body))
    out.print(
        f"{report.num_tokens} tokens; ratios between two evaluations of the same weights, alone and in a padded batch; "
        "pull: entropy change per unit step and token that they add to PPO's clip",
        markup=False,
    )
    out.print(report.advice, style="bold", markup=False, soft_wrap=True)
    if plot is not None:
        out.print(f"wrote {plot}", markup=False, soft_wrap=True)


def write_plot(report: "ProbeReport", path: Path) -> None:
    """Error by tenth of probability, and the share of ratios beyond each bound, as an image."""
    from matplotlib.figure import Figure

    from isentrope.record import writing

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for form in report.formats:
        centres = [(k + 0.5) / len(form.error_by_tenth) for k in range(len(form.error_by_tenth))]
        left.plot(centres, form.error_by_tenth, marker="o", label=form.name)
    left.set(
        yscale="log", xlabel="probability (float32)", ylabel="mean |error of logp|, nats", title="Log-probabilities"
    )
    left.legend(fontsize=7)
    names = [form.name for form in report.formats]
    right.barh(names, [-100 * form.clipped_low for form in report.formats], label="r < 0.8")
    right.barh(names, [100 * form.clipped_high for form in report.formats], label="r > 1.2")
    right.axvline(0, color="black", linewidth=0.8)
    right.invert_yaxis()
    right.set(xlabel="tokens outside the clip band, %", title="Ratios of equal weights")
    right.legend(fontsize=7)
    with writing(path):
        figure.savefig(path, dpi=120)
