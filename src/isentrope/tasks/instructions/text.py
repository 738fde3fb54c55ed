"""Words, sentences, lines and the language of a text, without anything to download."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import Any

from isentrope.errors import IsentropeError

# Python's \w leaves out combining marks, which are part of a word in Hindi, Tamil, Thai and others.
MARKS = "".join(
    f"{chr(first)}-{chr(last)}" for first, last in (
        (0x0300, 0x036F), (0x0483, 0x0489), (0x0591, 0x05C7), (0x0610, 0x061A), (0x064B, 0x065F), (0x0670, 0x0670),
        (0x06D6, 0x06ED), (0x0900, 0x0903), (0x093A, 0x094F), (0x0951, 0x0957), (0x0962, 0x0963), (0x0981, 0x0983),
        (0x09BC, 0x09CD), (0x0A01, 0x0A03), (0x0A3C, 0x0A51), (0x0A70, 0x0A71), (0x0A81, 0x0A83), (0x0ABC, 0x0ACD),
        (0x0B82, 0x0B82), (0x0BBE, 0x0BCD), (0x0C00, 0x0C04), (0x0C3E, 0x0C56), (0x0C81, 0x0C83), (0x0CBC, 0x0CD6),
        (0x0E31, 0x0E31), (0x0E34, 0x0E3A), (0x0E47, 0x0E4E),
    )
)  # fmt: skip
WORD = re.compile(rf"[\w{MARKS}]+")
SPACED = re.compile(r"\S+")
QUOTES = "\"'”’»"
CLOSERS = "\"'”’»」』)\\]"
END = re.compile(rf"(?<![.!?…।؟۔])[.!?…।؟۔]+[{CLOSERS}]*(?=\s|$)|[。！？]+[{CLOSERS}]*")
BEFORE = 40  # characters before an end that are looked at; no abbreviation is longer


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Before a full stop these never end a sentence, as a name follows; the next ones where a number does.
TITLES = _set("mr mrs ms mx dr prof rev hon sen rep gen col capt lt sgt st mt vs")
NUMBERED = _set("no nos fig eq vol p pp ch sec")
# These may; whether they do is seen from the next word.
ABBREVIATIONS = _set(
    "e.g i.e etc u.s u.k u.n e.u a.m p.m b.c a.d ph.d m.d b.a m.a inc ltd co corp jr sr dept approx blvd al cf "
    "jan feb mar apr jun jul aug sep sept oct nov dec p.s p.p.s"
)
STARTERS = _set(
    "the a an this that these those it he she they we you i in on at for but and however so if when while after there "
    "here my our his her their its what who why how yes no"
)
MAX_DETECTED = 10_000  # characters of which the language is told
LIKELY = 0.1  # the least probability at which a language is named


def words(text: str) -> list[str]:
    """Runs of letters, digits and underscores, as published; combining marks count as part of their word.

    >>> words("It's 3.5 °C, naïve: हिन्दी")
    ['It', 's', '3', '5', 'C', 'naïve', 'हिन्दी']
    """
    return WORD.findall(text)


def spaced_words(text: str) -> list[str]:
    """What stands between spaces, without the punctuation around it; hyphens and apostrophes within stay.

    >>> spaced_words("«STATE-OF-THE-ART», (NASA's)")
    ['STATE-OF-THE-ART', "NASA's"]
    """
    stripped = (_stripped(piece) for piece in SPACED.findall(text))
    return [piece for piece in stripped if piece]


def _stripped(piece: str) -> str:
    first, last = 0, len(piece)
    while first < last and not piece[first].isalnum():
        first += 1
    while first < last and not piece[last - 1].isalnum():
        last -= 1
    return piece[first:last]


def sentences(text: str) -> list[str]:
    """The sentences of a text.

    A sentence ends with . ! ? … (or their counterparts in other scripts), closing quotes and brackets included, before
    white space or the end; not where a quotation goes on with a small letter ("Stop!" he said). A full stop ends none
    after a title (Dr.), after "No." before a number, or after the number of a list item; after another abbreviation
    (U.S., etc.) or an initial (J.) only before a word that often begins a sentence. An ellipsis does before a capital.
    Line breaks alone end nothing: a heading belongs to what follows it.

    >>> sentences('Dr. No paid $3.50 to J. K. at 5 p.m. in the U.S. The end? "Yes!" 1. One thing. ok... then')
    ['Dr. No paid $3.50 to J. K. at 5 p.m. in the U.S.', 'The end?', '"Yes!"', '1. One thing.', 'ok... then']
    """
    found, start = [], 0
    for end in END.finditer(text):
        if _ends(text, end):
            found.append(text[start : end.end()].strip())
            start = end.end()
    return [part for part in (*found, text[start:].strip()) if any(c.isalnum() for c in part)]


def _ends(text: str, end: re.Match[str]) -> bool:
    """Whether a mark at the end of a word ends the sentence."""
    mark = end[0].rstrip(CLOSERS)
    before = text[max(0, end.start() - BEFORE) : end.start()]
    after = text[end.end() : end.end() + BEFORE].lstrip()
    following = re.match(r"[\"'“‘«(\[]*(\w*)", after)
    next_word = following[1] if following else ""
    if end[0][-1] in QUOTES and next_word[:1].islower():
        return False  # "Stop!" he said.
    if mark in ("...", "…"):
        return not next_word or next_word[0].isupper()
    if mark != ".":
        return True
    word = re.search(r"[\w.]*$", before)
    last = (word[0] if word else "").lower()
    if last in NUMBERED:
        return not next_word[:1].isdigit()
    if last in TITLES or (last.isdigit() and _begins_line(before, last)):
        return not next_word
    is_initial = len(last) == 1 and last.isalpha() and before[-1].isupper() and last != "i"
    if last in ABBREVIATIONS or is_initial:
        return not next_word or (next_word[0].isupper() and next_word.lower() in STARTERS)
    return True


def _begins_line(before: str, word: str) -> bool:
    """Whether a number stands where a list item begins: first on its line, or after a sentence."""
    rest = before[: len(before) - len(word)].rpartition("\n")[2].strip()
    if not rest.strip("*-#"):
        return True
    return rest[-1] in '.!?"' and rest.rpartition(" ")[2].strip(".").lower() not in NUMBERED


def lines(text: str) -> Iterator[str]:
    """The lines of a text, at line feeds alone."""
    return iter(text.split("\n"))


def languages(text: str) -> list[str]:
    """The languages a text may be in, the likeliest first, as two-letter codes; empty where nothing can be told.

    Told from n-grams of characters by `langdetect` with a fixed seed, from the first 10,000 characters. 55 languages;
    a few words may be too little, and close relatives (Norwegian and Danish, Hindi and Marathi) are mixed up in short
    texts. Upper case is read as lower case, which langdetect knows better.
    Source: Shuyo, Language Detection Library for Java, 2010.
    """
    detector = _factory().create()
    detector.append(text[:MAX_DETECTED].lower())
    try:
        return [found.lang for found in detector.get_probabilities() if found.prob > LIKELY]
    except _failure():
        return []


@cache
def _factory() -> Any:
    try:
        from langdetect import PROFILES_DIRECTORY, DetectorFactory
    except ImportError as error:
        raise IsentropeError("telling languages apart needs langdetect; pip install 'isentrope[tasks]'") from error
    factory = DetectorFactory()
    factory.seed = 0
    factory.load_profile(PROFILES_DIRECTORY)
    return factory


def _failure() -> type[Exception]:
    from langdetect import LangDetectException

    return LangDetectException


def is_english(text: str) -> bool:
    """Whether English is among the likely languages of a text."""
    return "en" in languages(text)


def fold(text: str) -> str:
    """A text for comparison without regard to case, composed."""
    return unicodedata.normalize("NFC", text).lower()
