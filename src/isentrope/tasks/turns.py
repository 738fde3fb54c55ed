"""Tasks of several turns: the policy writes a line, an environment answers with a line, and so on.

A task is interactive if it has `begin(example)`, which returns a fresh environment. The policy's turn ends with a line
break or with its end-of-sequence token, so that it cannot write a line in the environment's name: in a transcript the
first line is the policy's, the second the environment's, and so on in turn.
"""

from collections.abc import Generator, Sequence
from typing import Protocol, TypeGuard, runtime_checkable

from isentrope.tasks.base import Example, Task

TURN = "\n"  # ends a turn

Solution = Generator[str, str, None]  # yields actions, is sent the environment's answers


class Environment(Protocol):
    """What a policy acts on; one for each episode.

    step(action): the answer, a text without line breaks; None where the action ends the episode. Never raises for any
    text, and returns quickly.
    """

    def step(self, action: str) -> str | None: ...


@runtime_checkable
class Interactive(Task, Protocol):
    """A task of several turns. `begin` gives equal environments for equal examples; `score` judges transcripts."""

    def begin(self, example: Example) -> Environment: ...


def is_interactive(task: Task) -> TypeGuard[Interactive]:
    """Whether a task's completions are transcripts of several turns."""
    return isinstance(task, Interactive)


def transcript(environment: Environment, solution: Solution) -> str:
    """The text of an episode in which a solution acts, without a line break at its end."""
    lines: list[str] = []
    answer: str | None = None
    while True:
        try:
            action = next(solution) if answer is None else solution.send(answer)
        except StopIteration:
            return TURN.join(lines)
        answer = environment.step(action)
        lines += [action] if answer is None else [action, answer]


def actions(text: str) -> Sequence[str]:
    r"""The policy's lines of a transcript.

    >>> actions("c?1\n47\n."), actions("c?1\n47\n")
    (['c?1', '.'], ['c?1', ''])
    """
    return text.split(TURN)[::2]
