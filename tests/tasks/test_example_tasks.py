"""The tasks in examples/tasks: one file each, and usable wherever a task's name is."""

import ast

import pytest
from typer.testing import CliRunner

from isentrope import tasks
from isentrope.cli import app

EXAMPLES = ("sort_digits",)


@pytest.fixture
def reference(root):
    return lambda file: f"{root / 'examples' / 'tasks' / file}.py:{file}"


def test_every_file_of_the_folder_is_tested(root):
    assert {path.stem for path in (root / "examples" / "tasks").glob("*.py")} == set(EXAMPLES)


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_is_short_has_no_base_class_and_says_how_to_run_it(root, file):
    text = (root / "examples" / "tasks" / f"{file}.py").read_text()
    assert len(text.splitlines()) < 45
    (found,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    assert found.bases == []
    assert f"\n    isentrope train --task examples/tasks/{file}.py:{file}\n" in text


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_validates_and_is_scored_for_trl_and_verl(reference, file):
    task = tasks.get(reference(file))
    task.validate()
    example = task.examples("train", 1, 0)[0]
    for text, outcome in ((example.references[0], "right"), (example.references[0] + "0", "wrong"), ("", "wrong")):
        assert task.score(text, example).outcome == outcome
        assert tasks.compute_score(reference(file), text, f'"{example.answer}"')["outcome"] == outcome
    rows = tasks.dataset_rows(task, "train", 4, 0)
    columns = {name: [row[name] for row in rows] for name in ("task", "answer")}
    texts = [row["answer"].strip('"') for row in rows]
    assert tasks.reward_function(task)([row["prompt"] for row in rows], texts, **columns) == [1.0] * 4


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_trains_a_model(reference, file, tmp_path):
    settings = ["trainer.prompts=4", "trainer.group_size=4", "trainer.max_completion_length=8", "evaluation.problems=3"]
    options = [word for setting in (*settings, "evaluation.samples=2") for word in ("--set", setting)]
    result = CliRunner().invoke(
        app, ["train", "--task", reference(file), "--steps", "2", "--out", str(tmp_path / "run"), *options]
    )
    assert result.exit_code == 0, result.output
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 2
