"""Judged problems: their figures by hand, and their file, whole or cut."""

import math

import pytest

from isentrope import results, tasks
from isentrope.errors import IsentropeError
from isentrope.results import Problem, Sample, held_out_problems, problem_key
from isentrope.tasks import Example

RIGHT = Sample("x", "right", 1.0, "7", length=4, truncated=False, entropy=2.0)
WRONG = Sample("y", "wrong", 0.0, "8", length=6, truncated=True, entropy=1.0)
SILENT = Sample("", "wrong", 0.0, "", "no answer", length=1, truncated=False, entropy=0.5)
UNSCORED = Sample("z", "unscored", 0.0, "7", "time-out", length=9, truncated=False, entropy=0.5)


def _problem(*samples):
    return Problem("t", "k", "p", {"a": 1}, samples)


def test_every_figure_of_a_problem_is_as_defined():
    found = _problem(RIGHT, WRONG, SILENT, UNSCORED).figures((1, 2, 3, 4))
    assert found["pass@1"] == (pytest.approx(1 / 3), 1.0)  # of three that could be judged
    assert found["pass@2"] == (pytest.approx(1 - 1 / 3), 1.0)  # one of the three pairs has no right one
    assert found["pass@3"] == (1.0, 1.0)
    assert found["pass@4"] == (0.0, 0.0)  # nobody knows
    assert found["avg"] == (pytest.approx(1 / 3), 1.0)
    assert found["majority"] == (0.5, 1.0)  # a tie of 7 and 8; the unscored 7 does not vote
    assert found["no_answer"] == (1.0, 4.0)
    assert found["unscored"] == (1.0, 4.0)
    assert found["length"] == (20.0, 4.0)
    assert found["truncated"] == (1.0, 4.0)
    assert found["entropy"] == (4.0, 20.0)


def test_a_problem_without_judged_samples_counts_in_no_score():
    found = _problem(UNSCORED).figures((1,))
    assert found["pass@1"] == found["avg"] == found["majority"] == (0.0, 0.0)
    assert found["unscored"] == (1.0, 1.0)


def test_what_is_not_known_of_tokens_is_in_no_figure():
    found = _problem(Sample("x", "right", 1.0, "7"), RIGHT).figures((1, 2))
    assert found["length"] == (4.0, 1.0)
    assert found["entropy"] == (2.0, 4.0)
    assert found["truncated"] == (0.0, 1.0)


class ByReference:
    """A verifier that asks for more than a training row holds."""

    name = "by_reference"

    def score(self, completion, example):
        return tasks.judge(completion in example.references, completion)


def test_an_evaluation_judges_by_what_a_training_row_holds():
    found = results.judge(ByReference(), Example("p", {"pair": (1, 2)}, "by_reference", ("yes",)), ["yes"], [{}])
    assert [sample.outcome for sample in found.samples] == ["wrong"]


def test_a_file_of_problems_reads_back_whatever_the_texts_hold(tmp_path):
    path = tmp_path / "problems.jsonl"
    odd = Sample('nan\n"\\\u2028\ud800', "right", 1.0, "inf")
    problems = [_problem(RIGHT, odd), Problem("t", "l", [{"role": "user", "content": "é"}], None, (SILENT,))]
    results.append(path, problems[:1])
    results.append(path, problems[1:])
    assert results.read(path) == problems


def test_a_line_cut_by_the_end_of_a_process_does_not_count(tmp_path):
    path = tmp_path / "problems.jsonl"
    results.append(path, [_problem(RIGHT), _problem(WRONG)])
    whole = path.read_bytes()
    for length in range(len(whole) // 2 + 1, len(whole)):
        path.write_bytes(whole[:length])
        assert results.read(path) == [_problem(RIGHT)]
    results.repair(path)
    results.append(path, [_problem(SILENT)])
    assert results.read(path) == [_problem(RIGHT), _problem(SILENT)]


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "t"}', '{"completions": ["x"], "outcomes": []}'])
def test_a_line_that_is_no_problem_is_named(tmp_path, line):
    path = tmp_path / "problems.jsonl"
    path.write_text(_problem(RIGHT).to_line() + line + "\n", encoding="utf-8")
    with pytest.raises(IsentropeError, match=r"problems.jsonl line 2 is no problem"):
        results.read(path)
    with pytest.raises(IsentropeError, match="cannot read"):
        results.read(tmp_path / "none.jsonl")


def test_the_key_of_a_problem_depends_on_task_prompt_and_answer_alone():
    example = Example("p", {"a": 1, "b": 2}, "t", ("r",))
    assert problem_key(example) == problem_key(Example("p", {"b": 2, "a": 1}, "t"))
    others = [Example("q", {"a": 1, "b": 2}, "t"), Example("p", {"a": 1, "b": 3}, "t"), Example("p", {}, "u")]
    assert len({problem_key(one) for one in [example, *others]}) == 4


class Finite:
    """A task with so many test problems, that refuses to give more, and twice the same first problem."""

    name = "finite"

    def __init__(self, size):
        self.size, self.calls = size, 0

    def examples(self, split, count, seed):
        self.calls += 1
        if count > self.size:
            raise IsentropeError("fewer")
        return [Example(str(max(1, i)), None, "finite") for i in range(count)]


@pytest.mark.parametrize("size", [1, 2, 3, 29, 30, 31, 499, 500, 501, 5000])
@pytest.mark.parametrize("most", [1, 2, 30, 500])
def test_all_problems_of_a_task_are_found_each_once(size, most):
    task = Finite(size)
    asked = min(size, most)
    assert len(held_out_problems(task, most, 0)) == max(1, asked - 1)
    assert task.calls < 12


def test_a_task_without_any_problem_says_why(tmp_path):
    with pytest.raises(IsentropeError, match="holds neither"):
        held_out_problems(tasks.get("gsm8k", data_dir=tmp_path), 10, 0)


def test_entropies_are_per_token_and_not_per_sample():
    pairs = [problem.figures((1,))["entropy"] for problem in (_problem(RIGHT), _problem(UNSCORED))]
    assert math.fsum(a for a, _ in pairs) / math.fsum(b for _, b in pairs) == 2.5 / 13
