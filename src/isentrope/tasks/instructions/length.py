"""Instructions about numbers of words, sentences and paragraphs."""

from dataclasses import dataclass, field

from isentrope.tasks.instructions.base import FILLER, Count, repeated
from isentrope.tasks.instructions.text import sentences, words

DIVIDER = "***"
END_OF_WORD = "'\".,?!"  # at the first of these a paragraph's first word is over, as published


@dataclass(frozen=True)
class NumberWords:
    """Less than, or at least, that many words; see `text.words`."""

    num_words: int
    relation: str
    count: Count = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", Count(self.relation, self.num_words))

    def __call__(self, response: str) -> bool:
        return self.count.holds(len(words(response)))

    def met(self) -> str:
        return repeated(FILLER, self.count.met()) + "."

    def missed(self) -> tuple[str, ...]:
        wrong = self.count.missed()
        return () if wrong is None else (repeated(FILLER, wrong) + " ... - !",)


@dataclass(frozen=True)
class NumberSentences:
    """Less than, or at least, that many sentences; see `text.sentences`."""

    num_sentences: int
    relation: str
    count: Count = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", Count(self.relation, self.num_sentences))

    def __call__(self, response: str) -> bool:
        return self.count.holds(len(sentences(response)))

    def met(self) -> str:
        return repeated("Dr. No went on.", self.count.met())

    def missed(self) -> tuple[str, ...]:
        wrong = self.count.missed()
        return () if wrong is None else (repeated("Dr. No went on.", wrong),)


@dataclass(frozen=True)
class NumberParagraphs:
    """Exactly that many paragraphs with *** between them; one before the first or after the last changes nothing."""

    num_paragraphs: int

    def __call__(self, response: str) -> bool:
        parts = [part.strip() for part in response.split(DIVIDER)]
        inner = parts[1 if not parts[0] else 0 : -1 if not parts[-1] else None]
        return all(inner) and len(inner) == self.num_paragraphs

    def met(self) -> str:
        return repeated("A paragraph.\n\nStill the same.", self.num_paragraphs, f"\n{DIVIDER}\n")

    def missed(self) -> tuple[str, ...]:
        more = repeated("A paragraph.", self.num_paragraphs + 1, f"\n{DIVIDER}\n")
        empty = f"A paragraph.\n{DIVIDER}\n{DIVIDER}\n" + repeated(
            "One more.", self.num_paragraphs - 1, f"\n{DIVIDER}\n"
        )
        blank = repeated("A paragraph.", self.num_paragraphs, "\n\n")
        return (more, empty, blank) if self.num_paragraphs > 1 else (more, empty)


@dataclass(frozen=True)
class NthParagraphFirstWord:
    """Exactly that many paragraphs with an empty line between them, the n-th of which begins with a word, in any case.

    Quotation marks before the word are passed over, and it is over at the first of ' " . , ? !
    """

    num_paragraphs: int
    nth_paragraph: int
    first_word: str

    def __call__(self, response: str) -> bool:
        found = [part.strip() for part in response.split("\n\n")]
        if len([part for part in found if part]) != self.num_paragraphs or self.nth_paragraph > len(found):
            return False
        opening = found[self.nth_paragraph - 1].split(maxsplit=1)[:1]
        return bool(opening) and _head(opening[0]).lower() == self.first_word.lower()

    def met(self) -> str:
        return "\n\n".join(self._parts(self.first_word.capitalize()))

    def missed(self) -> tuple[str, ...]:
        right = self._parts(self.first_word)
        return (
            "\n\n".join(self._parts(self.first_word + "s")),
            "\n\n".join(self._parts(f"The {self.first_word}")),
            "\n\n".join([*right, "One more."]),
            "\n".join(right) if self.num_paragraphs > 1 else "",
        )

    def _parts(self, opening: str) -> list[str]:
        numbers = range(1, self.num_paragraphs + 1)
        return [f'"{opening}, and on.' if n == self.nth_paragraph else "Some text." for n in numbers]


def _head(word: str) -> str:
    word = word.lstrip("'\"")
    ends = [place for mark in END_OF_WORD if (place := word.find(mark)) >= 0]
    return word[: min(ends)] if ends else word
