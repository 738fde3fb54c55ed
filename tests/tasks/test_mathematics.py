"""The problem sets of mathematics: where they come from, what they ask, and that their verifier validates."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import hub
from isentrope.tasks.mathematics import SOURCES

SIZES = {"aime24": 30, "aime25": 30, "hmmt_feb_2025": 30, "amc23": 40, "math500": 500}


@pytest.fixture
def folder(tmp_path):
    records = [
        {"problem": f"What is {i} + {i}?", "answer": str(2 * i), "solution": f"\\boxed{{{2 * i}}}"} for i in range(9)
    ]
    (tmp_path / "aime24.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_a_published_set_is_read_whole_and_validates(evaluation_data, name, size):
    pytest.importorskip("math_verify")
    task = tasks.get(name, data_dir=evaluation_data)
    task.validate()
    examples = task.examples("test", size, seed=3)
    assert len({str(example.prompt) for example in examples}) == size
    assert all(example.task == name and example.references for example in examples)
    with pytest.raises(IsentropeError, match=f"{name} has {size} test problems and was asked for {size + 1}"):
        task.examples("test", size + 1, seed=3)


def test_a_problem_is_a_message_that_asks_for_a_box(folder):
    example = tasks.get("aime24", data_dir=folder).examples("test", 1, seed=0)[0]
    (message,) = example.prompt
    assert message["role"] == "user"
    assert message["content"].startswith("What is")
    assert message["content"].endswith(r"put your final answer within \boxed{}.")
    assert (example.answer, example.references[0]) == (example.answer, f"\\boxed{{{example.answer}}}")


def test_the_environment_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("ISENTROPE_DATA", str(folder))
    task = tasks.get("aime24")
    assert task.examples("test", 9, 1) == tasks.get("aime24", data_dir=folder).examples("test", 9, 1)
    assert task.examples("test", 9, 1) != task.examples("test", 9, 2)


def test_evaluation_sets_have_nothing_to_train_on(folder):
    for name in SOURCES:
        with pytest.raises(IsentropeError, match=f"{name} is for evaluation.*train on another task"):
            tasks.get(name, data_dir=folder).examples("train", 1, 0)


def test_a_folder_without_the_set_and_a_line_without_an_answer_are_named(folder):
    with pytest.raises(IsentropeError, match=r"holds neither amc23\.jsonl; put it there, or unset"):
        tasks.get("amc23", data_dir=folder).examples("test", 1, 0)
    (folder / "amc23.jsonl").write_text('{"problem": "1 + 1?"}')
    with pytest.raises(IsentropeError, match=r"amc23: problem 1 lacks a problem or an answer; it has \['problem'\]"):
        tasks.get("amc23", data_dir=folder).examples("test", 1, 0)


@pytest.mark.engine
def test_without_a_folder_the_set_comes_from_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*arguments, **keywords):
        asked.append((arguments, keywords))
        return [{"question": "What is 6 * 4.5?", "answer": 27.0}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    hub._from_hub.cache_clear()
    try:
        task = tasks.get("amc23")
        (example,) = task.examples("test", 1, 0)
        task.examples("test", 1, 1)
    finally:
        hub._from_hub.cache_clear()
    assert asked == [(("math-ai/amc23", None), {"split": "test"})]  # once
    assert example.prompt[0]["content"].startswith("What is 6 * 4.5?")
    assert task.score(r"\boxed{27}", example).outcome == "right"


@pytest.mark.engine
def test_without_folder_and_network_the_error_says_what_to_set(monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.delenv("ISENTROPE_DATA", raising=False)
    with pytest.raises(IsentropeError, match=r"cannot load HuggingFaceH4/MATH-500 .*set ISENTROPE_DATA or data_dir"):
        tasks.get("math500").examples("test", 1, 0)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"timeout": 0.0}, "above 0"), ({"timeout": float("nan")}, "above 0"), ({"workers": 0}, "above 0")],
)
def test_limits_that_are_none_are_refused(options, match):
    with pytest.raises(IsentropeError, match=match):
        tasks.get("aime24", **options)


def test_the_verifier_works_in_threads_as_verl_calls_it():
    pytest.importorskip("math_verify")
    pairs = [(r"\boxed{\sqrt{8}}", 1.0), (r"\boxed{2\sqrt{2}}", 1.0), (r"\boxed{2.828}", 0.0), ("2.8", 0.0)] * 5
    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(lambda pair: tasks.compute_score("math500", pair[0], json.dumps(r"2\sqrt2")), pairs))
    assert [score["score"] for score in scores] == [expected for _, expected in pairs]


def test_a_time_out_reaches_verl_as_unscored():
    pytest.importorskip("math_verify")
    options = {"math500": {"timeout": 0.3, "workers": 1}}
    score = tasks.compute_score("math500", r"\boxed{(10^9)!}", '"7"', {"index": 1}, task_options=options)
    assert (score["outcome"], score["unscored"], score["acc"], score["reason"]) == ("unscored", 1.0, 0.0, "time-out")
