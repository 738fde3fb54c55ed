"""Programs and instructions from a set of one's own, to train on: MBPP's and IFEval's verifiers, other problems."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from isentrope.tasks import ifeval, mbpp, programs
from isentrope.tasks.base import Example, Score, Split, check_request, draw, generator
from isentrope.tasks.files import records
from isentrope.tasks.sandbox import Isolation, Sandbox
from isentrope.tasks.short_answers import own_pool


@dataclass(frozen=True)
class Code:
    """Functions to write that have to pass tests, as in MBPP.

    data_dir: folder with code_train.jsonl, and code_test.jsonl if there is one, of MBPP's fields (task_id, text, code,
    test_list, test_setup_code); None: the folder that ISENTROPE_DATA names. Without a file of test problems one in five
    is held out.
    execute, isolation, seconds, shown_tests: see `mbpp.Mbpp`.
    """

    data_dir: str | Path | None = None
    execute: bool = False
    isolation: Isolation = "auto"
    seconds: int = 5
    shown_tests: int = 3
    name: str = "code"

    def __post_init__(self) -> None:
        self._judge()

    def _judge(self) -> mbpp.Mbpp:
        return mbpp.Mbpp(self.data_dir, self.execute, self.isolation, self.seconds, self.shown_tests, self.name)

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` problems of the split in random order.

        Raises IsentropeError without data, without consent, and where no program can be isolated.
        """
        check_request(self.name, split, count)
        programs.check_request(self.name, "test", Sandbox(isolation=self.isolation, seconds=self.seconds), self.execute)
        pool = own_pool(self.name, split, self.data_dir, self._read)
        return draw(self.name, pool, split, count, generator(self.name, split, seed))

    def _read(self, file: str) -> list[Example]:
        return [self._judge().example(record) for record in records(self.name, self.data_dir, file, mbpp.FIELDS)]

    def score(self, completion: str, example: Example) -> Score:
        """See `mbpp.Mbpp.score`."""
        return self._judge().score(completion, example)

    def validate(self) -> None:
        """Raise IsentropeError if a reference fails, or a near-miss or a cheat passes."""
        programs.check(self, mbpp.near_misses)


@dataclass(frozen=True)
class Instructions:
    """Prompts with instructions that a program can check, as in IFEval.

    data_dir: folder with instructions_train.jsonl, and instructions_test.jsonl if there is one, of IFEval's fields
    (key, prompt, instruction_id_list, kwargs); None: the folder that ISENTROPE_DATA names. Without a file of test
    prompts one in five is held out.
    loose, reward: see `ifeval.IfEval`; the share of instructions followed is the denser signal, and the default here.
    """

    data_dir: str | Path | None = None
    loose: bool = False
    reward: ifeval.Reward = "share"
    name: str = "instructions"

    def __post_init__(self) -> None:
        self._judge()

    def _judge(self) -> ifeval.IfEval:
        return ifeval.IfEval(self.data_dir, self.loose, self.reward, self.name)

    def examples(self, split: Split, count: int, seed: int) -> list[Example]:
        """`count` prompts of the split in random order.

        Raises IsentropeError without data, and for an instruction that does not exist.
        """
        check_request(self.name, split, count)
        pool = own_pool(self.name, split, self.data_dir, self._read)
        return draw(self.name, pool, split, count, generator(self.name, split, seed))

    def _read(self, file: str) -> list[Example]:
        return [self._judge().example(record) for record in records(self.name, self.data_dir, file, ifeval.FIELDS)]

    def score(self, completion: str, example: Example) -> Score:
        """See `ifeval.IfEval.score`."""
        return self._judge().score(completion, example)

    def figures(self, completions: Sequence[str], example: Example) -> dict[str, tuple[float, float]]:
        """See `ifeval.IfEval.figures`."""
        return ifeval.figures(completions, example)

    def validate(self) -> None:
        """Raise IsentropeError if a response made for the prompts is judged wrongly."""
        ifeval.check(self, count=min(40, len(own_pool(self.name, "test", self.data_dir, self._read))))
