"""The 25 instructions: what follows each and what only nearly does; words, sentences and languages."""

import time

import pytest

from isentrope.errors import IsentropeError
from isentrope.tasks.ifeval import check_instruction
from isentrope.tasks.instructions import KINDS, Instruction, instruction, is_met, variants
from isentrope.tasks.instructions.keywords import SENTENCES
from isentrope.tasks.instructions.text import languages, sentences, spaced_words, words

ENGLISH = "the answer to the question is that nobody knows what the weather will be like in the spring"
LESS, LEAST = "less than", "at least"
# kind, arguments, responses that follow, responses that do not
CASES = [
    ("keywords:existence", {"keywords": ["ink", "memo"]}, ["Thinking of a MEMO"], ["ink", "memo", "in k memo"]),
    (
        "keywords:frequency",
        {"keyword": "war", "frequency": 2, "relation": LEAST},
        ["War and war", "wars, warm"],
        ["war", "w ar war"],
    ),
    ("keywords:frequency", {"keyword": "war", "frequency": 2, "relation": LESS}, ["peace", "War"], ["war war"]),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["can", "C++"]},
        ["cannot, canned", "scan"],
        ["Can it", "I-can", "(can)"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "T", "let_frequency": 2, "let_relation": LESS},
        ["no such", "a t"],
        ["Tt", "that"],
    ),
    ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": LEAST}, ["#a #b"], ["#a"]),
    ("language:response_language", {"language": "de"}, [SENTENCES["de"]], [SENTENCES["en"], "42", "!?"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": LEAST}, ["a b c", "it's ok"], ["a b - !"]),
    ("length_constraints:number_words", {"num_words": 3, "relation": LESS}, ["a b", "a, ..."], ["a b c"]),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": LESS},
        ["Dr. No is 3.5 m tall", "One. "],
        ["One. Two.", "One! two"],
    ),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": LEAST}, ["A? B", "a. b."], ["A", "...!"]),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "a***b", "***\na\n***\nb\n***"],
        ["a\n\nb", "a\n***\nb\n***\nc", "a\n***\n***\nb", "a\n***\n***", "a"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "President"},
        ["a\n\nPRESIDENT of", 'a b\n\n"president, yes', "a\n\n'President'"],
        [
            "president\n\na",
            "a\n\nPresidents",
            "a\n\nThe president",
            "a\n\npresident\n\nb",
            "a\npresident",
            "a\n\n\n\nb",
        ],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] [b]", "[a][]"],
        ["[a]", "[a\n] [b]", "]["],
    ),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, ["a\nP.S. b", "a p. s. b"], ["PS b", "a"]),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, ["P.P.S. b", "p. p. s"], ["P.S. b", "PPS"]),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "a\n - b\n- c\n---\n***\n**d**"],
        ["* a", "* a\n* b\n- c", "• a\n• b", "1. a\n2. b", "**a**\n**b**"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["So: My answer is no."],
        ["My answer is no", "no.", "my answer is yes."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and **b**", "*a**b*"],
        ["*a*", "**a**", "* *, *a*", "*a\nb* *c"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        ["Section 1\na\nSection 2", "Section1 Section\n2"],
        ["Section 1", "SECTION 1 SECTION 2", "Section A Section B"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "```json\n[1]\n```", "```\n1\n```", ' "a" '],
        ["a: 1", '{"a": 1} b', "```json\n{a}\n```", "{" * 9999],
    ),
    ("detectable_format:title", {}, ["<<A>>\nb", "a << b >> c"], ["<A>", "<<>>", "<< >>", ">>A<<", "<<A\n>>"]),
    (
        "combination:two_responses",
        {},
        ["a******b", "******\na\n******\nb"],
        ["a******a", "a", "a*****b", "a******b******c"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Say no."},
        ["say no. No", " Say no."],
        ["No. Say no.", "Say no"],
    ),
    ("startend:end_checker", {"end_phrase": "Peace!"}, ["a peace!", 'a "Peace!"\n'], ["Peace! a", "Peace", "Pea ce!"]),
    ("startend:quotation", {}, ['"a"', ' "a" b "c"\n'], ['"a', "a", '"', "'a'", "“a”"]),
    ("punctuation:no_comma", {}, ["a; b"], ["a, b", ","]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": LEAST},
        ["NASA, I", "AT-AT (X)"],
        ["NASA", "NASA Nasa", "1 2 3"],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": LESS},
        ["a NASA b", "a"],
        ["NASA ESA"],
    ),
    (
        "change_case:english_capital",
        {},
        [ENGLISH.upper()],
        [ENGLISH, SENTENCES["de"].upper(), "123", ENGLISH.upper() + "s"],
    ),
    ("change_case:english_lowercase", {}, [ENGLISH], [ENGLISH.upper(), SENTENCES["de"].lower(), "123", "A " + ENGLISH]),
]


def test_there_are_25_kinds_and_a_case_of_each():
    assert len(KINDS) == 25
    assert {case[0] for case in CASES} == set(KINDS)
    assert all(isinstance(kind, type) and hasattr(kind, "met") and hasattr(kind, "missed") for kind in KINDS.values())


@pytest.mark.parametrize(("kind", "arguments", "followed", "not_followed"), CASES)
def test_an_instruction_tells_following_from_nearly_following(kind, arguments, followed, not_followed):
    condition = instruction(kind, arguments)
    assert isinstance(condition, Instruction)
    for text in followed:
        assert condition(text), text
    for text in not_followed:
        assert not condition(text), text
    check_instruction(condition)


@pytest.mark.parametrize(("kind", "arguments"), [case[:2] for case in CASES])
def test_an_empty_response_follows_nothing_and_a_huge_one_is_read_quickly(kind, arguments):
    condition = instruction(kind, arguments)
    assert not is_met(condition, "")
    assert not is_met(condition, " \n\t", loose=True)
    start = time.perf_counter()
    for unit in (
        "a",
        ".",
        "[",
        "<<",
        "*",
        " ",
        "\n",
        "[" * 9 + "\n",
        "* ",
        "P.",
        '"',
        "A. ",
        "a@",
        "1",
        "\x00",
        "-\n",
        "अ",
    ):
        condition(unit * (200_000 // len(unit)) + "x")
    assert time.perf_counter() - start < 10.0


@pytest.mark.parametrize(
    ("kind", "arguments", "response"),
    [
        ("startend:quotation", {}, 'Sure, here it is:\n"Quoted."'),
        ("startend:end_checker", {"end_phrase": "Bye."}, "Well. Bye.\nI hope this helps!"),
        ("detectable_format:json_format", {}, "Here:\n{}\nDone."),
        ("keywords:existence", {"keywords": ["one two"]}, "*one* two"),
        ("combination:repeat_prompt", {"prompt_to_repeat": "Say no."}, "Of course.\n**Say no.** No."),
    ],
)
def test_the_loose_criterion_forgives_a_first_line_a_last_line_and_asterisks(kind, arguments, response):
    condition = instruction(kind, arguments)
    assert not is_met(condition, response)
    assert is_met(condition, response, loose=True)


def test_there_are_eight_variants_in_which_the_response_comes_first():
    assert variants("a*\nb\nc*") == ["a*\nb\nc*", "b\nc*", "a*\nb", "b", "a\nb\nc", "b\nc", "a\nb", "b"]
    assert variants("one")[:4] == ["one", "", "", ""]


@pytest.mark.parametrize(
    ("kind", "arguments", "match"),
    [
        ("keywords:nothing", {}, "no instruction 'keywords:nothing'; there are keywords:existence"),
        ("keywords:existence", {}, r"has the arguments \[\]; it needs \['keywords'\]"),
        ("punctuation:no_comma", {"keyword": "a"}, r"has the arguments \['keyword'\]; it needs \[\]"),
        ("keywords:frequency", {"keyword": "a", "frequency": 1, "relation": "about"}, "has the relation 'about'"),
        ("keywords:frequency", {"keyword": "a", "frequency": 0, "relation": LESS}, "less than 0, which nothing can be"),
    ],
)
def test_an_impossible_instruction_is_named(kind, arguments, match):
    with pytest.raises(IsentropeError, match=match):
        instruction(kind, arguments)


def test_null_arguments_count_as_not_given():
    assert instruction("punctuation:no_comma", {"keyword": None}) == instruction("punctuation:no_comma", {})


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("... !!! —", 0),
        ("No mark at the end", 1),
        ("One. Two! Three? Four… Five", 5),
        ("all. in. small. letters.", 4),
        ("What?! Really?!", 2),
        ("It costs $3.50 at www.example.com today.", 1),
        ("Dr. Smith met Mr. T. and Prof. Dr. J. K. Jones at St. Ives.", 1),
        ("I came at 5 p.m. The door was shut.", 2),
        ("He came at 5 p.m. yesterday.", 1),
        ("Apples, pears, etc. are fruit. So are figs.", 2),
        ("See No. 5. He said no. Then he left.", 3),
        ('"Stop!" he said. "Why?" She ran.', 3),
        ("(One.) [Two.] 'Three.'", 3),
        ("Wait... what? Well... Yes.", 3),
        ("1. One.\n2. Two.\n* 3. Three.", 3),
        ("# A heading\n\nThe text.", 1),
        ("你好。我很好！你呢？", 3),
        ("यह एक है। वह दो है।", 2),
        ("هل هذا؟ نعم.", 2),
    ],
)
def test_sentences_are_counted(text, count):
    assert len(sentences(text)) == count, sentences(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("one, two - three!", 3),
        ("don't", 2),
        ("state-of-the-art", 4),
        ("3.5", 2),
        ("snake_case", 1),
        ("हिन्दी में", 2),
        ("தமிழ் மொழி", 2),
        ("ภาษาไทย", 1),
        ("naïve cafe\u0301", 2),
    ],
)
def test_words_are_counted(text, count):
    assert len(words(text)) == count, words(text)


def test_words_between_spaces_lose_their_punctuation():
    assert spaced_words("(I'm) -- «OK»... AT-AT's") == ["I'm", "OK", "AT-AT's"]


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_in_each_language_is_told_the_same_every_time(code):
    assert languages(SENTENCES[code])[0] == code
    assert languages(SENTENCES[code]) == languages(SENTENCES[code])


def test_an_ambiguous_text_is_told_the_same_every_time():
    assert len({tuple(languages("hello")) for _ in range(20)}) == 1


def test_nothing_is_told_of_a_text_without_letters():
    assert languages("") == languages("123 ... !?") == []


def test_capitals_do_not_hide_the_language():
    for code in ("de", "fi", "ru", "sw"):
        assert languages(SENTENCES[code].upper()) == [code]


def test_an_instruction_that_judges_wrongly_is_found():
    class Lenient:
        accepts = staticmethod(lambda text: True)

        def __call__(self, response):
            return self.accepts(response)

        def met(self):
            return "yes"

        def missed(self):
            return ("no",)

    with pytest.raises(IsentropeError, match="accepts 'no', which misses it"):
        check_instruction(Lenient())
    Lenient.accepts = staticmethod(lambda text: False)
    with pytest.raises(IsentropeError, match="rejects 'yes', which meets it"):
        check_instruction(Lenient())
