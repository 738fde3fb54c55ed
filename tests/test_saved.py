"""Completions that another program saved: every way to name a problem, and every way to get a line wrong."""

import json

import pytest

from isentrope import results, saved, tasks
from isentrope.errors import IsentropeError


@pytest.fixture
def countdown():
    return tasks.get("countdown")


def _file(tmp_path, *rows):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def _read(path, **by_name):
    return saved.read(path, by_name, default=next(iter(by_name)) if len(by_name) == 1 else None)


def test_a_problem_is_found_by_its_answer_its_prompt_or_its_key(tmp_path, countdown):
    example = results.held_out_problems(countdown, saved.MOST_PROBLEMS, seed=0)[3]
    path = _file(
        tmp_path,
        {"answer": example.answer, "prompt": example.prompt, "completion": example.references[0]},
        {
            "prompt": f" {example.prompt}\n",
            "completions": ["a", "b"],
            "lengths": [3, None],
            "truncated": [True, False],
            "entropies": [0.5, 1.0],
        },
        {"key": results.problem_key(example), "completion": [{"role": "assistant", "content": "c"}], "length": 7},
    )
    (found,) = _read(path, countdown=countdown)["countdown"]
    assert found.example.answer == example.answer
    assert found.completions == (example.references[0], "a", "b", "c")
    assert [one["length"] for one in found.known] == [None, 3, None, 7]
    assert [one["truncated"] for one in found.known] == [None, True, False, None]
    assert [one["entropy"] for one in found.known] == [None, 0.5, 1.0, None]


def test_lines_are_sorted_by_task(tmp_path, countdown):
    digits = tasks.get("digitsum")
    rows = [
        {"task": name, "answer": i, "completion": "x"} for i, name in enumerate(["digitsum", "countdown", "digitsum"])
    ]
    path = _file(tmp_path, *rows)
    found = _read(path, countdown=countdown, digitsum=digits)
    assert {name: [one.example.answer for one in rows] for name, rows in found.items()} == {
        "digitsum": [0, 2],
        "countdown": [1],
    }
    assert saved.names(path) == ["digitsum", "countdown"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", r"line 2 is '\[1\]'; it must be an object"),
        ({"answer": 1}, "line 2 needs either 'completion' or 'completions', and has the keys answer"),
        ({"answer": 1, "completion": "x", "completions": ["x"]}, "line 2 needs either .* and has both"),
        ({"answer": 1, "completions": []}, "line 2: 'completions' is .* at least one text"),
        ({"answer": 1, "completions": "x"}, "line 2: 'completions' is .* must be a list"),
        ({"answer": 1, "completions": ["x", 3]}, "line 2: a completion is '3'; it must be a text or chat messages"),
        ({"completion": "x"}, "line 2 does not say which problem it answers; it needs one of answer, key, prompt"),
        (
            {"prompt": "9>9:", "completion": "x"},
            "line 2: its prompt '9>9:' is that of no test problem of task countdown",
        ),
        ({"prompt": 7, "completion": "x"}, "line 2: its prompt '' is that of no test problem"),
        ({"key": "abc", "completion": "x"}, "line 2: its key 'abc' is that of no test problem"),
        (
            {"task": "digitsum", "answer": 1, "completion": "x"},
            "line 2: its task is digitsum; the tasks here are count",
        ),
        (
            {"answer": 1, "completions": ["x", "y"], "lengths": [1]},
            "line 2: 'lengths' .* an int for each of the 2 compl",
        ),
        ({"answer": 1, "completion": "x", "length": "long"}, "line 2: 'length' is .* an? int for each of the 1 comple"),
        ({"answer": 1, "completion": "x", "truncated": 1}, "line 2: 'truncated' is '1'; it must hold a bool"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path, countdown, row, message):
    path = _file(tmp_path, {"answer": 1, "completion": "x"}, row)
    with pytest.raises(IsentropeError, match=message.replace("an int", "an? int")):
        _read(path, countdown=countdown)


def test_a_file_without_completions_is_refused(tmp_path, countdown):
    with pytest.raises(IsentropeError, match="holds no completions"):
        _read(_file(tmp_path, ""), countdown=countdown)
    with pytest.raises(IsentropeError, match="cannot read"):
        _read(tmp_path / "none.jsonl", countdown=countdown)


def test_a_file_of_several_tasks_needs_them_named(tmp_path, countdown):
    path = _file(tmp_path, {"answer": 1, "completion": "x"})
    with pytest.raises(IsentropeError, match="line 1: its task is None; the tasks here are countdown, digitsum"):
        _read(path, countdown=countdown, digitsum=tasks.get("digitsum"))
