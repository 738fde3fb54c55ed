"""Instructions about parts that a response has: placeholders, bullets, titles, sections, a postscript, JSON."""

import json
import re
from dataclasses import dataclass

from isentrope.tasks.instructions.base import repeated
from isentrope.tasks.instructions.text import lines

OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
FENCED = re.compile(r"```(?:json)?", re.IGNORECASE)
RULE = frozenset("-* \t")  # a line of nothing else is a horizontal rule


@dataclass(frozen=True)
class Placeholders:
    """At least that many placeholders in square brackets, each on one line."""

    num_placeholders: int

    def __call__(self, response: str) -> bool:
        return sum(_brackets(line) for line in lines(response)) >= self.num_placeholders

    def met(self) -> str:
        return "Dear " + repeated("[name]", self.num_placeholders)

    def missed(self) -> tuple[str, ...]:
        return ("Dear " + repeated("[name]", self.num_placeholders - 1) + " [of\na] (name)",)


def _brackets(line: str) -> int:
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


@dataclass(frozen=True)
class Postscript:
    """Somewhere, usually at the end, the postscript's marker stands, in any case, with or without spaces within."""

    postscript_marker: str

    def __call__(self, response: str) -> bool:
        marker = self.postscript_marker.strip().lower()
        pattern = re.escape(marker).replace(r"\.", r"\.\s?")
        return re.search(pattern.removesuffix(r"\s?"), response.lower()) is not None

    def met(self) -> str:
        return f"A letter.\n\n{self.postscript_marker} One more thing."

    def missed(self) -> tuple[str, ...]:
        return ("A letter.\n\nPS One more thing.", "A letter.")


@dataclass(frozen=True)
class Bullets:
    """Exactly that many lines that begin with the bullet * or -; emphasis (**) and horizontal rules (---) are none."""

    num_bullets: int

    def __call__(self, response: str) -> bool:
        return sum(map(_is_bullet, lines(response))) == self.num_bullets

    def met(self) -> str:
        return "A list:\n" + repeated("* a point", self.num_bullets, "\n") + "\n**The end**\n---"

    def missed(self) -> tuple[str, ...]:
        more = repeated("  - a point", self.num_bullets + 1, "\n")
        return (more, repeated("* a point", self.num_bullets - 1, "\n") + "\n1. a point")


def _is_bullet(line: str) -> bool:
    text = line.strip()
    return (text.startswith("-") or (text.startswith("*") and text[1:2] != "*")) and not set(text) <= RULE


@dataclass(frozen=True)
class ConstrainedResponse:
    """One of the three fixed answers occurs, word for word."""

    def __call__(self, response: str) -> bool:
        return any(option in response for option in OPTIONS)

    def met(self) -> str:
        return f"I think so. {OPTIONS[0]}"

    def missed(self) -> tuple[str, ...]:
        return ("My answer is yes", "my answer is no.", "The answer is maybe.")


@dataclass(frozen=True)
class Highlights:
    """At least that many highlighted parts, *so* or **so**, each on one line and not empty."""

    num_highlights: int

    def __call__(self, response: str) -> bool:
        found = re.findall(r"\*\*[^\n*]+\*\*|\*[^\n*]+\*", response)
        return sum(bool(part.strip("* \t")) for part in found) >= self.num_highlights

    def met(self) -> str:
        return "Look: " + " and ".join(("*here*", "**there**")[i % 2] for i in range(self.num_highlights))

    def missed(self) -> tuple[str, ...]:
        return ("Look: " + repeated("*here*", self.num_highlights - 1, " and ") + " **  ** *no\nmore*",)


@dataclass(frozen=True)
class Sections:
    """At least that many sections, each marked with the splitter and a number."""

    section_spliter: str
    num_sections: int

    def __call__(self, response: str) -> bool:
        return len(re.findall(rf"{re.escape(self.section_spliter)}\s?\d+", response)) >= self.num_sections

    def met(self) -> str:
        return "\n".join(f"{self.section_spliter} {i + 1}\nText." for i in range(self.num_sections))

    def missed(self) -> tuple[str, ...]:
        fewer = "\n".join(f"{self.section_spliter} {i + 1}\nText." for i in range(self.num_sections - 1))
        return (fewer, repeated(f"{self.section_spliter} A\nText.", self.num_sections, "\n"))


@dataclass(frozen=True)
class Json:
    """The whole response is JSON, a fence around it allowed."""

    def __call__(self, response: str) -> bool:
        text = response.strip()
        opening = FENCED.match(text)
        body = (text[opening.end() :] if opening else text).strip().removesuffix("```").strip()
        try:
            json.loads(body)
        except (ValueError, RecursionError):
            return False
        return True

    def met(self) -> str:
        return '```json\n{"answer": [1, 2]}\n```'

    def missed(self) -> tuple[str, ...]:
        return ('{"answer": 1,}', "{'answer': 1}", 'Here it is: {"answer": 1}', '{"answer": 1}\nDone.', "[" * 5000)


@dataclass(frozen=True)
class Title:
    """A title in double angular brackets, <<so>>, on one line and not empty."""

    def __call__(self, response: str) -> bool:
        return any(_has_title(line) for line in lines(response))

    def met(self) -> str:
        return "<<A title>>\nText."

    def missed(self) -> tuple[str, ...]:
        return ("<A title>\nText.", "<<A\ntitle>>", "<< >>", "<<>>", "A title>> <<")


def _has_title(line: str) -> bool:
    start, end = line.find("<<"), line.rfind(">>")
    return 0 <= start < end and bool(line[start:end].strip("<> \t"))
