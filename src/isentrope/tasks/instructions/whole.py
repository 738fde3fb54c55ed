"""Instructions about a response as a whole: how it begins and ends, its case, that it comes twice."""

from dataclasses import dataclass, field

from isentrope.tasks.instructions.base import Count, repeated
from isentrope.tasks.instructions.text import fold, is_english, spaced_words

SEPARATOR = "******"
ENGLISH = "this is how the people of the town used to tell the story of the old house by the river"
GERMAN = "so haben die leute in der stadt die geschichte von dem alten haus am fluss immer wieder erzählt"


@dataclass(frozen=True)
class TwoResponses:
    """Exactly two responses that differ, with six asterisks between them; nothing empty between separators."""

    def __call__(self, response: str) -> bool:
        parts = [part.strip() for part in response.split(SEPARATOR)]
        inner = parts[1 if not parts[0] else 0 : -1 if not parts[-1] else None]
        return len(inner) == 2 and all(inner) and inner[0] != inner[1]

    def met(self) -> str:
        return f"One.\n{SEPARATOR}\nTwo."

    def missed(self) -> tuple[str, ...]:
        same, more = f"One.\n{SEPARATOR}\nOne.", f"One.\n{SEPARATOR}\nTwo.\n{SEPARATOR}\nThree."
        return (same, more, "One.\n*****\nTwo.", f"One.\n{SEPARATOR}", f"One.{SEPARATOR}{SEPARATOR}Two.")


@dataclass(frozen=True)
class RepeatPrompt:
    """The response begins with the request, word for word, in any case."""

    prompt_to_repeat: str

    def __call__(self, response: str) -> bool:
        return fold(response.strip()).startswith(fold(self.prompt_to_repeat.strip()))

    def met(self) -> str:
        return f"{self.prompt_to_repeat.upper()}\n\nAn answer."

    def missed(self) -> tuple[str, ...]:
        return (f"Sure: {self.prompt_to_repeat}\n\nAn answer.", self.prompt_to_repeat.strip()[:-1] + " An answer.")


@dataclass(frozen=True)
class EndPhrase:
    """The response ends with the phrase, in any case; quotation marks around the response may follow."""

    end_phrase: str

    def __call__(self, response: str) -> bool:
        return fold(response.strip().strip('"')).endswith(fold(self.end_phrase.strip()))

    def met(self) -> str:
        return f'"An answer. {self.end_phrase}"'

    def missed(self) -> tuple[str, ...]:
        return (f"An answer. {self.end_phrase} Bye.", f"An answer. {self.end_phrase.strip()[:-2]}")


@dataclass(frozen=True)
class Quotation:
    """The whole response stands in double quotation marks."""

    def __call__(self, response: str) -> bool:
        text = response.strip()
        return len(text) > 1 and text[0] == text[-1] == '"'

    def met(self) -> str:
        return '"An answer."'

    def missed(self) -> tuple[str, ...]:
        return ('"An answer.', "'An answer.'", "“An answer.”", '"An answer." Bye.', '"')


@dataclass(frozen=True)
class NoComma:
    """No comma occurs."""

    def __call__(self, response: str) -> bool:
        return "," not in response

    def met(self) -> str:
        return "An answer; and more、 and more."

    def missed(self) -> tuple[str, ...]:
        return ("An answer, and more.", "1,000")


@dataclass(frozen=True)
class CapitalWords:
    """Less than, or at least, that many words in capital letters alone; see `text.spaced_words`. "I" is one."""

    capital_frequency: int
    capital_relation: str
    count: Count = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", Count(self.capital_relation, self.capital_frequency))

    def __call__(self, response: str) -> bool:
        return self.count.holds(sum(word.isupper() for word in spaced_words(response)))

    def met(self) -> str:
        return "Look: " + repeated("STATE-OF-THE-ART", self.count.met(), ", ")

    def missed(self) -> tuple[str, ...]:
        wrong = self.count.missed()
        return () if wrong is None else ("Look: " + repeated("NASA", wrong, " ") + " McDonald",)


@dataclass(frozen=True)
class EnglishCapitals:
    """English, and all letters are capitals."""

    def __call__(self, response: str) -> bool:
        return response.isupper() and is_english(response)

    def met(self) -> str:
        return f"{ENGLISH.upper()}: 1."

    def missed(self) -> tuple[str, ...]:
        return (f"{ENGLISH.upper()} a", ENGLISH, GERMAN.upper(), "1 + 1 = 2")


@dataclass(frozen=True)
class EnglishLowercase:
    """English, and no letter is a capital."""

    def __call__(self, response: str) -> bool:
        return response.islower() and is_english(response)

    def met(self) -> str:
        return f"{ENGLISH}: 1."

    def missed(self) -> tuple[str, ...]:
        return (ENGLISH.capitalize(), ENGLISH.upper(), GERMAN, "1 + 1 = 2")
