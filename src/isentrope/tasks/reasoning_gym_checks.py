"""The checks that a data set of reasoning-gym has to pass before we take its word on what is right.

`docs/make_vetted.py` runs them on every data set of the package, each in a process of its own; `validate` runs them on
one. They call the scorers with texts that no honest answer looks like, so they are also a test of what a policy that
looks for weak spots would find.
"""

import builtins
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from isentrope.tasks.reasoning_gym import CHUNK, MAX_ANSWER, judged, library

MAX_SECONDS = 1.0  # of processor time, to make a problem or to score one answer
RUNS_ANSWERS = "its scorer runs the answer as Python"
LEAST_TOLD = 4  # characters of an answer that is recognised in a source
NUMBER = re.compile(r"\d+(?:\.\d+)?")
LEAST_DISTINCT = 0.5  # of the problems drawn
GARBAGE = (
    *(
        "no idea",
        "-",
        "0",
        "1",
        "None",
        "null",
        "True",
        "nan",
        "inf",
        "[]",
        "{}",
        "()",
        '""',
        "[[]]",
        "{'a': 1}",
        "\x00",
    ),
    *("the answer", "yes", "no", "a", "1e999", "9**9**9", "9**9**9**9", "1/0", "\\boxed{1}", "%s", "\U0001f600", "-1"),
)
HOSTILE = ("9", "(", "[", "{", "1+", "1 ", "a", "a ", ",", "\n", "-", "**9", "1,", "/", '"', "\\", "é", "0.", "^", "~")


def faults(dataset: str, count: int = 20, config: dict[str, Any] | None = None) -> list[str]:
    """What is wrong with a data set, each fault in one line; empty if it passed.

    On `count` problems: they are the same for the same seed, whatever was drawn before, and leave the global random
    state alone; the reference scores 1, and less than that do other problems' answers, the reference in passing or
    among others, with another number, or cut, and garbage; nothing takes long or runs an answer as Python.
    """
    found: dict[str, None] = {}
    try:
        entries = _entries(dataset, count, config or {}, found)
    except Exception as error:
        return [f"making its problems raises {type(error).__name__}: {str(error)[:80]}"]
    scorer = Scorer(dataset, json.dumps(config or {}, sort_keys=True), found)
    for i, entry in enumerate(entries):
        others = [other["answer"] for other in entries if other["answer"] != entry["answer"]]
        _check_entry(scorer, entry, others, thorough=i < 3)
        if RUNS_ANSWERS in found:
            return [RUNS_ANSWERS]  # what it said of answers that were not run here means nothing
    return list(found)


def draw(dataset: str, count: int) -> list[list[str]]:
    """Questions and answers of some problems, to be compared with those that another process draws."""
    data = library().create_dataset(dataset, seed=3, size=CHUNK)
    return [[data[i]["question"], data[i]["answer"]] for i in range(count)]


def _entries(dataset: str, count: int, config: dict[str, Any], found: dict[str, None]) -> list[dict[str, Any]]:
    create = library().create_dataset
    before, start = _global_state(), time.process_time()
    first = create(dataset, seed=7, size=CHUNK, **config)
    entries = [first[i] for i in range(count)]
    if (time.process_time() - start) / count > MAX_SECONDS:
        found[f"a problem takes more than {MAX_SECONDS:g} s to make"] = None
    if _global_state() != before:
        found["it changes the global random state"] = None
    again = create(dataset, seed=7, size=CHUNK, **config)
    if any(_asked(again[i]) != _asked(entries[i]) for i in reversed(range(count))):
        found["a problem depends on what was drawn before"] = None
    if len({entry["question"] for entry in entries}) < LEAST_DISTINCT * count:
        found["its problems repeat"] = None
    if len({entry["answer"] for entry in entries}) < 2:
        found["its problems all have the same answer"] = None
    return entries


def _asked(entry: dict[str, Any]) -> tuple[Any, Any]:
    return entry["question"], entry["answer"]


