"""The verifier as verl calls it: by file path, in threads, with the same keys for every outcome."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import scoring

OWN = """
from isentrope.tasks import unscored

class Stuck:
    name = "stuck"
    def examples(self, split, count, seed): return []
    def score(self, completion, example): return unscored("time-out", completion)
    def validate(self): pass
"""


def call(completion, **more):
    return tasks.compute_score("addition", completion, "[47, 85]", {"index": 3}, **more)


def test_every_outcome_has_the_same_keys_and_numbers_where_verl_averages():
    right, wrong, none = call("7+5=12;4+8+1=13;132"), call("7+5=12;4+8+1=13;133"), call("132")
    assert right == {
        "score": 1.0, "acc": 1.0, "unscored": 0.0, "no_answer": 0.0, "outcome": "right", "pred": "132", "reason": ""
    }  # fmt: skip
    assert wrong == right | {"score": 0.0, "acc": 0.0, "outcome": "wrong", "pred": "133"}
    assert none == wrong | {"no_answer": 1.0, "pred": "", "reason": "no answer"}


def test_what_could_not_be_scored_is_told_apart_from_wrong(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    found = tasks.compute_score(f"{path}:Stuck", "x", "null")
    assert (found["score"], found["acc"], found["unscored"], found["outcome"]) == (0.0, 0.0, 1.0, "unscored")
    assert (found["no_answer"], found["reason"]) == (0.0, "time-out")


def test_the_rows_of_a_data_set_are_scored_in_threads():
    rows = tasks.dataset_rows(tasks.get("countdown"), "train", 20, seed=0)
    references = [e.references[0] for e in tasks.get("countdown").examples("train", 20, seed=0)]
    with ThreadPoolExecutor(4) as threads:
        found = list(
            threads.map(lambda row, text: tasks.compute_score(row["task"], text, row["answer"]), rows, references)
        )
    assert [one["score"] for one in found] == [1.0] * 20


def test_the_file_can_be_loaded_by_its_path():
    spec = importlib.util.spec_from_file_location("custom_module_1", scoring.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.compute_score("addition", "7+5=12;4+8+1=13;132", "[47, 85]")["acc"] == 1.0


def test_options_reach_the_task_by_keyword_and_by_row():
    with pytest.raises(IsentropeError, match="addition has no option 'digits'"):
        call("132", task_options={"addition": {"digits": 3}})
    with pytest.raises(IsentropeError, match="addition has no option 'digits'"):
        tasks.compute_score("addition", "1", "[1, 2]", {"task_options": json.dumps({"addition": {"digits": 3}})})
    assert call("132", task_options={"larger": {"digits": 3}})["outcome"] == "wrong"  # another task's
    with pytest.raises(IsentropeError, match="addition has no option 'name'"):
        call("132", task_options={"addition": {"name": "sums"}})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (("adition", "1", "[1, 2]"), "did you mean 'addition'"),
        (("addition", "1", "47+85"), "not JSON text"),
        (("addition", "1", [1, 2]), "not JSON text"),
        (("addition", "1", "[1, 2]", {"task_options": "[]"}), "must be of the form"),
        (("addition", "1", "[1, 2]", {"task_options": {"addition": 3}}), "must be of the form"),
    ],
)
def test_what_cannot_be_scored_at_all_is_an_error(arguments, match):
    with pytest.raises(IsentropeError, match=match):
        tasks.compute_score(*arguments)


def test_verls_own_keywords_pass_and_others_are_refused():
    assert call("132", reward_router_address=None, reward_model_tokenizer=None)["outcome"] == "wrong"
    with pytest.raises(IsentropeError, match="no option 'tolerance'"):
        call("132", tolerance=3)


@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_reward_that_is_no_number_is_an_error(bad, tmp_path):
    (tmp_path / "odd.py").write_text(
        "from types import SimpleNamespace\n"
        "class Odd:\n"
        "    name = 'odd'\n"
        "    def examples(self, split, count, seed): return []\n"
        f"    def score(self, completion, example): return SimpleNamespace(reward=float('{bad}'), outcome='right',"
        " answer='x', reason='')\n"
        "    def validate(self): pass\n"
    )
    with pytest.raises(IsentropeError, match=f"task odd gave the reward {bad} to a completion that it judged 'right'"):
        scoring.compute_score(f"{tmp_path}/odd.py:Odd", "x", "1")
