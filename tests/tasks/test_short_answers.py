"""Sets of one's own: every layout of a record, both ways to a test split, and what is missing."""

import json

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks.short_answers import ShortAnswers

ROWS = [{"problem": f"What is {i} + {i}?", "answer": 2 * i} for i in range(60)]


def _folder(path, **files):
    path.mkdir(exist_ok=True)
    for name, rows in files.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (path / f"{name}.jsonl").write_text(text, encoding="utf-8")
    return path


def test_the_instruction_is_added_to_a_text_and_the_answer_is_the_gold_one(tmp_path):
    task = ShortAnswers("math", _folder(tmp_path, math_train=ROWS))
    (example,) = task.examples("train", 1, 0)
    (message,) = example.prompt
    assert message["content"].startswith("What is ")
    assert message["content"].endswith("within \\boxed{}.")
    number = int(message["content"].split()[2])
    assert example.answer == str(2 * number)
    assert task.score(f"So \\boxed{{{2 * number}.0}}", example).outcome == "right"
    assert task.score(f"So \\boxed{{{2 * number + 1}}}", example).outcome == "wrong"


def test_one_problem_in_five_is_held_out_where_there_is_no_test_set(tmp_path):
    task = ShortAnswers("science", _folder(tmp_path, science_train=ROWS))
    train = {str(one.prompt) for one in task.examples("train", 200, 0)}
    with pytest.raises(IsentropeError, match=r"task science has \d+ test problems"):
        task.examples("test", 60, 0)
    test = {str(one.prompt) for one in task.examples("test", 60 - len(train), 0)}
    assert 4 < len(test) < 24
    assert len(train) + len(test) == 60
    assert not train & test


def test_a_test_set_beside_it_is_taken_whole(tmp_path):
    task = ShortAnswers("math", _folder(tmp_path, math_train=ROWS[:50], math_test=ROWS[50:]))
    assert len({str(one.prompt) for one in task.examples("train", 500, 0)}) == 50
    assert len(task.examples("test", 10, 0)) == 10


def test_a_choice_is_an_answer_too(tmp_path):
    task = ShortAnswers("science", _folder(tmp_path, science_train=[{"problem": "A or B?", "answer": "B"}] * 2))
    split = "train" if task._pool("train") else "test"
    (example,) = task.examples(split, 1, 0)
    assert task.score("It is \\boxed{B}", example).outcome == "right"
    assert task.score("It is \\boxed{A}", example).outcome == "wrong"


def test_the_layout_of_other_sets_is_told_by_options(tmp_path):
    row = {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": "2"}}
    folder = _folder(tmp_path, math_train=[row], math_test=[row])
    task = tasks.get("math", data_dir=folder, problem="prompt", answer="reward_model.ground_truth")
    (example,) = task.examples("train", 1, 0)
    assert (example.prompt, example.answer) == (row["prompt"], "2")
    plain = _folder(tmp_path / "plain", math_train=ROWS[:1], math_test=ROWS[:1])  # a folder in place of the hub's set
    (example,) = tasks.get("math", data_dir=plain, problem="prompt", answer="reward_model.ground_truth").examples(
        "train", 1, 0
    )
    assert example.answer == "0"


def test_the_verifier_passes_the_checks_of_every_task(tmp_path):
    ShortAnswers("math", _folder(tmp_path, math_train=ROWS[1:7], math_test=ROWS[7:9])).validate()


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    with pytest.raises(IsentropeError, match=r"needs problems of your own: .* a folder with math_train.jsonl"):
        ShortAnswers("math").examples("train", 1, 0)
    with pytest.raises(IsentropeError, match=r"holds neither math_train\.jsonl"):
        ShortAnswers("math", tmp_path).examples("train", 1, 0)
    folder = _folder(tmp_path, math_train=[{"question": "x", "result": "1"}], math_test=[])
    with pytest.raises(IsentropeError, match="problem 1 has no field 'problem'; it has question, result"):
        ShortAnswers("math", folder).examples("train", 1, 0)
    with pytest.raises(IsentropeError, match=r"has no field 'a\.b'"):
        ShortAnswers("math", folder, problem="question", answer="a.b").examples("train", 1, 0)
    folder = _folder(tmp_path / "empty", math_train=[{"problem": "", "answer": "1"}])
    with pytest.raises(IsentropeError, match="the field 'problem' is empty"):
        ShortAnswers("math", folder).examples("train", 1, 0)
    with pytest.raises(ValueError, match=r"ShortAnswers.name is 'history'; it must be one of math, science"):
        ShortAnswers("history")
