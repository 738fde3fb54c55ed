r"""Where the final answer of a completion is, and what is none."""

import time

import pytest

from isentrope.tasks.math_text import MAX_ANSWER, MAX_READ, final_answer, is_balanced, normal, split


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"$\boxed{\frac{1}{\sqrt{2}}}$", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{3} is wrong, it is \boxed{5}", "5"),
        (r"\boxed{3} and \boxed{5}", "3, 5"),
        (r"$\boxed{3}$ or $\boxed{5}$", "3, 5"),
        (r"$\boxed{3}$, $\boxed{4}$ and $\boxed{5}$", "3, 4, 5"),
        (r"\boxed{5}, \boxed{5}", "5"),
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{x = \boxed{5}}", r"x = \boxed{5}"),
        (r"\boxed{3} and then \boxed{5", "3"),  # the last one that closes
        (r"\boxed{5", None),
        (r"\boxed{}", None),
        (r"\boxed{5} \boxed{ }", None),
        (r"\boxed", None),
        (r"\boxed{5 and so the answer is 5", None),
        (r"} \boxed{5} {", "5"),
        ("#### 72", "72"),
        ("#### 71\nNo.\n####72 eggs\nThanks", "72 eggs"),
        (r"\boxed{71} #### 72", "72"),
        (r"#### 71 \boxed{72}", "72"),
        ("####", None),
        ("The answer is 42.", "42."),
        ("Answer: 3/4", "3/4"),
        ("The final answer is: $x^2$", "$x^2$"),
        ("The answers are 1 and 2", "1 and 2"),
        ("The answer is 41.\nNo, wait: I am not sure at all", None),
        ("Hence x = 7.", "7"),
        ("Hence $x = -7$.", "-7"),
        ("**7**", "7"),
        (r"so \( \frac{3}{4} \)", r"\frac{3}{4}"),
        ("It makes 50%.", "50%"),
        ("It costs $5.", "$5"),
        ("We met 7 on the way and gave up", None),
        ("There are 7 of them", None),
        ("x7", None),
        ("in 3.4.5", None),
        ("", None),
    ],
)
def test_the_final_answer(text, answer):
    assert final_answer(text) == answer


def test_only_the_end_of_a_long_text_is_read():
    assert final_answer("x" * MAX_READ + r"\boxed{5}") == "5"
    assert final_answer(r"\boxed{5}" + "x" * MAX_READ) is None


def test_texts_of_ten_megabytes_are_read_in_no_time():
    size = 10_000_000
    texts = [
        unit * (size // len(unit))
        for unit in (r"\boxed{", "{", "}", r"\boxed{5}", "9", "9,", "#", "####", " ", "answer is ", "\\")
    ]
    texts += [
        r"\boxed{" * (MAX_READ // 14) + "}" * (MAX_READ // 14),
        r"\boxed{5}" + "\n" * (MAX_READ - 100) + r"\boxed{6}",
    ]
    start = time.perf_counter()
    for text in texts:
        found = final_answer(text)
        assert found is None or normal(found) is None or len(found) <= MAX_READ
    assert time.perf_counter() - start < 5.0


@pytest.mark.parametrize(
    "unit", ["(", "{", "\\frac{1}{", "9", "\\text{", "a and ", ", ", "\\left(", "1,000", "sqrt(", " "]
)
def test_what_is_too_long_too_deep_or_open_is_no_answer_and_found_out_quickly(unit):
    start = time.perf_counter()
    assert normal(unit * 50_000) is None
    assert normal((unit * MAX_ANSWER)[:MAX_ANSWER] + "(") is None
    assert time.perf_counter() - start < 2.0


def test_brackets_may_lie_24_deep():
    assert is_balanced("(" * 24 + ")" * 24)
    assert not is_balanced("(" * 25 + ")" * 25)


@pytest.mark.parametrize("text", ["(", ")", "(}", r"\{", r"\begin{pmatrix}", r"\begin{pmatrix}1}", ")(", r"(\}"])
def test_brackets_that_do_not_match_are_noticed(text):
    assert not is_balanced(text)
    assert normal(f"5{text}") is None


def test_splitting_leaves_brackets_whole():
    assert split(r"(1,2],\{3,4\}, \frac{5,}{6}", frozenset(",")) == ["(1,2]", r"\{3,4\}", r"\frac{5,}{6}"]
    assert split("", frozenset(",")) == [""]
