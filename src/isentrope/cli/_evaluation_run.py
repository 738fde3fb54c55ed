"""Running an evaluation: sample, judge, keep, sum up, compare.

    out/
      settings.json     the settings as resolved; a continued evaluation must have the same
      problems.jsonl    every problem with its judged completions, see `isentrope.results`; --completions reads it again
      results.json      the results
      baseline/         the same for the model of --baseline

**results.json.** `schema` 1. `model`, null for saved completions. `settings`: as in settings.json. `versions`: see
`record.versions`, and `backend`. `tasks`: a list of `evaluate.Report.to_dict()`, each with `figures` on top: key of a
problem -> figure -> [a, b], which sums of a over sums of b make the figure of the task (`results.Problem.figures`); by
these two evaluations are compared problem by problem. `comparison`, where there is a baseline: `baseline` its model,
`differs` the settings in which it was another evaluation, `tasks` a list of {task, problems, differences, intervals},
this model minus the baseline. Numbers that are not finite are the strings "nan", "inf", "-inf".
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from isentrope import record, results, saved
from isentrope.cli import _evaluation
from isentrope.cli._errors import INTERRUPTED, say
from isentrope.cli._evaluation import Plan, Request
from isentrope.cli._evaluation_progress import progress
from isentrope.cli._evaluation_table import show
from isentrope.cli._output import print_json
from isentrope.errors import IsentropeError
from isentrope.evaluate import columns, difference, judge, summarise
from isentrope.results import Pair, Problem
from isentrope.sampling import Completion
from isentrope.tasks import Example, Task

SCHEMA = 1
PROBLEMS, RESULTS = "problems.jsonl", "results.json"
COMPARED = (
    "samples",
    "seed",
    "temperature",
    "max_tokens",
    "backend",
    "dtype",
)  # settings that a comparison wants equal


def run(
    request: Request, completions: Path | None, baseline: str | None, out: Path | None, *, resume: bool, as_json: bool
) -> None:
    """Evaluate as asked, print the table or JSON, and write the folder."""
    console = Console(stderr=as_json, highlight=False)
    if completions is None:
        found = _of_models(request, baseline, out, resume, console)
    elif resume:
        raise IsentropeError("--resume continues an evaluation of a model; scoring a file starts anew")
    else:
        found = _of_file(request, completions, baseline, out, console)
    if as_json:
        print_json(found)
    else:
        show(console, found)


def _of_models(
    request: Request, baseline: str | None, out: Path | None, resume: bool, console: Console
) -> dict[str, Any]:
    if resume and out is None:
        raise IsentropeError("--resume needs --out with the folder of the evaluation to continue")
    plan = _evaluation.resolve(request)
    earlier = _read_results(Path(baseline)) if baseline and _is_results(Path(baseline)) else None
    path = _evaluation.folder_for(out, plan.model)
    found = _evaluate(plan, path, resume, console)
    if baseline and earlier is None:
        same = replace(_evaluation.other(plan, baseline), max_tokens=found["settings"]["max_tokens"])
        inner = path / "baseline"
        earlier = _evaluate(same, inner, resume and inner.is_dir(), console)
    if earlier is not None:
        found |= _comparison(found, earlier)
        record.write_json(path / RESULTS, found)
    console.print(f"results in {path}", markup=False, soft_wrap=True)
    return found


def _of_file(request: Request, path: Path, baseline: str | None, out: Path | None, console: Console) -> dict[str, Any]:
    earlier = _read_results(Path(baseline)) if baseline else None
    if out is not None:
        record.RunFolder.create(out)
    found, judged = _score_file(request, path, console)
    found |= _comparison(found, earlier) if earlier is not None else {}
    if out is not None:
        results.append(out / PROBLEMS, judged)
        record.write_json(out / RESULTS, found)
    return found


def _is_results(path: Path) -> bool:
    return path.is_file() or (path / RESULTS).is_file()


def _read_results(path: Path) -> dict[str, Any]:
    """The results of an earlier evaluation: its results.json, or the folder with it."""
    file = path / RESULTS if path.is_dir() else path
    found = record.read_json(file)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise IsentropeError(f"--baseline {file}: this is no results.json of schema {SCHEMA}")
    return found


def _evaluate(plan: Plan, path: Path, resume: bool, console: Console) -> dict[str, Any]:
    """Sample and judge what is missing in the folder; the results of all."""
    problems = plan.problems()
    _evaluation.open_folder(path, plan, resume)
    with record.locked(path):
        done = _done(path / PROBLEMS)
        try:
            evaluation = _Evaluation(plan, path, console)
            found = evaluation.run(problems, done)
        except KeyboardInterrupt:
            say(f"stopped; what is judged is kept: repeat the command with --resume --out {path}")
            raise typer.Exit(INTERRUPTED) from None
        full = _results(evaluation.plan, evaluation.sampler.name, evaluation.sampler.entropy_kind, found)
        record.write_json(path / RESULTS, full)
    return full


def _results(plan: Plan, backend: str, entropy_kind: str, found: Sequence[Sequence[Problem]]) -> dict[str, Any]:
    settings = (plan.temperature, plan.max_tokens or 0, plan.seed, entropy_kind)
    return {
        "schema": SCHEMA,
        "model": plan.model,
        "settings": plan.to_dict(),
        "versions": record.versions(plan.seed) | {"backend": backend},
        "tasks": [summarise(problems, *settings).to_dict() | _figures(problems) for problems in found],
    }


def _done(path: Path) -> dict[str, Problem]:
    if not path.is_file():
        return {}
    results.repair(path)
    return {problem.key: problem for problem in results.read(path)}


class _Evaluation:
    """One model on several tasks."""

    def __init__(self, plan: Plan, path: Path, console: Console) -> None:
        from isentrope import samplers

        self.sampler = samplers.load(plan.backend, plan.source, plan.dtype, plan.batch)
        self.plan, self._file, self._console = plan, path / PROBLEMS, console

    def run(self, problems: Sequence[tuple[Task, list[Example]]], done: Mapping[str, Problem]) -> list[list[Problem]]:
        """The judged problems of each task; what is not done is sampled, and appended to the file group by group.

        They come in the order of their keys, as those of a file do: resampling draws by place.
        """
        encoded = [[self.sampler.encode(example.prompt) for example in examples] for _, examples in problems]
        self.plan = replace(self.plan, max_tokens=self._longest([ids for rows in encoded for ids in rows]))
        return [
            self._task(task, examples, rows, done) for (task, examples), rows in zip(problems, encoded, strict=True)
        ]

    def _task(
        self, task: Task, examples: Sequence[Example], encoded: Sequence[list[int]], done: Mapping[str, Problem]
    ) -> list[Problem]:
        keys = [results.problem_key(example) for example in examples]
        found = {key: done[key] for key in keys if key in done}
        groups = _evaluation.sorted_batches([len(ids) for ids in encoded], self.plan.samples, self.plan.batch)
        with progress(self._console, f"{self.plan.model}: {task.name}", len(examples), len(found)) as advance:
            for places in groups:
                missing = [place for place in places if keys[place] not in found]
                if not missing:
                    continue
                # the whole group again, so that rounding is as in an evaluation that was not interrupted
                drawn = self._draw(task, [examples[place] for place in places], [keys[place] for place in places])
                rows = dict(zip(places, drawn, strict=True))
                judged = [judge(task, examples[place], rows[place]) for place in missing]
                results.append(self._file, judged)
                found |= {problem.key: problem for problem in judged}
                advance(len(missing))
        return [found[key] for key in sorted(keys)]

    def _draw(self, task: Task, examples: list[Example], keys: list[str]) -> list[list[Completion]]:
        plan = self.plan
        assert plan.max_tokens is not None
        seeds = [_seed(plan.seed, key) for key in keys]
        return self.sampler.draw(task, examples, plan.samples, plan.max_tokens, plan.temperature, seeds)

    def _longest(self, encoded: Sequence[Sequence[int]]) -> int:
        """Tokens of a completion: as asked for, else what the model's context leaves, up to MOST_TOKENS."""
        if self.plan.max_tokens is not None:
            return self.plan.max_tokens
        longest = max(map(len, encoded))
        left = min(_evaluation.MOST_TOKENS, (self.sampler.context or math.inf) - longest)
        if left < 1:
            raise IsentropeError(f"a prompt of {longest} tokens fills the model's context of {self.sampler.context}")
        return int(left)


