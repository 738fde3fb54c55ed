"""The 25 kinds of instruction whose following can be checked.

Source: Zhou et al., Instruction-Following Evaluation for Large Language Models, arXiv:2311.07911, table 1. Words and
sentences are counted in our own way (`text`); where we judge otherwise than the published code, docs/tasks.md says.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from isentrope.errors import IsentropeError
from isentrope.tasks.instructions import form, keywords, length, whole
from isentrope.tasks.instructions.base import Instruction

__all__ = ["KINDS", "Instruction", "instruction", "is_met", "variants"]

KINDS: dict[str, type[Any]] = {
    "keywords:existence": keywords.Keywords,
    "keywords:frequency": keywords.KeywordFrequency,
    "keywords:forbidden_words": keywords.ForbiddenWords,
    "keywords:letter_frequency": keywords.LetterFrequency,
    "language:response_language": keywords.Language,
    "length_constraints:number_words": length.NumberWords,
    "length_constraints:number_sentences": length.NumberSentences,
    "length_constraints:number_paragraphs": length.NumberParagraphs,
    "length_constraints:nth_paragraph_first_word": length.NthParagraphFirstWord,
    "detectable_content:number_placeholders": form.Placeholders,
    "detectable_content:postscript": form.Postscript,
    "detectable_format:number_bullet_lists": form.Bullets,
    "detectable_format:constrained_response": form.ConstrainedResponse,
    "detectable_format:number_highlighted_sections": form.Highlights,
    "detectable_format:multiple_sections": form.Sections,
    "detectable_format:json_format": form.Json,
    "detectable_format:title": form.Title,
    "combination:two_responses": whole.TwoResponses,
    "combination:repeat_prompt": whole.RepeatPrompt,
    "startend:end_checker": whole.EndPhrase,
    "startend:quotation": whole.Quotation,
    "punctuation:no_comma": whole.NoComma,
    "change_case:capital_word_frequency": whole.CapitalWords,
    "change_case:english_capital": whole.EnglishCapitals,
    "change_case:english_lowercase": whole.EnglishLowercase,
}


def instruction(kind: str, arguments: Mapping[str, Any]) -> Instruction:
    """The instruction of a kind, with the data set's keyword arguments; null ones count as not given.

    Raises IsentropeError for a kind that does not exist, and arguments that it lacks or does not know.
    """
    if kind not in KINDS:
        raise IsentropeError(f"there is no instruction {kind!r}; there are {', '.join(KINDS)}")
    given = {name: value for name, value in arguments.items() if value is not None}
    known = [field for field in fields(KINDS[kind]) if field.init]
    needed = {field.name for field in known if field.default is MISSING}
    wrong = sorted(needed.symmetric_difference(given) - {f.name for f in known if f.name in given})
    if wrong:
        raise IsentropeError(f"instruction {kind} has the arguments {sorted(given)}; it needs {sorted(needed)}")
    found: Instruction = KINDS[kind](**given)
    return found


def variants(response: str) -> list[str]:
    """The response in the eight forms that the loose criterion looks at, the response itself first.

    Without its first line, its last, or both; and each of these without asterisks. So neither a polite opening nor
    emphasis counts against a response. Source: arXiv:2311.07911, sec. 2.3.
    """
    rows = response.split("\n")
    cut = ("\n".join(rows[first:last]).strip() for first, last in ((1, None), (None, -1), (1, -1)))
    forms = [response, *cut]
    return forms + [text.replace("*", "") for text in forms]


def is_met(condition: Instruction, response: str, loose: bool = False) -> bool:
    """Whether a response follows the instruction, strictly or in one of its `variants`; an empty one follows none."""
    return any(bool(text.strip()) and condition(text) for text in (variants(response) if loose else [response]))
