"""From a name to a task, and from a text like "countdown=2,digitsum=1" to a mix."""

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

from isentrope.errors import IsentropeError
from isentrope.spec import module_from_file
from isentrope.tasks.addition import Addition
from isentrope.tasks.apps import Apps
from isentrope.tasks.appworld_task import AppWorld
from isentrope.tasks.base import Task
from isentrope.tasks.countdown import Countdown
from isentrope.tasks.digitsum import DigitSum
from isentrope.tasks.gsm8k import Gsm8k
from isentrope.tasks.humaneval import HumanEval
from isentrope.tasks.ifeval import IfEval
from isentrope.tasks.mathematics import SOURCES, MathProblems
from isentrope.tasks.mbpp import Mbpp
from isentrope.tasks.own_sets import Code, Instructions
from isentrope.tasks.reasoning_gym import ReasoningGym
from isentrope.tasks.short_answers import NAMES as SHORT_ANSWERS
from isentrope.tasks.short_answers import ShortAnswers
from isentrope.tasks.words import ArithmeticWords, Larger

Mix = Task | Sequence[Task | tuple[Task, float]]  # one task, or several with their weights

BUILT_IN: dict[str, Callable[..., Any]] = {
    "countdown": Countdown,
    "digitsum": DigitSum,
    "addition": Addition,
    "gsm8k": Gsm8k,
    "arithmetic_words": ArithmeticWords,
    "larger": Larger,
    **{name: partial(MathProblems, name) for name in SOURCES},
    **{name: partial(ShortAnswers, name) for name in SHORT_ANSWERS},
    "code": Code,
    "instructions": Instructions,
    "apps": Apps,
    "appworld": AppWorld,
    "humaneval": HumanEval,
    "mbpp": Mbpp,
    "ifeval": IfEval,
    "reasoning_gym": ReasoningGym,
}
FAMILIES = {"reasoning_gym": "dataset"}  # "reasoning_gym:NAME" is short for the option dataset = NAME
MEMBERS = ("name", "examples", "score", "validate")


def names() -> list[str]:
    """The names of the built-in tasks."""
    return list(BUILT_IN)


def get(name: str, /, **options: Any) -> Task:
    """The task of that name, or the one that `path/to/file.py:name` defines.

    options: fields of a built-in task, such as `data_dir` of gsm8k. "reasoning_gym:NAME" is its data set NAME.
    A file's object may be a task, or a class or function without arguments that makes one.
    Raises IsentropeError naming the nearest task, the file or the member that is missing.
    """
    if ".py" in name:
        if options:
            raise IsentropeError(f"task {name} comes from a file and takes no options; found {sorted(options)}")
        return _from_file(name)
    family, _, member = name.partition(":")
    if member and family in FAMILIES:
        name, options = family, options | {FAMILIES[family]: member}
    if name not in BUILT_IN:
        near = difflib.get_close_matches(name, BUILT_IN, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else "it is none of the built-in tasks."
        raise IsentropeError(f"unknown task {name!r}; {hint} Choose from {', '.join(BUILT_IN)}, or file.py:name")
    factory = BUILT_IN[name]
    known = [field.name for field in fields(_class_of(factory)) if field.name != "name"]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise IsentropeError(f"task {name} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    try:
        return cast(Task, factory(**options))
    except (TypeError, ValueError) as error:
        raise IsentropeError(f"task {name} cannot be made with the options {options}: {error}") from error


def _class_of(factory: Callable[..., Any]) -> Any:
    """The dataclass that a built-in name makes, with its name or some options already given or not."""
    return factory.func if isinstance(factory, partial) else factory


def _from_file(reference: str) -> Task:
    path_text, _, name = reference.rpartition(":")
    path = Path(path_text)
    if not path_text.endswith(".py") or not name:
        raise IsentropeError(f"task {reference!r} is not of the form file.py:name")
    if not path.is_file():
        raise IsentropeError(f"task {reference!r}: there is no file {path_text}")
    found = getattr(module_from_file(path.resolve()), name, None)
    if found is None:
        raise IsentropeError(f"task {reference!r}: {path_text} defines no {name!r}")
    return _as_task(found, reference)


def _as_task(found: Any, reference: str) -> Task:
    if not isinstance(found, type) and all(hasattr(found, member) for member in MEMBERS):
        return cast(Task, found)
    if not callable(found):
        missing = [member for member in MEMBERS if not hasattr(found, member)]
        raise IsentropeError(f"task {reference!r} lacks {', '.join(missing)}; a task has {', '.join(MEMBERS)}")
    try:
        made = found()
    except TypeError as error:
        raise IsentropeError(f"task {reference!r} cannot be made without arguments: {error}") from error
    missing = [member for member in MEMBERS if not hasattr(made, member)]
    if missing:
        raise IsentropeError(f"task {reference!r} lacks {', '.join(missing)}; a task has {', '.join(MEMBERS)}")
    return cast(Task, made)


def get_mix(text: str) -> list[tuple[Task, float]]:
    """Tasks with weights from a text: "countdown", "countdown,digitsum" or "countdown=2,my.py:task=0.5".

    A weight is a share of the examples relative to the other weights, 1 where none is given.
    """
    return weighted([_one_of_mix(part.strip()) for part in text.split(",")])


def _one_of_mix(part: str) -> tuple[Task, float]:
    name, separator, weight = part.rpartition("=")
    if not separator:
        return get(part), 1.0
    try:
        return get(name), float(weight)
    except ValueError:
        raise IsentropeError(f"the weight of task {name} is {weight!r}; it must be a number above 0") from None


def weighted(mix: Mix) -> list[tuple[Task, float]]:
    """Any form of a mix as pairs of task and weight.

    Raises IsentropeError for an empty mix, a name that occurs twice, or a weight that is not finite and above 0.
    """
    members = mix if isinstance(mix, Sequence) else [mix]
    pairs = [member if isinstance(member, tuple) else (member, 1.0) for member in members]
    if not pairs:
        raise IsentropeError("the mix of tasks is empty; name at least one task")
    found = [task.name for task, _ in pairs]
    for task, weight in pairs:
        if not (math.isfinite(weight) and weight > 0):
            raise IsentropeError(f"the weight of task {task.name} is {weight}; it must be a number above 0")
        if found.count(task.name) > 1:
            raise IsentropeError(f"task {task.name} occurs more than once in the mix; give it one weight")
    return pairs
