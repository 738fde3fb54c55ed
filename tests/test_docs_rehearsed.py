"""The commands of the README and of pages on the command are run in order, in one folder, cut short where they train.

`shorter` says what is added to a command so that it takes seconds; `ELSEWHERE` what is not run here, and why. The first
steps and the how-to pages are run as they stand, by `test_docs_run`.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isentrope.cli import app

from .test_docs import ROOT
from .test_docs_run import steps

NAMES = ("tabular", "tutorial", "agents", "recipes", "evaluate", "precision", "diagnose")
PAGES = ["README.md", *(f"docs/{name}.md" for name in NAMES)]
ELSEWHERE = {
    "make ": "installs",
    "source ": "is the shell's",
    "--engine verl": "needs verl's environment; tests/verl runs such jobs",
    "--model smollm2": "needs make smollm2; tests/test_models.py has it",
    "Qwen/": "needs a model hub and a GPU",
    "ce_gppo-7b --objective": "needs GPUs",
    "runs/ce_gppo": "needs a run of GPUs",
    "my-model": "needs a model of the reader's",
    "--baseline evaluations/first": "needs results of the reader's",
    "mine.jsonl": "needs completions of the reader's",
    "mine.toml": "needs a recipe of the reader's",
    "grpo.yaml": "needs a configuration of the reader's; tests/cli/test_train_config.py has some",
    "runs/first": "needs a run of the reader's",
    "output/ metrics.jsonl": "needs logs of the reader's",
    "table.csv": "needs a table of the reader's",
    "verl.jsonl": "needs logs of the reader's",
}
STAGES = [word for n in range(3) for word in ("--set", f"stage.{n}.steps=8")]


def commands(page: Path) -> Iterator[str]:
    """Every line of a page that a reader would type."""
    for step in steps(page):
        if step.words[0] == "console":
            yield from step.commands


def why_not(command: str) -> str:
    """Why a command is not run here; empty where it is."""
    said = command.partition(" #")[0]  # without its comment
    return next((reason for part, reason in ELSEWHERE.items() if part in said), "")


def shorter(words: list[str]) -> list[str]:
    """What makes a command take seconds; of an option that is given twice, the command takes the last."""
    verb, small = words[0], {"tabular", "chains", "stages"} & set(words)
    if verb == "eval":
        return ["--limit", "4", "--k", "2"]
    if verb not in ("train", "compare") or {"--dry-run", "--resume"} & set(words) or (small and verb == "train"):
        return []
    few = ["--seeds", "2"] if verb == "compare" else []
    if "sequence" in words:
        return [*few, *STAGES, "--steps", "24", "--set", "evaluation.problems=4"]
    cold = ["--set", "warmup.steps=0"] if "apps" in words else []
    return [*few, *cold, "--steps", "32" if small else "8", "--set", "evaluation.problems=4"]


@pytest.mark.slow
@pytest.mark.engine
def test_what_the_pages_say_to_type_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for page in PAGES:
        for command in commands(ROOT / page):
            if why_not(command):
                continue
            program, *words = shlex.split(command, comments=True)
            assert program == "isentrope", f"{page}: $ {command}"
            done = CliRunner().invoke(app, [*words, *shorter(words)])
            fine = {0, 1} if words[0] in ("diagnose", "diff") else {0}  # 1: it found a fault, or a difference
            assert done.exit_code in fine, f"{page}: $ {command}\n{done.output}"


def test_every_reason_is_needed_and_most_commands_run() -> None:
    found = [command for page in PAGES for command in commands(ROOT / page)]
    assert [part for part in ELSEWHERE if not any(part in command for command in found)] == []
    assert not why_not("isentrope train  # what make train runs")
    assert sum(not why_not(command) for command in found) > len(found) / 2


def test_only_what_takes_minutes_is_cut_short() -> None:
    assert shorter(["list"]) == shorter(["train", "--engine", "tabular"]) == shorter(["train", "--dry-run"]) == []
    assert shorter(["train"])[:2] == ["--steps", "8"]
    assert shorter(["compare", "tabular"])[:4] == ["--seeds", "2", "--steps", "32"]
