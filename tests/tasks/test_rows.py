"""Rows of a data set and the reward function."""

import json
import threading
from collections import Counter

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError


def test_rows_hold_prompt_task_and_answer():
    task = tasks.get("countdown")
    rows = tasks.dataset_rows(task, "train", 5, 0)
    examples = task.examples("train", 5, 0)
    assert [row["prompt"] for row in rows] == [e.prompt for e in examples]
    assert [json.loads(row["answer"]) for row in rows] == [e.answer for e in examples]
    assert {row["task"] for row in rows} == {"countdown"}


def test_a_mix_shares_its_rows_by_weight_and_shuffles_them():
    mix = tasks.get_mix("countdown=2,digitsum=1,addition=1")
    rows = tasks.dataset_rows(mix, "train", 401, 0)
    counts = Counter(row["task"] for row in rows)
    assert sum(counts.values()) == 401
    assert {counts["digitsum"], counts["addition"]} <= {100, 101}
    assert len({row["task"] for row in rows[:20]}) > 1
    assert rows == tasks.dataset_rows(mix, "train", 401, 0)
    assert rows != tasks.dataset_rows(mix, "train", 401, 1)


def test_a_mix_too_small_for_its_tasks_is_refused():
    with pytest.raises(IsentropeError, match="digitsum gets none of the 2 examples"):
        tasks.dataset_rows(tasks.get_mix("countdown=9,digitsum=1"), "train", 2, 0)


def test_text_and_chat_prompts_do_not_meet_in_one_data_set():
    with pytest.raises(IsentropeError, match="mix text and chat prompts"):
        tasks.dataset_rows(tasks.get_mix("countdown,larger"), "train", 10, 0)


@pytest.mark.engine
def test_datasets_accepts_a_mix_with_answers_of_different_types():
    datasets = pytest.importorskip("datasets")
    rows = tasks.dataset_rows(tasks.get_mix("countdown,digitsum,addition"), "train", 30, 0)
    assert datasets.Dataset.from_list(rows).to_list() == rows
    rows = tasks.dataset_rows(tasks.get_mix("larger,arithmetic_words"), "train", 30, 0)
    assert datasets.Dataset.from_list(rows).to_list() == rows


def test_the_reward_is_dispatched_by_the_task_column():
    mix = [tasks.get("countdown"), (tasks.get("addition"), 3.0)]
    reward = tasks.reward_function(mix)
    examples = [e for name in ("countdown", "addition") for e in tasks.get(name).examples("train", 2, 0)]
    right = [e.references[0] for e in examples]
    swapped = right[2:] + right[:2]
    columns = {"task": [e.task for e in examples], "answer": [json.dumps(e.answer) for e in examples]}
    prompts = [e.prompt for e in examples]
    assert reward(prompts, right, **columns) == [1.0] * 4
    assert reward(prompts=prompts, completions=swapped, trainer_state=None, **columns) == [0.0] * 4
    assert reward.__name__ == "countdown_addition"


def test_chat_completions_are_judged_by_their_last_message():
    reward = tasks.reward_function(tasks.get("larger"))
    columns = {"task": ["larger"], "answer": ['{"asked": [1, 2], "result": 2}']}
    right, wrong = ({"role": "assistant", "content": text} for text in ("2", "1"))
    assert reward([None], [[right]], **columns) == [1.0]
    assert reward([None], [[right, wrong]], **columns) == [0.0]
    assert reward([None], [[]], **columns) == [0.0]
    assert reward([None], [[{"role": "assistant", "content": None}]], **columns) == [0.0]


def test_a_reward_function_names_the_column_or_task_that_is_missing():
    reward = tasks.reward_function(tasks.get("larger"))
    with pytest.raises(IsentropeError, match="no column 'answer'"):
        reward(["x"], ["y"], task=["larger"])
    with pytest.raises(IsentropeError, match=r"belongs to task 'addition'.*it has larger"):
        reward(["x"], ["y"], task=["addition"], answer=["1"])


class Halves:
    """Scores what it is told to; notes the threads that ask."""

    name = "halves"

    def __init__(self, parallel=1):
        self.parallel = parallel
        self.threads = set()
        self.both = threading.Barrier(parallel)

    def examples(self, split, count, seed):
        return [tasks.Example(str(i), i, self.name) for i in range(count)]

    def score(self, completion, example):
        self.threads.add(threading.current_thread())
        if self.parallel > 1:
            self.both.wait(timeout=10)  # passes only if as many ask at the same time
        if completion == "?":
            return tasks.unscored("time-out")
        return tasks.judge(completion == "yes", completion)

    def validate(self):
        pass


COLUMNS = {"task": ["halves"] * 4, "answer": ["0"] * 4}


def test_what_could_not_be_scored_has_no_reward_and_its_share_is_logged():
    reward, logged = tasks.reward_function(Halves()), []
    found = reward(["x"] * 4, ["yes", "no", "?", "?"], log_metric=lambda *pair: logged.append(pair), **COLUMNS)
    assert found == [1.0, 0.0, None, None]
    assert logged == [("unscored", 0.5)]
    assert reward(["x"] * 4, ["yes"] * 4, **COLUMNS) == [1.0] * 4


def test_a_task_that_says_so_is_scored_in_threads_and_others_in_the_callers():
    for parallel in (1, 2):
        task = Halves(parallel)
        assert tasks.reward_function(task)(["x"] * 4, ["yes", "no", "yes", "?"], **COLUMNS) == [1.0, 0.0, 1.0, None]
        assert (threading.current_thread() in task.threads) == (parallel == 1)


def test_an_error_in_a_thread_comes_through():
    task = Halves(2)
    task.score = lambda completion, example: 1 / 0
    with pytest.raises(ZeroDivisionError):
        tasks.reward_function(task)(["x"] * 4, ["yes"] * 4, **COLUMNS)
