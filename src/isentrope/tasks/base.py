"""What a task is: examples, a verifier, and splits that cannot overlap."""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, get_args

from isentrope.errors import IsentropeError

Split = Literal["train", "test"]  # disjoint problems
Outcome = Literal["right", "wrong", "unscored"]  # unscored: could not be judged
Prompt = str | list[dict[str, str]]  # a text, or the messages of a chat

TEST_SHARE = 5  # one problem in five is held out
MAX_COMPLETION = 200_000  # characters; a longer text is not read at all, so that a verifier stays fast
SHOWN = 60  # characters of a text that an error repeats

T = TypeVar("T")


@dataclass(frozen=True)
class Example:
    """One problem.

    prompt: text, or a list of chat messages with the keys "role" and "content".
    answer: the ground truth the verifier needs; anything JSON can hold.
    task: name of the task that can score it.
    references: completions that are right, for supervised training and for `validate`; may be empty. A verifier must do
    without them: see `bare`.
    """

    prompt: Prompt
    answer: Any
    task: str
    references: tuple[str, ...] = ()

    @property
    def bare(self) -> "Example":
        """The example as a training row carries it to the verifier: without references, the answer through JSON."""
        return Example(self.prompt, json.loads(json.dumps(self.answer)), self.task)


@dataclass(frozen=True)
class Score:
    """What the verifier says of one completion.

    reward: in [0, 1]; 1 for a right answer.
    outcome: "right"; "wrong": judged and not right, a completion without any answer included; "unscored": could not be
    judged, because the verifier ran out of time or memory, say. An unscored completion has reward 0, but it is no
    failure of the policy: `reward_function` gives it no reward at all, and evaluations count it apart.
    answer: the answer in canonical form; two completions give the same answer exactly when these texts are equal. ""
    where there is none, which is never right.
    reason: why a completion is unscored, in a few words such as "time-out"; optional for a wrong one ("no answer").
    """

    reward: float
    outcome: Outcome
    answer: str
    reason: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.reward <= 1.0:
            raise ValueError(f"Score.reward is {self.reward}; it must lie in [0, 1]")
        if self.outcome not in get_args(Outcome):
            raise ValueError(f"Score.outcome is {self.outcome!r}; it must be one of {get_args(Outcome)}")
        if self.outcome == "right" and not self.answer:
            raise ValueError("Score.answer is empty with outcome 'right'; a right completion has an answer")
        if self.outcome == "unscored" and self.reward:
            raise ValueError(f"Score.reward is {self.reward} for an unscored completion; it must be 0")
        if self.outcome == "unscored" and not self.reason:
            raise ValueError("Score.reason is empty with outcome 'unscored'; say why it could not be scored")


NO_ANSWER = Score(0.0, "wrong", "", "no answer")  # the completion holds none


def unscored(reason: str, answer: str = "") -> Score:
    """What could not be judged: reward 0, outcome "unscored", and why."""
    return Score(0.0, "unscored", answer, reason)


def judge(is_right: bool, answer: str) -> Score:
    """Score 1 "right" or 0 "wrong" for an answer that was found."""
    return Score(1.0, "right", answer) if is_right else Score(0.0, "wrong", answer)


def checked(score: Score, task: str) -> Score:
    """The score, as it is. Raises IsentropeError for a reward that is no number: a task of one's own may return any."""
    if score.outcome != "unscored" and not math.isfinite(score.reward):
        raise IsentropeError(
            f"task {task} gave the reward {score.reward} to a completion that it judged {score.outcome!r}; a reward is"
            " a finite number, and what cannot be judged is 'unscored'"
        )
    return score


class Task(Protocol):
    """Prompts and their verifier. Any object with these members is a task; there is nothing to inherit or register.

    examples(split, count, seed): the same arguments give the same list; no problem is in both splits.
    score(completion, example): pure, never raises for any text, and returns quickly for any length.
    validate(): raises IsentropeError if a reference is not scored right, a near-miss is, or the splits overlap.
    A task may have the attribute `parallel`, the number of threads in which its verifier gains from being called, and
    the method `figures(completions, example)`, which gives figures of its own for the completions of one problem: a
    dict of (a, b) by name; the sum of a over that of b, over problems, is the figure. Evaluations report them.
    """

    @property
    def name(self) -> str: ...

    def examples(self, split: Split, count: int, seed: int) -> list[Example]: ...

    def score(self, completion: str, example: Example) -> Score: ...

    def validate(self) -> None: ...


