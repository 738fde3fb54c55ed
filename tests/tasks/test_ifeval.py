"""IFEval: its data, its criteria and its four figures."""

import json

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks import ifeval
from isentrope.tasks.base import MAX_COMPLETION
from isentrope.tasks.ifeval import Followed, accuracy, conditions, construct, followed
from isentrope.tasks.instructions import KINDS, is_met

RECORD = {
    "key": 1,
    "prompt": "Write a title and no comma.",
    "instruction_id_list": ["detectable_format:title", "punctuation:no_comma"],
    "kwargs": [{}, {"keyword": None}],
}


@pytest.fixture
def folder(tmp_path):
    rows = [json.dumps(RECORD | {"key": i}) for i in range(50)]
    (tmp_path / "ifeval.jsonl").write_text("\n".join(rows))
    return tmp_path


@pytest.mark.parametrize(
    ("completion", "outcome", "answer", "share"),
    [
        ("<<A>> b", "right", "11", 1.0),
        ("<<A>>, b", "wrong", "10", 0.5),
        ("A b", "wrong", "01", 0.5),
        ("A, b", "wrong", "00", 0.0),
        ("Sure, here:\n<<A>> b", "wrong", "10", 0.5),
        ("", "wrong", "", 0.0),
        (" \n", "wrong", "", 0.0),
        ("<<A>>" + " " * MAX_COMPLETION, "wrong", "", 0.0),
    ],
)
def test_a_response_is_right_if_it_follows_all(folder, completion, outcome, answer, share):
    task = tasks.get("ifeval", data_dir=folder)
    example = task.examples("test", 1, 0)[0]
    score = task.score(completion, example)
    assert (score.outcome, score.answer, score.reward) == (outcome, answer, float(outcome == "right"))
    shared = tasks.get("ifeval", data_dir=folder, reward="share").score(completion, example)
    assert (shared.outcome, shared.reward) == (outcome, share)


def test_the_loose_criterion_is_an_option(folder):
    task = tasks.get("ifeval", data_dir=folder, loose=True)
    example = task.examples("test", 1, 0)[0]
    text = "Sure, here:\n<<A>> b"
    assert task.score(text, example).outcome == "right"
    assert followed(text, example) == Followed((True, False), (True, True))
    assert followed("x" * (MAX_COMPLETION + 1), example) == Followed((False, False), (False, False))


@pytest.mark.parametrize("name", ["ifeval", "instructions"])
def test_the_figures_of_single_prompts_add_up_to_the_papers(folder, name):
    example = tasks.get("ifeval", data_dir=folder).examples("test", 1, 0)[0]
    texts = [["<<A>> b", "Sure, here:\n<<A>> b"], ["", "A b", "<<A>>, b"]]
    pairs = [tasks.get(name, data_dir=folder).figures(some, example) for some in texts]
    whole = accuracy([followed(text, example) for some in texts for text in some])
    assert list(pairs[0]) == ["prompt_strict", "instruction_strict", "prompt_loose", "instruction_loose"]
    for figure in pairs[0]:
        a, b = (sum(pair[figure][i] for pair in pairs) for i in (0, 1))
        assert a / b == getattr(whole, figure)
        assert b == (whole.prompts if figure.startswith("prompt") else whole.instructions)


def test_the_four_figures_are_shares_of_prompts_and_of_instructions():
    found = accuracy([Followed((True, False, True), (True, True, True)), Followed((False,), (True,))])
    assert (found.prompt_strict, found.prompt_loose) == (0.0, 1.0)
    assert (found.instruction_strict, found.instruction_loose) == (0.5, 1.0)
    assert (found.prompts, found.instructions) == (2, 4)
    with pytest.raises(IsentropeError, match="give at least one"):
        accuracy([])


def test_faults_of_the_data_and_of_a_request_are_named(folder, tmp_path):
    task = tasks.get("ifeval", data_dir=folder)
    with pytest.raises(IsentropeError, match="has no training prompts"):
        task.examples("train", 1, 0)
    with pytest.raises(IsentropeError, match="has 50 test problems and was asked for 51"):
        task.examples("test", 51, 0)
    for number, (change, match) in enumerate(
        [({"kwargs": None}, "no field"), ({"instruction_id_list": ["x"], "kwargs": [{}]}, "no instruction 'x'")]
    ):
        place = tmp_path / str(number)
        place.mkdir()
        record = {k: v for k, v in (RECORD | change).items() if v is not None}
        (place / "ifeval.jsonl").write_text(json.dumps(record))
        with pytest.raises(IsentropeError, match=match):
            tasks.get("ifeval", data_dir=place).examples("test", 1, 0)
    with pytest.raises(IsentropeError, match=r"holds no ifeval\.jsonl"):
        tasks.get("ifeval", data_dir=tmp_path / "0" / "nowhere").examples("test", 1, 0)
    with pytest.raises(ValueError, match="reward is 'some'"):
        ifeval.IfEval(reward="some")


def test_validation_finds_a_criterion_that_is_wrong(folder, monkeypatch):
    task = tasks.get("ifeval", data_dir=folder)
    task.validate()
    monkeypatch.setattr(KINDS["detectable_format:title"], "__call__", lambda self, response: True)
    with pytest.raises(IsentropeError, match=r"Title\(\) accepts '<A title>"):
        task.validate()


def test_all_prompts_load_and_a_sample_validates(evaluation_data):
    task = tasks.get("ifeval", data_dir=evaluation_data)
    examples = task.examples("test", 541, 0)
    assert len({example.answer["key"] for example in examples}) == 541
    assert {kind for example in examples for kind, _ in example.answer["instructions"]} == set(KINDS)
    assert sum(len(example.answer["instructions"]) for example in examples) == 834
    assert json.loads(json.dumps(examples[0].answer)) == examples[0].answer
    task.validate(count=20)


@pytest.mark.slow
def test_every_prompt_validates_and_nearly_all_can_be_met_as_a_whole(evaluation_data):
    """The rest contradict themselves to the letter, or need words that the parts do not have."""
    task = tasks.get("ifeval", data_dir=evaluation_data)
    task.validate(count=541)
    made = [(e, construct(conditions(e.answer))) for e in task.examples("test", 541, 0)]
    assert sum(text is not None for _, text in made) >= 516
    for example, text in made:
        if text is not None:
            assert task.score(text, example).outcome == "right"
            assert all(is_met(c, text) for c in conditions(example.answer))
