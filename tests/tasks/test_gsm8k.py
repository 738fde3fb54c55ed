"""GSM8K-style problems: reading the folder, and what counts as the final number."""

import json
import time

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks.base import HUGE
from isentrope.tasks.gsm8k import final_number
from isentrope.tasks.numbers import find_numbers


@pytest.fixture
def folder(tmp_path):
    ours = [{"problem": f"What is {i} eggs?\u2028", "answer": str(i), "solution": f"So.\n#### {i}"} for i in range(60)]
    published = [{"question": f"What is {i} hens?", "answer": f"Well, {i}.\n#### {i:,}"} for i in range(1000, 1060)]
    for name, records in {"gsm8k_train.jsonl": ours, "test.jsonl": published}.items():
        lines = "\n".join(json.dumps(record, ensure_ascii=False) for record in records)
        (tmp_path / name).write_text(lines + "\n", encoding="utf-8")
    return tmp_path


def test_both_forms_of_the_files_are_read_and_validated(folder):
    task = tasks.get("gsm8k", data_dir=folder)
    task.validate()
    example = task.examples("test", 1, 0)[0]
    assert example.prompt[0]["role"] == "user"
    assert "hens?" in example.prompt[0]["content"]
    assert int(example.answer) in range(1000, 1060)


def test_the_published_data_validates(evaluation_data, monkeypatch):
    monkeypatch.setenv("ISENTROPE_DATA", str(evaluation_data))
    task = tasks.get("gsm8k")
    task.validate()
    assert len(task.examples("train", 7000, 0)) == 7000
    assert len(task.examples("test", 1319, 0)) == 1319


def test_a_missing_folder_file_or_field_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    task = tasks.get("gsm8k", data_dir=tmp_path)
    with pytest.raises(IsentropeError, match=r"holds neither gsm8k_train\.jsonl nor train\.jsonl"):
        task.examples("train", 1, 0)
    for line, reason in [
        ('{"problem": "1"}', r"train problem 1: .*found the fields \['problem'\] and the answer ''"),
        ('{"answer": "1"}', r"train problem 1: it needs a problem"),
        ("[]", "line 1 is no JSON object"),
        ("{", "line 1 is not JSON"),
        ('{"problem": "1", "answer": "many"}', "an answer with a final number; .*'many'"),
    ]:
        path = tmp_path / f"{len(line)}{line.count('p')}"
        path.mkdir()
        (path / "train.jsonl").write_text(line)
        with pytest.raises(IsentropeError, match=reason):
            tasks.get("gsm8k", data_dir=path).examples("train", 1, 0)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 12 = 72\n#### 72", "72"),
        ("#### $1,234.50", "2469/2"),
        ("#### -5 dollars", "-5"),
        ("####72\nThank you for asking 100 times", "72"),
        ("#### 71\nNo:\n#### 72", "72"),
        ("#### 72 or 73", None),
        ("#### seventy-two", None),
        ("#### x72", None),
        ("#### 72abc", None),
        (r"\boxed{72}", "72"),
        (r"\boxed{\$1,000}", "1000"),
        (r"\boxed{72\%}.", "72"),
        (r"\boxed{72} or \boxed{73}", "73"),
        (r"\boxed{72, 73}", None),
        (r"\boxed{", None),
        (r"#### 71 so \boxed{72}", "72"),
        ("She has 5 eggs and 72 hens.", "72"),
        ("about 72.5.", "145/2"),
        ("That makes $72.", "72"),
        ("It is **72**.", "72"),
        (r"so $72\text{ eggs}$", "72"),
        ("She has 72 red hens.", "72"),
        ("I met 72 and left", None),
        ("I counted 72 on the way and then gave up", None),
        ("72 is not what I would have expected", None),
        ("10-3", "3"),
        ("the result is -3", "-3"),
        ("in 3.4.5 or 1,2000", None),
        ("72nd", None),
        ("٧٢", None),
        ("", None),
    ],
)
def test_the_final_number(text, number):
    assert final_number(text) == number


def test_long_texts_are_read_in_linear_time():
    start = time.perf_counter()
    for text in (*HUGE, "1,000" * 30_000, "####" * 40_000, "1," * 90_000, "-" * 150_000, "1.1" * 60_000, "#" * 150_000):
        final_number(text)
        list(find_numbers(text))
    assert time.perf_counter() - start < 5.0
