"""Generated puzzles: those data sets of reasoning-gym whose generators and scorers withstand our checks."""

import json
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks import base
from isentrope.tasks.base import MAX_COMPLETION, NO_ANSWER, Example, Score, Split

PACKAGE = "reasoning-gym"
VETTED = Path(__file__).with_name("reasoning_gym.json")  # written by docs/make_vetted.py
INSTRUCTION = "Write your final answer between <answer> and </answer>, and nothing else between them."
ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
MAX_ANSWER = 4_000  # characters; no answer of a vetted data set is nearly as long, and scorers are quick up to there
CHUNK = 1_000  # problems from one seed of the package
TRIES = 50  # candidates for each problem asked for, before a data set counts as used up
DIGITS = re.compile(r"[^\W\D]")  # of any script


@dataclass(frozen=True)
class ReasoningGym:
    """Problems of one data set of the package reasoning-gym, made from a seed, scored by the data set's own scorer.

    dataset: its name, such as "chain_sum"; the name of the task is then "reasoning_gym:chain_sum". Only data sets that
    passed our checks are accepted; `vetted()` lists them, and docs/reasoning-gym.md says what is wrong with the others.
    partial: whether an answer that the scorer finds partly right gets the scorer's reward; it is wrong all the same.
    By default it gets 0: many scorers give something for any text that is not empty.
    config: settings of the data set, such as {"num_terms": 2}; the checks were made with the default ones.
    Example.answer: {"dataset", "config", "seed", "index", "answer"}; the scorer's entry is generated again from it.
    Source: Stojanovski et al., Reasoning Gym, arXiv:2505.24760.
    """

    dataset: str = "chain_sum"
    partial: bool = False
    config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.dataset not in vetted():
            why = _data()["excluded"].get(self.dataset)
            found = f"was left out: {why}" if why else "does not exist"
            raise ValueError(
                f"ReasoningGym.dataset is {self.dataset!r}, which {found}; choose from {', '.join(vetted())}"
            )

    @property
    def name(self) -> str:
        """reasoning_gym:DATASET."""
        return f"reasoning_gym:{self.dataset}"

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split. Test problems never repeat; which split one is in depends on its text alone.

        Raises IsentropeError if the package is missing, a setting is refused, or the data set has too few problems.
        """
        base.check_request(self.name, split, count)
        found: dict[Any, Example] = {}
        settings = json.dumps(self.config or {}, sort_keys=True)
        for number in range(TRIES * count):
            place = base.generator(self.name, split, seed, number // CHUNK).getrandbits(31), number % CHUNK
            entry = entry_of(self.dataset, settings, *place)
            question = entry["question"]
            if base.is_held_out(self.name, question) == (split == "test"):
                found.setdefault(question if split == "test" else number, self._example(entry, settings, place))
            if len(found) == count:
                return list(found.values())
        raise IsentropeError(f"task {self.name} has about {len(found)} {split} problems and was asked for {count}")

    def _example(self, entry: dict[str, Any], settings: str, place: tuple[int, int]) -> Example:
        content = f"{entry['question']}\n\n{INSTRUCTION}"
        answer = {
            "dataset": self.dataset,
            "config": settings,
            "seed": place[0],
            "index": place[1],
            "answer": entry["answer"],
        }
        return Example(
            [{"role": "user", "content": content}], answer, self.name, (f"<answer>{entry['answer']}</answer>",)
        )

    def score(self, completion: str, example: Example) -> Score:
        """Right if the data set's scorer gives 1 for the text between the last <answer> and </answer>.

        No answer: no such text, an empty one, or one of more than 4,000 characters. Digits of other scripts make an
        answer wrong, which Python would read as numbers; so does an error of the scorer, which is one that the answer
        provokes: it took the reference, and a policy must not choose to go unscored.
        """
        given = final_answer(completion) if len(completion) <= MAX_COMPLETION else None
        if given is None:
            return NO_ANSWER
        place = example.answer
        entry = entry_of(place["dataset"], place["config"], place["seed"], place["index"])
        try:
            reward = judged(place["dataset"], place["config"], given, entry)
        except Exception as error:  # whatever a scorer of somebody else may raise
            return Score(0.0, "wrong", given, f"the scorer raised {type(error).__name__}")
        if reward >= 1.0:
            return Score(1.0, "right", given)
        return Score(max(0.0, reward) if self.partial else 0.0, "wrong", given)

    def validate(self) -> None:
        """Raise IsentropeError if the data set fails one of the checks of `faults`, or the splits overlap."""
        from isentrope.tasks.reasoning_gym_checks import faults  # which imports this module

        found = faults(self.dataset, 10, self.config)
        if found:
            raise IsentropeError(f"task {self.name}: {found[0]}")
        base.check(self, lambda example: (f"It is {example.answer['answer']}.", "<answer></answer>"), count=5)


def final_answer(completion: str) -> str | None:
    """What stands between the last <answer> and </answer>, without the space around it; None if there is nothing.

    >>> (
    ...     final_answer("<answer>1</answer> no: <answer> 2 </answer>"),
    ...     final_answer("2"),
    ...     final_answer("<answer> </answer>"),
    ... )
    ('2', None, None)
    """
    end = completion.rfind("</answer>")
    start = completion.rfind("<answer>", 0, end) if end >= 0 else -1
    text = completion[start + len("<answer>") : end].strip() if start >= 0 else ""
    return text if 0 < len(text) <= MAX_ANSWER else None


@cache
def _data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VETTED.read_text(encoding="utf-8"))
    return found


def vetted() -> list[str]:
    """The data sets that passed our checks."""
    return list(_data()["vetted"])


def library() -> Any:
    """The package reasoning-gym. Raises IsentropeError where it is not installed."""
    try:
        import reasoning_gym
    except ImportError as error:
        raise IsentropeError(f"generated puzzles need {PACKAGE}; pip install 'isentrope[tasks]'") from error
    return reasoning_gym


@lru_cache(maxsize=64)
def _chunk(dataset: str, settings: str, seed: int) -> Any:
    options = json.loads(settings)
    try:
        return library().create_dataset(dataset, seed=seed, size=CHUNK, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise IsentropeError(f"{dataset} of {PACKAGE} refuses the settings {options}: {error}") from error


@lru_cache(maxsize=4096)
def entry_of(dataset: str, settings: str, seed: int, index: int) -> dict[str, Any]:
    """Problem `index` of those that a seed and settings (JSON text) give, as the package's scorers take it."""
    entry: dict[str, Any] = _chunk(dataset, settings, seed)[index]
    return entry


def judged(dataset: str, settings: str, answer: str, entry: dict[str, Any]) -> float:
    """The data set's own score of an answer, 0 if it has digits other than 0 to 9. Raises what its scorer raises."""
    if any(not digit.isascii() for digit in DIGITS.findall(answer)):
        return 0.0
    return float(_chunk(dataset, settings, 0).score_answer(answer, entry))