def _seed(seed: int, key: str) -> int:
    """A seed for one problem, which depends on nothing but the evaluation's seed and the problem."""
    return int.from_bytes(hashlib.sha256(f"{seed}|{key}".encode()).digest()[:8], "big") >> 2


def _figures(problems: Sequence[Problem]) -> dict[str, Any]:
    samples = max(len(problem.samples) for problem in problems)
    by_name = columns(problems, samples)
    return {
        "figures": {
            problem.key: {name: list(column[place]) for name, column in by_name.items()}
            for place, problem in enumerate(problems)
        }
    }


def _score_file(request: Request, path: Path, console: Console) -> tuple[dict[str, Any], list[Problem]]:
    """Judge saved completions: the results, and all problems."""
    tasks = _evaluation.for_completions(request, path)
    judged: list[list[Problem]] = []
    for name, rows in saved.read(path, tasks, default=next(iter(tasks)) if len(tasks) == 1 else None).items():
        judged.append([])
        with progress(console, f"{path.name}: {name}", len(rows), 0) as advance:
            for row in rows:
                judged[-1].append(results.judge(tasks[name], row.example, row.completions, row.known))
                advance(1)
        judged[-1].sort(key=lambda problem: problem.key)
    found = {
        "schema": SCHEMA,
        "model": None,
        "settings": {"completions": str(path), "tasks": sorted(tasks)},
        "versions": record.versions(request.seed),
        "tasks": [summarise(problems, math.nan, 0, request.seed).to_dict() | _figures(problems) for problems in judged],
    }
    return found, [problem for problems in judged for problem in problems]


def _comparison(found: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, Any]:
    """This evaluation minus an earlier one, task by task."""
    before = {report["task"]: report["figures"] for report in earlier["tasks"]}
    shared = [report for report in found["tasks"] if report["task"] in before]
    if not shared:
        raise IsentropeError(
            f"the baseline was evaluated on {', '.join(before)} and has none of the tasks"
            f" {', '.join(report['task'] for report in found['tasks'])}"
        )
    tasks = [
        asdict(difference(report["task"], _pairs(before[report["task"]]), _pairs(report["figures"])))
        for report in shared
    ]
    settings = (earlier["settings"], found["settings"])
    differs = {
        name: [one.get(name) for one in settings] for name in COMPARED if len({one.get(name) for one in settings}) > 1
    }
    return {"comparison": {"baseline": earlier["model"], "differs": differs, "tasks": tasks}}


def _pairs(figures: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, Pair]]:
    return {key: {name: (pair[0], pair[1]) for name, pair in row.items()} for key, row in figures.items()}
