"""Problems with a short answer from a set of one's own: mathematics or science, to train on."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.base import Example, Prompt, Score, Split, check, check_request, draw, generator, is_held_out
from isentrope.tasks.files import resolve
from isentrope.tasks.hub import Source, published
from isentrope.tasks.math_answers import grade
from isentrope.tasks.mathematics import INSTRUCTION, near_misses

NAMES = ("math", "science")


@dataclass(frozen=True)
class ShortAnswers:
    r"""Problems whose final answer, boxed, is a number, an expression or a choice such as B.

    name: "math" or "science"; they differ in nothing but the name, under which a mix reports them.
    data_dir: folder with NAME_train.jsonl, one problem a line, and NAME_test.jsonl if there is one; None: the folder
    that ISENTROPE_DATA names, else `hub`. Without a set of test problems one training problem in five is held out, by a
    hash of the problem.
    hub: id of a data set on the hub, loaded where no folder is named; hub_split: its split; hub_config: its
    configuration, "" for the only one.
    problem, answer: names of these fields in a record that calls them otherwise, as sets of the hub do; a dot reaches
    into a field that is an object: "reward_model.ground_truth". A problem that is a list of chat messages is the prompt
    as it stands; a text gets the instruction to box the answer.
    answer of an example: the gold answer in LaTeX.
    """

    name: str = "math"
    data_dir: str | Path | None = None
    hub: str = ""
    hub_split: str = "train"
    hub_config: str = ""
    problem: str = "problem"
    answer: str = "answer"

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ValueError(f"ShortAnswers.name is {self.name!r}; it must be one of {', '.join(NAMES)}")

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split in random order; equal for equal arguments and files.

        Raises IsentropeError where no folder and no hub id is named, and where the data or a field is missing.
        """
        check_request(self.name, split, count)
        return draw(self.name, self._pool(split), split, count, generator(self.name, split, seed))

    def _pool(self, split: Split) -> list[Example]:
        return own_pool(self.name, split, self.data_dir, self._read)

    def _read(self, file: str) -> list[Example]:
        if resolve(self.data_dir) is None and not self.hub:
            raise IsentropeError(
                f"task {self.name} needs problems of your own: set ISENTROPE_DATA or data_dir to a folder with {file},"
                " or hub to the id of a data set"
            )
        found = published(self.name, self.data_dir, Source((file,), self.hub, self.hub_split, self.hub_config or None))
        return [self._example(f"task {self.name}: problem {i}", record) for i, record in enumerate(found, 1)]

    def _example(self, place: str, record: dict[str, Any]) -> Example:
        problem = _at(place, record, self.problem if "problem" not in record else "problem")
        gold = _at(place, record, self.answer if "answer" not in record else "answer")
        prompt: Prompt = problem if isinstance(problem, list) else [_message(f"{problem}\n{INSTRUCTION}")]
        return Example(prompt, str(gold), self.name, (f"\\boxed{{{gold}}}",))

    def score(self, completion: str, example: Example) -> Score:
        """Right if the final answer equals the gold one; see `math_answers.grade`."""
        return grade(completion, example.answer)

    def validate(self) -> None:
        """Raise IsentropeError if a gold answer is not right, a near-miss is rewarded, or the splits overlap."""
        check(self, near_misses, count=min(40, len(self._pool("train")), len(self._pool("test"))))


def own_pool(
    name: str, split: Split, data_dir: str | Path | None, read: Callable[[str], list[Example]]
) -> list[Example]:
    """The problems of a split of a set of one's own.

    read: the problems of a file. Those of NAME_test.jsonl are the test split where the folder has that file; elsewhere
    one problem in five of NAME_train.jsonl is held out, by a hash of its prompt.
    """
    folder = resolve(data_dir)
    if folder is not None and (folder / f"{name}_test.jsonl").is_file():
        return read(f"{name}_{split}.jsonl")
    pool = read(f"{name}_train.jsonl")
    return [one for one in pool if is_held_out(name, str(one.prompt)) == (split == "test")]


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _at(place: str, record: dict[str, Any], path: str) -> Any:
    try:
        found: Any = reduce(lambda value, name: value[name], path.split("."), record)
    except (KeyError, TypeError) as error:
        raise IsentropeError(
            f"{place} has no field {path!r}; it has {', '.join(record)}: name the field with the options problem and"
            " answer"
        ) from error
    if not found and found != 0:
        raise IsentropeError(f"{place}: the field {path!r} is empty")
    return found
