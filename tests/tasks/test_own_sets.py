"""Programs and instructions from files of one's own, judged as MBPP and IFEval are."""

import json

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError

PROGRAMS = [
    {
        "task_id": i,
        "text": f"Write a function add_{i} that adds {i} to a number.",
        "code": f"def add_{i}(x):\n    return x + {i}",
        "test_list": [f"assert add_{i}(1) == {1 + i}", f"assert add_{i}(5) == {5 + i}"],
        "test_setup_code": "",
    }
    for i in range(12)
]
PROMPTS = [
    {
        "key": i,
        "prompt": f"Write about the number {i} without commas, in lower case.",
        "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"],
        "kwargs": [{}, {}],
    }
    for i in range(12)
]


def _folder(path, **files):
    for name, rows in files.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_programs_are_split_and_judged_by_their_tests(tmp_path):
    task = tasks.get("code", data_dir=_folder(tmp_path, code_train=PROGRAMS), execute=True)
    train = task.examples("train", 50, 0)
    ids = {one.answer["id"] for one in train}
    test = task.examples("test", 12 - len(ids), 0)
    assert ids | {one.answer["id"] for one in test} == set(range(12))
    assert {one.task for one in train} == {"code"}
    example = train[0]
    assert task.score(example.references[0], example).outcome == "right"
    wrong = example.references[0].replace("return x", "return 1 + x")
    assert task.score(wrong, example).outcome == "wrong"


def test_programs_need_consent(tmp_path, monkeypatch):
    monkeypatch.delenv("ISENTROPE_EXECUTE_CODE", raising=False)
    task = tasks.get("code", data_dir=_folder(tmp_path, code_train=PROGRAMS))
    with pytest.raises(IsentropeError, match="execute"):
        task.examples("train", 1, 0)


def test_instructions_are_judged_and_partly_rewarded(tmp_path):
    pytest.importorskip("langdetect")
    task = tasks.get(
        "instructions", data_dir=_folder(tmp_path, instructions_train=PROMPTS, instructions_test=PROMPTS[:3])
    )
    example = task.examples("train", 1, 0)[0]
    assert example.task == "instructions"
    assert task.score("it is a plain number that many people like", example).outcome == "right"
    half = task.score("it is plain, and many people like it", example)
    assert (half.outcome, half.reward) == ("wrong", 0.5)
    assert len(task.examples("test", 3, 0)) == 3
    task.validate()
    strict = tasks.get("instructions", data_dir=tmp_path, reward="all")
    assert strict.score("it is plain, and many people like it", example).reward == 0.0


@pytest.mark.parametrize("name", ["code", "instructions"])
def test_data_that_are_missing_are_named(name, tmp_path):
    options = {"execute": True} if name == "code" else {}
    task = tasks.get(name, data_dir=tmp_path, **options)
    with pytest.raises(IsentropeError, match=rf"holds no {name}_train\.jsonl"):
        task.examples("train", 1, 0)
