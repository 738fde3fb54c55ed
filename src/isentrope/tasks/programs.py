"""What HumanEval and MBPP share: the program in a completion, and its score."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

from isentrope.errors import IsentropeError
from isentrope.tasks.base import MAX_COMPLETION, NO_ANSWER, Example, Score, Split, Task, judge, shown, unscored
from isentrope.tasks.sandbox import Sandbox, SandboxError, require_consent

FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[^`\n]*$", re.MULTILINE)
END_OF_THOUGHT = "</think>"
# Where the body of a function is over in a continuation: Chen et al., arXiv:2107.03374, sec. 2.1; the fence is ours.
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint", "\n```")
DIGEST = 16  # hexadecimal digits of a program's hash
GARBAGE = ("", " ", "no idea", "\x00", "return", "```python\n```", "(" * 50_000, "x = 1\n" * 20_000, "x" * 10_000_000)


def blocks(text: str) -> list[str]:
    r"""The contents of the fenced blocks of a text, in order, without the fences' own indentation.

    A block that is not closed ends with the text.

    >>> blocks("So:\n```python\nx = 1\n```\nor\n  ~~~\n  y = 2\n")
    ['x = 1\n', 'y = 2\n']
    """
    found, start, opened = [], 0, ("", "")
    for fence in FENCE.finditer(text):
        if not opened[1]:
            opened, start = (fence[1], fence[2]), fence.end() + 1
        elif fence[2].startswith(opened[1]):
            found.append(_unindented(text[start : fence.start()], opened[0]))
            opened = ("", "")
    return [*found, _unindented(text[start:], opened[0])] if opened[1] else found


def _unindented(text: str, indent: str) -> str:
    return re.sub(f"^{indent}", "", text, flags=re.MULTILINE) if indent else text


def defines(text: str, name: str) -> bool:
    """True if the text looks as if it defined the name at its outermost level."""
    word = re.escape(name)
    return re.search(rf"^(?:(?:def|class)[ \t]+{word}\b|{word}[ \t]*=(?!=))", text, re.MULTILINE) is not None


def final_block(text: str, name: str) -> str | None:
    """The last fenced block that defines the name, else the last block; None without blocks.

    Only what follows a model's thoughts ("</think>") counts.
    """
    found = blocks(text.rpartition(END_OF_THOUGHT)[2])
    return next((block for block in reversed(found) if defines(block, name)), found[-1] if found else None)


def continuation(text: str) -> str:
    r"""A function's body as a model continues it, up to the first line that no longer belongs to it.

    >>> continuation("    return 1\n\ndef other():\n    pass")
    '    return 1\n'
    """
    ends = [place for stop in STOPS if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def score_program(
    sandbox: Sandbox, completion: str, find: Callable[[str], str], tests: str, names: Sequence[str], setup: str = ""
) -> Score:
    """Right if the program in the completion passes the tests; see `Sandbox.check` for tests, names and setup.

    find: from a completion to its program. An empty program, or a completion of more than 200,000 characters, is no
    answer. "unscored" only where the sandbox itself failed: a program that never ends has failed its tests. The answer
    is a hash of the program, so that two completions give the same one if their programs are the same text.
    """
    program = find(completion).strip("\n") if len(completion) <= MAX_COMPLETION else ""
    if not program.strip():
        return NO_ANSWER
    answer = hashlib.sha256(program.encode("utf-8", "replace")).hexdigest()[:DIGEST]
    try:
        verdict = sandbox.check(program, tests, names, setup)
    except SandboxError as error:
        return unscored(str(error), answer)
    return judge(True, answer) if verdict.passed else Score(0.0, "wrong", answer, verdict.reason)


def check_request(task: str, split: Split, sandbox: Sandbox, execute: bool) -> None:
    """Raise IsentropeError before anything starts: for training problems, without consent, or without isolation."""
    if split == "train":
        raise IsentropeError(f"task {task} is for evaluation and has no training problems; use the split 'test'")
    require_consent(task, execute)
    sandbox.working_isolation()


def check(task: Task, near_misses: Callable[[Example], Iterable[str]], count: int = 8, seed: int = 0) -> None:
    """What `validate` checks: on `count` test problems the references are right, near-misses and garbage are not.

    Fewer than `base.check` takes, as each text starts a process. Raises IsentropeError.
    """
    for example in task.examples("test", count, seed):
        for text in example.references:
            score = task.score(text, example)
            if score.outcome != "right":
                raise IsentropeError(f"task {task.name} rejects its reference {shown(text)}: {score.reason}")
        for text in near_misses(example):
            _reject(task, text, example)
    for text in GARBAGE:
        _reject(task, text, example)


def _reject(task: Task, text: str, example: Example) -> None:
    score = task.score(text, example)
    if score.outcome != "wrong":
        raise IsentropeError(f"task {task.name} finds {shown(text)} {score.outcome}: {score.reason}")


def cheats(name: str) -> tuple[str, ...]:
    """Programs that define the function and try to pass without doing what is asked."""
    equal = "class Any:\n    def __eq__(self, other): return True\n    __ne__ = lambda self, other: False\n"
    return (
        f"{equal}def {name}(*a, **k): return Any()",
        f"import os\nos._exit(0)\ndef {name}(*a, **k): return None",
        f"import sys\ndef {name}(*a, **k): sys.exit(0)",
        f"import builtins\nbuiltins.AssertionError = None\ndef {name}(*a, **k): raise SystemExit",
        f"def {name}(*a, **k): pass",
    )
