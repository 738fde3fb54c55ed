"""What an instruction is: a condition that a response meets or does not."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from isentrope.errors import IsentropeError

RELATIONS = ("less than", "at least")
FILLER = "word"


@runtime_checkable
class Instruction(Protocol):
    """A condition on a response. Its fields are the keyword arguments that the data set gives it."""

    def __call__(self, response: str) -> bool:
        """Whether the response meets it. Linear in the length of the response, and raises nothing."""
        ...

    def met(self) -> str:
        """A response that meets it."""
        ...

    def missed(self) -> tuple[str, ...]:
        """Responses that nearly meet it, and do not."""
        ...


@dataclass(frozen=True)
class Count:
    """What a count has to be: "less than" or "at least" a number."""

    relation: str
    number: int

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise IsentropeError(f"an instruction has the relation {self.relation!r}; it must be one of {RELATIONS}")
        if self.number < 0 or (self.number == 0 and self.relation == "less than"):
            raise IsentropeError(f"an instruction asks for {self.relation} {self.number}, which nothing can be")

    def holds(self, count: int) -> bool:
        """Whether a count is as asked."""
        return count < self.number if self.relation == "less than" else count >= self.number

    def met(self) -> int:
        """The count nearest to the bound that holds."""
        return self.number - 1 if self.relation == "less than" else self.number

    def missed(self) -> int | None:
        """The count nearest to the bound that does not hold; None if every count holds."""
        if self.relation == "less than":
            return self.number
        return self.number - 1 if self.number else None


def repeated(word: str, count: int, separator: str = " ") -> str:
    """The word that many times."""
    return separator.join([word] * count)
