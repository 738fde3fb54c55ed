"""HumanEval and MBPP: the program in a completion, consent, the data sets' own solutions."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import humaneval, mbpp, programs, sandbox
from isentrope.tasks.base import MAX_COMPLETION
from isentrope.tasks.sandbox import Sandbox, SandboxError

PROMPT = """\
from typing import List


def helper(x):
    return x + 1


def add(a: int, b: int) -> int:
    '''Sum.'''
"""
RECORD = {
    "task_id": "Own/0",
    "prompt": PROMPT,
    "entry_point": "add",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate):\n    assert helper(candidate(1, 2)) == 4\n    assert add(2, 2) == 4\n",
}
OTHER = {
    "task_id": 1,
    "text": "Add up.",
    "code": "def sum(a, b):\r\n    return a + b",
    "test_list": ["assert sum(1, 2) == 3", "assert sum(4, 5) == 9"],
    "test_setup_code": "",
    "challenge_test_list": [],
}


@pytest.fixture
def folder(tmp_path):
    try:
        Sandbox().working_isolation()
    except SandboxError as error:
        pytest.skip(str(error))
    (tmp_path / "humaneval.jsonl").write_text("\n".join(json.dumps(RECORD | {"task_id": f"Own/{i}"}) for i in range(8)))
    (tmp_path / "mbpp_test.jsonl").write_text(
        "\n".join(json.dumps(OTHER | {"task_id": i}) for i in (1, 2, 3, 4, 5, 6, 7, 8, 367))
    )
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx\n```", ["x\n"]),
        ("a\n```py\nx\n```\nb\n```\ny\n```", ["x\n", "y\n"]),
        ("~~~\n```\nx\n~~~", ["```\nx\n"]),
        ("````\n```\nx\n```\n````", ["```\nx\n```\n"]),
        ("1. Code:\n   ```\n   x\n     y\n   ```", ["x\n  y\n"]),
        ("```python\nx\ncut off", ["x\ncut off"]),
        ("no ```inline``` code", []),
        ("", []),
    ],
)
def test_fenced_blocks_are_found(text, found):
    assert programs.blocks(text) == found


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("    return a + b\n", "alone: a continuation"),
        ("    return a + b\n\ndef other(:\n    cut off", "and more: cut off"),
        ("    return a + b\n```\nThis adds.", "a fence closed after it"),
        ("\n\n    return a + b", "after empty lines"),
        ("```python\ndef add(a, b):\n    return a + b\n```", "a block"),
        ("```\n    return a + b\n```", "a block that continues"),
        ("def add(a, b):\n    return a + b", "the bare function"),
        ("Wrong:\n```\ndef add(a, b): return 0\n```\nRight:\n```\ndef add(a, b): return a + b\n```", "the last block"),
        ("```\ndef add(a, b): return a + b\n```\nUse:\n```\nadd(1, 2)\n```", "the last that defines it"),
        ("<think>```\ndef add(a, b): return 0\n```</think>\n```\nadd = lambda a, b: a + b\n```", "after the thought"),
        ("```\nfrom typing import List\ndef add(a: List, b): return helper(a) + b - 1\n```", "with the prompt's names"),
    ],
)
def test_the_program_of_a_completion(folder, completion, expected):
    task = tasks.get("humaneval", data_dir=folder, execute=True)
    score = task.score(completion, task.examples("test", 1, 0)[0])
    assert (score.outcome, score.reason) == ("right", ""), expected
    assert len(score.answer) == programs.DIGEST


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        ("    return a - b", "AssertionError"),
        ("return a + b", "SyntaxError"),
        ("```\ndef add(a, b): return 3\n```", "assert add(2, 2) == 4"),
        ("def helper(x): return 4\ndef add(a, b): return 4 if a == b else 7", "AssertionError"),
        ("no code", "SyntaxError"),
        ("", "no answer"),
        ("``` \n\n```", "no answer"),
        ("    return a + b" + " " * MAX_COMPLETION, "no answer"),
    ],
)
def test_what_is_wrong_with_a_program_is_said(folder, completion, reason):
    task = tasks.get("humaneval", data_dir=folder, execute=True)
    score = task.score(completion, task.examples("test", 1, 0)[0])
    assert score.outcome == "wrong"
    assert reason in score.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_small_sets_validate(folder, name):
    tasks.get(name, data_dir=folder, execute=True).validate()


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_test_problems_do_not_repeat_and_number_367_is_left_out(folder, name):
    task = tasks.get(name, data_dir=folder, execute=True)
    assert len({json.dumps(e.answer) for e in task.examples("test", 8, 0)}) == 8
    with pytest.raises(IsentropeError, match="has 8 test problems and was asked for 9"):
        task.examples("test", 9, 0)


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_no_program_runs_without_consent(folder, name, monkeypatch):
    monkeypatch.delenv("ISENTROPE_EXECUTE_CODE", raising=False)
    monkeypatch.setattr(subprocess_of_the_sandbox(), "Popen", None)
    task = tasks.get(name, data_dir=folder)
    with pytest.raises(IsentropeError, match="agree to that with execute=true or ISENTROPE_EXECUTE_CODE=1"):
        task.examples("test", 1, 0)
    with pytest.raises(IsentropeError, match="runs programs that a model wrote"):
        task.score("x", tasks.Example("", {}, name))


def subprocess_of_the_sandbox():
    return sandbox.subprocess


def test_the_environment_can_consent(folder, monkeypatch):
    monkeypatch.setenv("ISENTROPE_EXECUTE_CODE", "1")
    monkeypatch.setenv("ISENTROPE_DATA", str(folder))
    example = tasks.get("mbpp").examples("test", 1, 0)[0]
    assert tasks.get("mbpp").score(example.references[0], example).outcome == "right"


@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_there_is_no_training_split_and_a_missing_file_is_named(tmp_path, name):
    task = tasks.get(name, data_dir=tmp_path, execute=True, isolation="limits")
    with pytest.raises(IsentropeError, match="has no training problems"):
        task.examples("train", 1, 0)
    with pytest.raises(IsentropeError, match=rf"holds no {name}.*\.jsonl"):
        task.examples("test", 1, 0)


def test_a_sandbox_that_fails_is_no_fault_of_the_program(folder, monkeypatch):
    task = tasks.get("mbpp", data_dir=folder, execute=True)
    example = task.examples("test", 1, 0)[0]

    def broken(*arguments):
        raise SandboxError("no room")

    monkeypatch.setattr(Sandbox, "check", broken)
    score = task.score(example.references[0], example)
    assert (score.outcome, score.reason, score.reward) == ("unscored", "no room", 0.0)


def test_what_a_prompt_does_not_show_is_tested_all_the_same(folder):
    task = tasks.get("mbpp", data_dir=folder, execute=True, shown_tests=1)
    example = task.examples("test", 1, 0)[0]
    assert "sum(1, 2)" in example.prompt[0]["content"]
    assert "sum(4, 5)" not in example.prompt[0]["content"]
    assert task.score("def sum(a, b): return 3", example).outcome == "wrong"


def test_humaneval_asks_in_a_message_or_as_text(folder):
    chat = tasks.get("humaneval", data_dir=folder, execute=True).examples("test", 1, 0)[0]
    text = tasks.get("humaneval", data_dir=folder, execute=True, form="text").examples("test", 1, 0)[0]
    assert text.prompt == PROMPT
    assert chat.prompt[0]["content"].endswith(f"```python\n{PROMPT.strip()}\n```")


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (humaneval.HumanEval, {"form": "poem"}, "form is 'poem'"),
        (humaneval.HumanEval, {"seconds": 0}, "seconds is 0"),
        (mbpp.Mbpp, {"shown_tests": 0}, "shown_tests is 0"),
        (mbpp.Mbpp, {"isolation": "hope"}, "isolation is 'hope'"),
    ],
)
def test_impossible_options_are_refused(kind, options, match):
    with pytest.raises(ValueError, match=match):
        kind(**options)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")
@pytest.mark.parametrize(("name", "count"), [("humaneval", 164), ("mbpp", 499)])
def test_every_reference_solution_passes(evaluation_data, name, count):
    task = tasks.get(name, data_dir=evaluation_data, execute=True)
    examples = task.examples("test", count, 0)
    assert len({e.answer["id"] for e in examples}) == count
    with pytest.raises(IsentropeError, match=f"has {count} test problems"):
        task.examples("test", count + 1, 0)
    pairs = [(text, example) for example in examples for text in example.references]
    with ThreadPoolExecutor(2) as pool:
        scores = list(pool.map(lambda pair: task.score(*pair), pairs))
    assert [(p[1].answer["id"], s.reason) for p, s in zip(pairs, scores, strict=True) if s.outcome != "right"] == []
    task.validate()
