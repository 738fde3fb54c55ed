"""What the shell offers when Tab is pressed. A function takes the word so far and returns words that begin with it.

Where nothing of ours begins so, the shell offers files. Only names are offered that the verb would take; a shell that
completes runs the command, so nothing heavier than the names' own modules is imported, and only when it is asked.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

ENGINES = ("trl", "verl", "tabular")
BACKENDS = ("auto", "transformers", "vllm")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def recipes(incomplete: str) -> list[str]:
    """The recipes of the package."""
    from isentrope import recipe

    return _starting(recipe.names(), incomplete)


def objectives(incomplete: str) -> list[str]:
    """Presets, and what installed packages offer by name."""
    from isentrope import spec

    return _starting(spec.objective_names(), incomplete)


def objective_list(incomplete: str) -> list[str]:
    """The same behind what stands before the last comma."""
    return _after_comma(objectives, incomplete)


def models(incomplete: str) -> list[str]:
    """The models that have a name; folders and hub ids are the shell's and the user's."""
    return _starting(("embedded", "smollm2"), incomplete)


def tasks(incomplete: str) -> list[str]:
    """The tasks of the package."""
    from isentrope import tasks as known

    return _starting(known.names(), incomplete)


def task_list(incomplete: str) -> list[str]:
    """The same behind what stands before the last comma."""
    return _after_comma(tasks, incomplete)


def settings(incomplete: str) -> list[str]:
    """Keys of a recipe with the sign that a value follows; host tables and lists of tables have keys of their own."""
    from isentrope import recipe

    default = recipe.Recipe().model_dump(exclude={"task", "stage", "trl", "verl", "tabular"})
    return [f"{key}=" for key in _starting(_dotted(default), incomplete)]


def columns(incomplete: str) -> list[str]:
    """Our names of curves, for a table whose columns have others."""
    from isentrope.cli import _diagnosis

    return [f"{name}=" for name in _starting(sorted(_diagnosis.curve_names()), incomplete)]


def facts(incomplete: str) -> list[str]:
    """The facts that a user may state."""
    from isentrope.cli import _diagnosis

    return [f"{name}=" for name in _starting(_diagnosis.fact_names(), incomplete)]


def engines(incomplete: str) -> list[str]:
    """Who trains."""
    return _starting(ENGINES, incomplete)


def backends(incomplete: str) -> list[str]:
    """Who samples in an evaluation."""
    return _starting(BACKENDS, incomplete)


def dtypes(incomplete: str) -> list[str]:
    """Formats of a model's weights."""
    return _starting(DTYPES, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _after_comma(offer: Any, incomplete: str) -> list[str]:
    """What `offer` has for the last of several names.

    >>> _after_comma(lambda word: _starting(("gepo", "grpo"), word), "dapo,ge")
    ['dapo,gepo']
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{word}" for word in offer(last)]


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
