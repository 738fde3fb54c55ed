"""Every task: references pass, near-misses and garbage fail, splits are disjoint and depend on nothing but the seed."""

import json
import time

import pytest

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.tasks.base import GARBAGE, HUGE, NO_ANSWER, judge

OFFLINE = ["countdown", "digitsum", "addition", "arithmetic_words", "larger"]
ELSEWHERE = {  # need data, a package or a server: tested in files of their own
    *("aime24", "aime25", "amc23", "hmmt_feb_2025", "math500", "gsm8k", "math", "science", "code", "instructions"),
    *("apps", "appworld", "humaneval", "mbpp", "ifeval", "reasoning_gym"),
}


def test_every_built_in_task_is_tested_here_or_known_to_be_tested_elsewhere():
    assert set(tasks.names()) == set(OFFLINE) | ELSEWHERE


@pytest.mark.parametrize("name", OFFLINE)
def test_a_task_validates_itself(name):
    tasks.get(name).validate()


@pytest.mark.parametrize("name", OFFLINE)
def test_the_same_seed_gives_the_same_examples_and_another_seed_others(name):
    task = tasks.get(name)
    assert task.examples("train", 30, 5) == tasks.get(name).examples("train", 30, 5)
    assert task.examples("train", 30, 5) != task.examples("train", 30, 6)


@pytest.mark.parametrize("name", OFFLINE)
def test_no_problem_is_in_both_splits_whatever_the_seed(name):
    task = tasks.get(name)
    train = {_problem(e) for seed in range(3) for e in task.examples("train", 4000, seed)}
    test = {_problem(e) for seed in range(3) for e in task.examples("test", 32, seed)}
    assert len(test) > 32
    assert not train & test


def _problem(example):
    """The problem itself: without the order of digits or operands, and without the wording."""
    answer = example.answer
    if isinstance(answer, list):
        return str(sorted(answer))
    return str({key: sorted(value) if isinstance(value, list) else value for key, value in answer.items()})


@pytest.mark.parametrize("name", OFFLINE)
def test_test_problems_never_repeat_and_a_request_for_too_many_says_how_many_there_are(name):
    task = tasks.get(name)
    with pytest.raises(IsentropeError, match=r"has \d+ test problems and was asked for 100000"):
        task.examples("test", 100_000, 0)
    assert len({str(e.answer) for e in task.examples("test", 32, 0)}) == 32


def test_training_problems_start_over_when_they_are_used_up():
    drawn = [e.prompt for e in tasks.get("digitsum").examples("train", 4500, 0)]
    once = len(set(drawn))
    assert once < 4500
    assert len(set(drawn[:once])) == once


@pytest.mark.parametrize("name", OFFLINE)
@pytest.mark.parametrize(("split", "count", "match"), [("validation", 1, "no split"), ("train", 0, "at least 1")])
def test_an_impossible_request_is_refused(name, split, count, match):
    with pytest.raises(IsentropeError, match=match):
        tasks.get(name).examples(split, count, 0)


@pytest.mark.parametrize("name", OFFLINE)
def test_garbage_of_any_length_earns_nothing_quickly(name):
    task = tasks.get(name)
    example = task.examples("test", 1, 0)[0]
    start = time.perf_counter()
    assert [task.score(text, example).reward for text in (*GARBAGE, *HUGE)] == [0.0] * len(GARBAGE + HUGE)
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize("name", OFFLINE)
def test_answers_survive_json(name):
    task = tasks.get(name)
    for example in task.examples("train", 20, 0):
        again = tasks.Example(example.prompt, json.loads(json.dumps(example.answer)), example.task)
        assert task.score(example.references[0], again).outcome == "right"


@pytest.mark.parametrize("name", ["countdown", "digitsum"])
def test_problems_have_several_right_answers(name):
    task = tasks.get(name)
    for example in task.examples("test", 50, 1):
        assert len({task.score(text, example).answer for text in example.references}) >= 2


COUNTDOWN = tasks.Example("2,5,6,9>75:", {"numbers": [2, 5, 6, 9], "target": 75}, "countdown")