def _global_state() -> tuple[Any, ...]:
    import numpy

    old: Any = numpy.random.get_state()  # noqa: NPY002 - the global state is what is watched
    return random.getstate(), old[1].tobytes(), old[2]


@dataclass(frozen=True)
class Scorer:
    """A data set's scorer under watch, which writes faults into `found`."""

    dataset: str
    settings: str
    found: dict[str, None]

    def __call__(self, text: str, entry: dict[str, Any]) -> float:
        start, before = time.process_time(), _global_state()
        known = f"{entry['question']} {entry['answer']}"  # some scorers run these, which is none of a policy's doing
        with _withheld("" if len(text) < LEAST_TOLD or text in known else text) as ran:
            try:
                reward = judged(self.dataset, self.settings, text, entry)
            except Exception:
                reward = 0.0  # as the task takes it
        if ran:
            self.found[RUNS_ANSWERS] = None
        if not 0.0 <= reward <= 1.0:
            self.found["its scorer gives more than 1, or less than 0"] = None
        if time.process_time() - start > MAX_SECONDS:
            self.found[f"its scorer takes more than {MAX_SECONDS:g} s for some texts"] = None
        if _global_state() != before:
            self.found["its scorer changes the global random state"] = None
        return reward


def _check_entry(scorer: Scorer, entry: dict[str, Any], others: list[str], thorough: bool) -> None:
    answer, found = entry["answer"], scorer.found
    if not (isinstance(answer, str) and answer.strip() and len(answer) <= MAX_ANSWER):
        found["its answer is no text of a usable length"] = None
        return
    if scorer(answer.strip(), entry) < 1.0:
        found["its own answer does not score 1"] = None
    for kind, text in _near_misses(answer, others, thorough):
        if RUNS_ANSWERS in found:
            return  # the next ones may never end
        if text.strip() not in ("", answer.strip()) and scorer(text.strip(), entry) >= 1.0:
            found[f"{kind} scores 1"] = None


def _near_misses(answer: str, others: list[str], thorough: bool) -> Iterator[tuple[str, str]]:
    for other in others[:5]:
        if other.strip().lower() not in answer.lower():
            yield "another problem's answer", other
            yield "one of two answers", f"{answer}\n{other}"
            yield "one of two answers", f"{other} {answer}"
    yield "an answer in passing", f"It is not {answer}, or is it?"
    yield "an answer in passing", f"abc {answer} xyz"
    yield from (("an answer with another number", text) for text in _renumbered(answer))
    if len(answer) > 3 and not re.fullmatch(r"[-0-9./ ]*", answer):
        yield "an answer that is cut", answer[: len(answer) // 2]
        yield "an answer that is cut", answer[len(answer) // 2 :]
    if thorough:
        yield from (("garbage", text) for text in GARBAGE if text.lower() not in answer.lower())
        yield from (("garbage", (unit * MAX_ANSWER)[:MAX_ANSWER]) for unit in HOSTILE)


def _renumbered(answer: str) -> Iterator[str]:
    """The answer with its first, its last and each number changed, by as much as no tolerance allows."""
    numbers = list(NUMBER.finditer(answer))
    for number in {n.span(): n for n in (numbers[:1] + numbers[-1:])}.values():
        yield f"{answer[: number.start()]}{Decimal(number[0]) + 1}{answer[number.end() :]}"
    if numbers:
        yield NUMBER.sub(lambda n: str(Decimal(n[0]) + 7), answer)


@contextmanager
def _withheld(text: str) -> Iterator[list[str]]:
    """The sources with the text in them that `eval` or `exec` are asked to run while this is open, and do not."""
    ran: list[str] = []
    kept = {name: getattr(builtins, name) for name in ("eval", "exec")}

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(code: Any, *rest: Any, **named: Any) -> Any:
            if text and isinstance(code, str) and text in code:
                ran.append(code)
                return None
            return original(code, *rest, **named)

        return call

    try:
        for name, original in kept.items():
            setattr(builtins, name, watched(original))
        yield ran
    finally:
        for name, original in kept.items():
            setattr(builtins, name, original)
