"""Names, files and mixes."""

import re
import textwrap
from pathlib import Path

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError

OWN = '''
from isentrope.tasks import Example, Score

class Parity:
    """Even or odd."""
    name = "parity"

    def examples(self, split, count, seed):
        return [Example(str(2 * i + (split == "test")), i, self.name, ("yes",)) for i in range(count)]

    def score(self, completion, example):
        return Score(1.0, "right", "yes") if completion == "yes" else Score(0.0, "wrong", "")

    def validate(self):
        pass

parity = Parity()
number = 3
needs_arguments = lambda x: x
makes_nothing = lambda: 3
'''


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(textwrap.dedent(OWN))
    return path


def test_every_built_in_name_gives_its_task():
    assert [tasks.get(name).name.partition(":")[0] for name in tasks.names()] == tasks.names()
    assert "countdown" in tasks.names()


def test_a_dataclass_with_postponed_annotations_is_a_task(own):
    text = own.read_text().replace("class Parity:", "@dataclass\nclass Parity:\n    size: int = 3")
    own.write_text("from __future__ import annotations\nfrom dataclasses import dataclass\n" + text)
    assert tasks.get(f"{own}:parity").size == 3


def test_every_built_in_task_is_documented():
    docs = Path(__file__).resolve().parents[2] / "docs"
    text = "".join((docs / f"{page}.md").read_text("utf-8") for page in ("tasks", "agents", "reasoning-gym", "recipes"))
    assert [name for name in tasks.names() if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize(("name", "near"), [("countdwn", "countdown"), ("digit_sum", "digitsum"), ("gsm8", "gsm8k")])
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(IsentropeError, match=f"unknown task '{name}'; did you mean '{near}'"):
        tasks.get(name)


def test_a_name_near_to_nothing_is_answered_with_the_list():
    with pytest.raises(IsentropeError, match="Choose from countdown, digitsum"):
        tasks.get("xyzzyq")


def test_an_unknown_option_is_answered_with_the_known_ones():
    with pytest.raises(IsentropeError, match="no option 'folder'; it has data_dir"):
        tasks.get("gsm8k", folder="x")
    with pytest.raises(IsentropeError, match="no option 'digits'; it has none"):
        tasks.get("countdown", digits=3)


def test_a_file_gives_a_task_or_a_class_of_one(own):
    assert tasks.get(f"{own}:parity").name == "parity"
    assert tasks.get(f"{own}:Parity").name == "parity"


@pytest.mark.parametrize(
    ("suffix", "match"),
    [
        (":odd", "defines no 'odd'"),
        (":number", "lacks name, examples, score, validate"),
        (":needs_arguments", "cannot be made without arguments"),
        (":makes_nothing", "lacks name, examples, score, validate"),
        ("", "not of the form file.py:name"),
        (":", "not of the form file.py:name"),
    ],
)
def test_a_file_without_the_task_says_what_is_missing(own, suffix, match):
    with pytest.raises(IsentropeError, match=match):
        tasks.get(f"{own}{suffix}")


def test_a_file_that_is_missing_or_broken_is_named(tmp_path):
    with pytest.raises(IsentropeError, match="there is no file"):
        tasks.get(f"{tmp_path}/none.py:x")
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    with pytest.raises(IsentropeError, match=r"broken\.py cannot be run: ModuleNotFoundError"):
        tasks.get(f"{tmp_path}/broken.py:x")


def test_a_mix_is_read_with_its_weights(own):
    mix = tasks.get_mix(f"countdown=2, digitsum,{own}:parity=0.5")
    assert [(task.name, weight) for task, weight in mix] == [("countdown", 2.0), ("digitsum", 1.0), ("parity", 0.5)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("countdown=0", "must be a number above 0"),
        ("countdown=-1", "must be a number above 0"),
        ("countdown=nan", "must be a number above 0"),
        ("countdown=many", "'many'; it must be a number above 0"),
        ("countdown,countdown", "more than once"),
        ("countdown,", "unknown task ''"),
    ],
)
def test_a_wrong_mix_is_refused(text, match):
    with pytest.raises(IsentropeError, match=match):
        tasks.get_mix(text)


def test_an_empty_mix_is_refused():
    with pytest.raises(IsentropeError, match="mix of tasks is empty"):
        tasks.dataset_rows([], "train", 1, 0)