@pytest.mark.parametrize(
    ("completion", "outcome", "answer"),
    [
        ("6+9=15;15*5=75", "right", "6+9=15;5*15=75"),
        ("9+6=15;5*15=75", "right", "6+9=15;5*15=75"),
        ("6+9=15;15*5=76", "wrong", "6+9=15;5*15=76"),  # false arithmetic
        ("6+9=15;5*16=80", "wrong", "6+9=15;5*16=80"),  # the first result is not used
        ("5*5=25;25*3=75", "wrong", "5*5=25;3*25=75"),  # 5 is given once, 3 not at all
        ("6+9=15;9*5=45", "wrong", "6+9=15;5*9=45"),
        ("9-2=7;7*9=63", "wrong", "9-2=7;7*9=63"),  # 9 twice
        ("15*5=75;6+9=15", "wrong", "5*15=75;6+9=15"),  # in the wrong order
        ("6+9=15", "wrong", ""),
        ("6+9=15;15*5=75;", "wrong", ""),
        ("6+9=15;15*5=75\n", "wrong", ""),
        ("06+9=15;15*5=75", "wrong", ""),
        ("2-6=-4;5*15=75", "wrong", ""),
        ("(6+9)*5=75", "wrong", ""),
        ("٦+9=15;15*5=75", "wrong", ""),  # ٦ is a digit to int(), not to the grammar
        ("6+9=15;15*5=75;15*5=75", "wrong", ""),
        ("99999+1=100000;0*0=0", "wrong", ""),
    ],
)
def test_countdown_judges(completion, outcome, answer):
    score = tasks.get("countdown").score(completion, COUNTDOWN)
    assert (score.outcome, score.answer) == (outcome, answer)


def test_countdown_references_are_all_solutions():
    """Against a search in other words: every pair of operations on every ordered choice of three digits."""
    example = tasks.get("countdown").examples("train", 1, 3)[0]
    numbers, target = example.answer["numbers"], example.answer["target"]
    found = set()
    for i, a in enumerate(numbers):
        for j, b in enumerate(numbers):
            for k, c in enumerate(numbers):
                if len({i, j, k}) < 3:
                    continue
                for first in ("+", "-", "*"):
                    middle = eval(f"{a}{first}{b}")
                    for second in ("+", "-", "*"):
                        for text in (f"{middle}{second}{c}", f"{c}{second}{middle}"):
                            if middle >= 0 and eval(text) == target:
                                found.add(f"{a}{first}{b}={middle};{text}={target}")
    assert set(example.references) == found


DIGITSUM = tasks.Example("17!138:", {"target": 17, "without": [1, 3, 8]}, "digitsum")


@pytest.mark.parametrize(
    ("completion", "outcome", "answer"),
    [
        ("4+9=13;13+4=17", "right", "494"),
        ("9+4=13;13+4=17", "right", "944"),
        ("0+9=9;9+8=17", "wrong", "098"),  # 8 is forbidden
        ("4+9=13;13+5=18", "wrong", "495"),
        ("4+9=12;12+5=17", "wrong", "4+9=12;12+5=17"),
        ("4+9=13;12+5=17", "wrong", "4+9=13;12+5=17"),
        ("4+9=13;4+13=17", "wrong", ""),  # the third digit comes last
        ("4+13=17;17+0=17", "wrong", ""),
        ("4+9=13;13+4=17 ", "wrong", ""),
        ("17", "wrong", ""),
    ],
)
def test_digitsum_judges(completion, outcome, answer):
    score = tasks.get("digitsum").score(completion, DIGITSUM)
    assert (score.outcome, score.answer) == (outcome, answer)


def test_digitsum_references_are_all_triples():
    example = next(e for e in tasks.get("digitsum").examples("train", 2000, 0) if e.answer["target"] == 17)
    allowed = set(range(10)) - set(example.answer["without"])
    assert len(example.references) == sum(a + b + c == 17 for a in allowed for b in allowed for c in allowed)


@pytest.mark.parametrize(
    ("completion", "outcome", "answer"),
    [
        ("7+5=12;4+8+1=13;132", "right", "132"),
        ("5+7=12;4+8+1=13;132", "wrong", "132"),  # the steps are read in the order of the problem
        ("7+5=12;4+8=12;132", "wrong", "132"),  # the carry is not written
        ("7+5=12;4+8+1=13;133", "wrong", "133"),
        ("132", "wrong", ""),
        ("7+5=12;4+8+1=13;132.", "wrong", ""),
    ],
)
def test_addition_judges(completion, outcome, answer):
    score = tasks.get("addition").score(completion, tasks.Example("47+85:", [47, 85], "addition"))
    assert (score.outcome, score.answer) == (outcome, answer)