def is_held_out(task: str, problem: str) -> bool:
    """True for the one problem in five that belongs to the test split.

    Decided by a hash of the problem itself, so that the splits are disjoint whatever the seed and the count.
    """
    return hashlib.sha256(f"{task}|{problem}".encode()).digest()[0] % TEST_SHARE == 0


def check_request(task: str, split: str, count: int) -> None:
    """Raise IsentropeError for a split that does not exist or a count below 1."""
    if split not in get_args(Split):
        raise IsentropeError(f"task {task} has no split {split!r}; use 'train' or 'test'")
    if count < 1:
        raise IsentropeError(f"task {task} was asked for {count} examples; ask for at least 1")


def generator(*parts: object) -> random.Random:
    """A random generator that depends on nothing but these parts: no global state, no hash seed."""
    return random.Random("|".join(map(str, parts)))


def draw(task: str, pool: Sequence[T], split: Split, count: int, rng: random.Random) -> list[T]:
    """`count` members of the pool in random order.

    Training problems start over, newly shuffled, when the pool is used up. Test problems never repeat.
    Raises IsentropeError for an empty pool, and for more test problems than there are.
    """
    if not pool or (split == "test" and count > len(pool)):
        raise IsentropeError(f"task {task} has {len(pool)} {split} problems and was asked for {count}; ask for fewer")
    drawn: list[T] = []
    while len(drawn) < count:
        drawn += rng.sample(pool, min(len(pool), count - len(drawn)))
    return drawn


def text_of(completion: str | list[dict[str, Any]]) -> str:
    """The text of a completion: itself, or the content of the last message of a chat."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1].get("content") or "") if completion else ""


def shown(text: str) -> str:
    """The text as an error message repeats it: quoted and cut."""
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "...")


FULL_WIDTH = {ord(digit): ord(digit) - ord("0") + ord("０") for digit in "0123456789"}
GARBAGE = ("", " ", "\n", "no idea", "٣+٤=٧", "９", "-", "=;=", "1e9", "\x00")
TEN_MILLION = 10_000_000
HUGE = ("9" * 100_000, "0.123+" * 20_000, "=" * 300_000)


def broken_formats(text: str) -> Iterator[str]:
    """A right answer in steps with the format broken: something before, after or within it, or a part missing."""
    yield from (text + ";", text + " ", text + "\n", text + "0", " " + text, text + text, f"{text};{text}")
    yield from (text[:-1], text[1:], text.replace(";", ","), text.replace("=", "==", 1), text.replace("=", "=0", 1))
    yield from (text.rpartition(";")[0], text.rpartition(";")[2], text.translate(FULL_WIDTH))


def check(
    task: Task,
    near_misses: Callable[[Example], Iterable[str]],
    count: int = 40,
    seed: int = 0,
    splits: Sequence[Split] = get_args(Split),
) -> None:
    """The checks every verifier has to pass; the body of `validate`.

    On `count` examples of each of the splits that the task has, references are right, near-misses and garbage are not,
    judged by what a training row holds (`Example.bare`), and huge texts of up to 10 MB are tried on one of each split.
    No prompt and answer of the test examples are among the training examples.
    Raises IsentropeError with the task, the prompt and the completion that was judged wrongly.
    """
    found = {split: task.examples(split, count, seed) for split in splits}
    for examples in found.values():
        for example in examples:
            _check_example(task, example, (*near_misses(example), *GARBAGE))
        _check_example(task, examples[0], (*HUGE, "9" * TEN_MILLION))
    train, test = ({repr((e.prompt, e.answer)) for e in found.get(split, [])} for split in get_args(Split))
    both = train & test
    if both:
        raise IsentropeError(f"task {task.name} has problems in both splits: {sorted(both)[0]}")


def _check_example(task: Task, example: Example, near_misses: Iterable[str]) -> None:
    bare = example.bare
    for text in example.references:
        if task.score(text, bare).outcome != "right":
            why = _by_more(task, text, example)
            raise IsentropeError(f"task {task.name} rejects its reference {shown(text)} for {example.prompt!r}{why}")
    for text in near_misses:
        if task.score(text, bare).reward > 0:
            raise IsentropeError(f"task {task.name} rewards {shown(text)} for {example.prompt!r}")


def _by_more(task: Task, text: str, example: Example) -> str:
    """What to say of a verifier that is right only where it sees more than training shows it."""
    if task.score(text, example).outcome != "right":
        return ""
    return (
        "; it accepts it where it sees the whole example, but a training row holds the prompt and, through JSON, the"
        " answer: judge by these, without `references`, and take lists for tuples"
    )