SUM = tasks.Example("What is 3 + 4?", {"asked": [3, 4], "result": 7}, "arithmetic_words")


@pytest.mark.parametrize(
    ("completion", "outcome", "answer"),
    [
        ("7", "right", "7"),
        ("3 + 4 = 7. And 8 + 1 = 9.", "right", "7"),
        ("It is 7.0, I think", "right", "7"),
        ("1, 2, 5, 6, 7, 8", "wrong", "1"),  # a list of guesses is its first guess
        ("3 + 4 = -7", "wrong", "-7"),
        ("7th", "wrong", ""),
        ("seven", "wrong", ""),
        ("3 and 4", "wrong", ""),
    ],
)
def test_arithmetic_in_words_judges_the_first_new_number(completion, outcome, answer):
    score = tasks.get("arithmetic_words").score(completion, SUM)
    assert (score.outcome, score.answer) == (outcome, answer)


@pytest.mark.parametrize(
    ("completion", "outcome", "answer"),
    [
        ("42", "right", "42"),
        ("Between the 2 numbers, 42 is larger than 17", "right", "42"),
        ("17 is smaller than 42", "wrong", "17"),
        ("142", "wrong", ""),
        ("neither", "wrong", ""),
    ],
)
def test_larger_judges_the_first_of_the_two_numbers(completion, outcome, answer):
    score = tasks.get("larger").score(completion, tasks.Example("?", {"asked": [17, 42], "result": 42}, "larger"))
    assert (score.outcome, score.answer) == (outcome, answer)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((2.0, "right", "x"), r"must lie in \[0, 1\]"),
        ((0.0, "maybe", "x"), "must be one of"),
        ((1.0, "right", ""), "a right completion has an answer"),
        ((0.5, "unscored", "", "time-out"), "must be 0"),
        ((0.0, "unscored", ""), "say why"),
    ],
)
def test_a_score_that_contradicts_itself_is_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        tasks.Score(*arguments)


class Lenient:
    """A task whose verifier can be broken on purpose."""

    name = "lenient"

    def __init__(self, accepts, splits=("train", "test")):
        self.accepts = accepts
        self.splits = splits

    def examples(self, split, count, seed):
        prompt = self.splits[("train", "test").index(split)]
        return [tasks.Example(f"{prompt}{i}", i, self.name, ("yes",)) for i in range(count)]

    def score(self, completion, example):
        return judge(True, completion) if self.accepts(completion) else NO_ANSWER

    def validate(self):
        tasks.check(self, lambda _: ["yes!"])


def test_validation_finds_a_verifier_that_is_too_lenient_too_strict_or_splits_that_overlap():
    Lenient(lambda text: text == "yes").validate()
    with pytest.raises(IsentropeError, match="rewards 'yes!'"):
        Lenient(lambda text: text.startswith("yes")).validate()
    with pytest.raises(IsentropeError, match="rewards '9999"):
        Lenient(lambda text: text == "yes" or text.startswith("9999")).validate()
    with pytest.raises(IsentropeError, match="rejects its reference 'yes'"):
        Lenient(lambda _: False).validate()
    with pytest.raises(IsentropeError, match="in both splits"):
        Lenient(lambda text: text == "yes", ("same", "same")).validate()


class ByReference(Lenient):
    """Right in an evaluation, never in training, whose rows hold no references."""

    def __init__(self):
        super().__init__(lambda text: text == "yes")

    def score(self, completion, example):
        return tasks.judge(completion in example.references, completion)


def test_validation_finds_a_verifier_that_needs_what_no_training_row_holds():
    with pytest.raises(IsentropeError, match=r"rejects its reference 'yes'.*a training row holds the prompt"):
        ByReference().validate()


def test_a_bare_example_is_the_one_that_a_training_row_brings_back():
    example = tasks.Example("p", {"pair": (1, 2)}, "t", ("yes",))
    assert example.bare == tasks.Example("p", {"pair": [1, 2]}, "t")
