r"""What counts as equal to a gold answer, pair by pair: what a mathematician would grade."""

import importlib.util
import json
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import pytest

from isentrope.errors import IsentropeError
from isentrope.tasks import workers
from isentrope.tasks.math_answers import grade, grade_answer
from isentrope.tasks.math_values import Undecided, Value, Values, same_value
from isentrope.tasks.workers import Pool, WorkerLost

pytest.importorskip("math_verify")

RIGHT, WRONG = "right", "wrong"
# gold, candidate, outcome; docs/tasks.md states the policy behind each group
PAIRS = [
    # numbers and their spellings
    ("72", "72", RIGHT),
    ("72", "72.0", RIGHT),
    ("72", "+72", RIGHT),
    ("25", "025", RIGHT),  # AIME answers are written with three digits
    ("72", "73", WRONG),
    ("72", "-72", WRONG),
    ("-5", "−5", RIGHT),  # U+2212
    ("0.15", ".15", RIGHT),
    (".0000672", r"6.72 \times 10^{-5}", RIGHT),
    (".0000672", "6.72e-5", RIGHT),
    (".0000672", r"6.72 \times 10^{-4}", WRONG),
    ("10,\\!080", "10080", RIGHT),
    ("10080", "10,080", RIGHT),
    ("10080", "10 080", RIGHT),
    ("10080", r"10\,080", RIGHT),
    ("58,500", "58500", RIGHT),
    ("58,500", "58.500", WRONG),  # a point is a decimal point
    ("1234567", "1,234,567", RIGHT),
    ("1234567", "12,34,567", WRONG),
    (r"11,\! 111,\! 111,\! 100", "11111111100", RIGHT),
    ("3.14", "3,14", WRONG),  # a comma separates
    ("72", "٧٢", WRONG),  # digits of other scripts
    ("72", "７２", WRONG),
    ("7", "3 4", WRONG),  # the parser adds numbers side by side
    ("34", "3 4", WRONG),
    ("72", "7 2", WRONG),
    # fractions, decimals, mixed numbers
    (r"\frac{14}{3}", r"\dfrac{14}{3}", RIGHT),
    (r"\frac43", "4/3", RIGHT),
    (r"\frac{4}{3}", r"\tfrac43", RIGHT),
    (r"\frac{14}{3}", r"\frac{28}{6}", RIGHT),  # the value counts, not the form
    (r"\frac{14}{3}", r"4\frac{2}{3}", RIGHT),
    (r"1\frac{4}{5}", r"\frac{9}{5}", RIGHT),
    (r"1\frac{4}{5}", "1.8", RIGHT),
    (r"1\frac{4}{5}", "1 4/5", RIGHT),
    (r"1\frac{4}{5}", r"\frac{4}{5}", WRONG),
    (r"-1\frac{1}{2}", "-1.5", RIGHT),
    (r"\frac{13}{3}", r"3\frac{4}{3}", WRONG),  # no mixed number: a product
    ("4", r"3\frac{4}{3}", RIGHT),
    (r"-1\frac{1}{2}", "-0.5", WRONG),
    (r"\frac{1}{2}", "0.5", RIGHT),
    (r"\frac{1}{2}", "½", RIGHT),
    (r"\frac{1}{3}", "0.333", WRONG),  # rounded
    (r"\frac{1}{3}", "0.333333333333", WRONG),
    (r"\frac{1}{3}", r"0.\overline{3}", RIGHT),
    (r"\frac{1}{3}", r"\frac{1}{3} \approx 0.333", RIGHT),
    ("3.21", r"\frac{321}{100}", RIGHT),
    ("3.21", "3.2", WRONG),
    ("3.21", "3.214", WRONG),
    ("1.25", r"\frac{5}{4}", RIGHT),
    (r"\frac{3}{56}", r"-\frac{-3}{56}", RIGHT),
    (r"-\frac{35}{9}", r"\frac{-35}{9}", RIGHT),
    (r"-\frac{35}{9}", r"\frac{35}{9}", WRONG),
    # roots, pi, powers, i
    (r"11\sqrt2", r"11\sqrt{2}", RIGHT),
    (r"11\sqrt2", r"\sqrt{242}", RIGHT),
    (r"11\sqrt2", "11*sqrt(2)", RIGHT),
    (r"11\sqrt2", "15.556", WRONG),
    (r"\sqrt{2}", "1.41421356237", WRONG),
    (r"\sqrt{2}", r"\sqrt{2+10^{-12}}", WRONG),  # equal to 12 digits
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", RIGHT),
    (r"1-\frac{2}{\pi}", r"\frac{\pi-2}{\pi}", RIGHT),
    (r"\pi", "3.14159265", WRONG),
    (r"\pi", "π", RIGHT),
    (r"2^{25} \cdot 26!", r"26! \cdot 2^{25}", RIGHT),
    (r"2^{25} \cdot 26!", r"2^{25} \cdot 25!", WRONG),
    (r"2^{25} \cdot 26!", "13532215908553332190020108288000000", RIGHT),
    (r"\sqrt{6+2\sqrt{5}}", r"1+\sqrt{5}", RIGHT),
    ("6 - 5i", "-5i+6", RIGHT),
    ("6 - 5i", "6 + 5i", WRONG),
    ("5", "(2+i)(2-i)", RIGHT),
    ("120", r"\binom{10}{3}", RIGHT),
    # expressions with variables
    ("p - q", "-q+p", RIGHT),
    ("p - q", "q - p", WRONG),
    ("(a+5)(b+2)", "ab+2a+5b+10", RIGHT),
    ("3R^2", "3r^2", WRONG),  # R is not r
    ("2k+2", "2(k+1)", RIGHT),
    ("2k+2", "2n+2", WRONG),
    (r"\cot x", r"\frac{\cos x}{\sin x}", RIGHT),
    (r"\cot x", r"\tan x", WRONG),
    ("|x|", r"\sqrt{x^2}", RIGHT),
    ("|x|", "x", WRONG),
    (r"2\ln x", r"\ln x^2", RIGHT),
    ("x^2", r"\frac{x^3}{x}", RIGHT),
    (r"\frac{11+9a}{20}", r"\frac{9a}{20}+0.55", RIGHT),
    # names and equations
    ("x=5", "5", RIGHT),
    ("5", "x=5", RIGHT),
    ("5", "5=x", RIGHT),
    ("x=5", "y=5", WRONG),
    ("5", "2+3=5", RIGHT),
    ("5", "2+2=5", WRONG),
    ("0", "3*x-1*y+13=0", WRONG),
    ("13", "3*x-1*y+13=0", WRONG),
    ("3x-y+13=0", "3*x-1*y+13=0", RIGHT),
    ("3x-y+13=0", "6x-2y+26=0", RIGHT),
    ("3x-y+13=0", "y=3x+13", RIGHT),
    ("3x-y+13=0", "3x-y-13=0", WRONG),
    ("y = 2x + 3", "2x-y+3=0", RIGHT),
    ("y = 2x + 3", "2x+3", WRONG),  # an expression is no line
    ("y = 2x + 3", "y = 2x - 3", WRONG),
    ("2x+3", "f(x) = 2x+3", RIGHT),
    # sets, lists, tuples
    ("3, 5, 7", "7, 3, 5", RIGHT),
    ("3, 5, 7", r"\{3,5,7\}", RIGHT),
    ("3, 5, 7", r"3, 5 \text{ and } 7", RIGHT),
    ("3, 5, 7", "3, 5", WRONG),
    ("3, 5, 7", "3, 5, 7, 9", WRONG),
    ("1,-2", "x=1 or x=-2", RIGHT),
    ("1,-2", "x = 1, -2", RIGHT),
    ("1,-2", "(1,-2)", WRONG),  # a tuple is no set
    (r"\{1,2\}", "(1,2)", WRONG),
    ("(1,2)", r"\{1,2\}", WRONG),
    ("(1,2)", "(2,1)", WRONG),
    ("(1,2)", "1,2", WRONG),  # the brackets belong to the answer
    ("(1,2)", "(x,y)=(1,2)", RIGHT),
    ("(1,2)", r"\left(1,\,2\right)", RIGHT),
    ("(1,2)", r"\langle 1,2 \rangle", RIGHT),
    ("(1,234)", "1234", WRONG),
    ("5", r"\{5\}", RIGHT),
    ("5", "5, 6", WRONG),
    ("5", "5 or 6", WRONG),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\pi/2)", RIGHT),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,1.5708)", WRONG),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}", RIGHT),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}", WRONG),
    (r"1 \pm \sqrt{19}", r"1 \mp \sqrt{19}", RIGHT),
    (r"\frac{-1+\sqrt{17}}{2}, \frac{-1-\sqrt{17}}{2}", r"\frac{-1 \pm \sqrt{17}}{2}", RIGHT),
    (r"\{1\pm\sqrt{5},-2\}", r"-2, 1-\sqrt5, 1+\sqrt5", RIGHT),
    (r"\emptyset", r"\{\}", RIGHT),
    (r"\emptyset", "0", WRONG),
    # intervals
    ("(3,4]", r"\left(3,4\right]", RIGHT),
    ("(3,4]", "[3,4]", WRONG),
    ("(3,4]", "(3,4)", WRONG),
    ("(3,4]", r"3 < x \le 4", RIGHT),
    ("(3,4]", r"3 \le x \le 4", WRONG),
    (r"x \in [-2,7]", "[-2,7]", RIGHT),
    (r"x \in [-2,7]", "-2 <= x <= 7", RIGHT),
    (r"(2,\infty)", "x > 2", RIGHT),
    (r"(2,\infty)", "2 < x", RIGHT),
    (r"(2,\infty)", r"x \ge 2", WRONG),
    (r"(2,\infty)", r"(2,+\infty)", RIGHT),
    (r"(2,\infty)", r"(-\infty,2)", WRONG),
    (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)", RIGHT),
    (r"(0,9) \cup (9,36)", "(0,36)", WRONG),
    (r"(-\infty, 2) \cup (3, \infty)", "x<2 or x>3", RIGHT),
    # matrices
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{bmatrix} 0.2 \\ -3.6 \end{bmatrix}", RIGHT),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} 1/5 & -18/5 \end{pmatrix}", WRONG),
    (r"\begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix}", "(-7,16,5)", RIGHT),
    (r"\begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix}", r"\begin{pmatrix} -7 \\ 5 \\ 16 \end{pmatrix}", WRONG),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{pmatrix} -1 & 0 \\ 0 & 1 \end{pmatrix}", WRONG),
    # units, percent, currency, degrees
    (r"90^\circ", "90", RIGHT),
    (r"90^\circ", "90°", RIGHT),
    (r"90^\circ", r"90 \text{ degrees}", RIGHT),
    (r"90^\circ", r"\frac{\pi}{2}", WRONG),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}^\circ", RIGHT),
    (r"5.4 \text{ cents}", "5.4", RIGHT),
    (r"5.4 \text{ cents}", r"\$5.4", WRONG),
    (r"864 \mbox{ inches}^2", r"864 \text{ square inches}", RIGHT),
    (r"864 \mbox{ inches}^2", r"864 \text{ inches}", WRONG),
    (r"15\mbox{ cm}^2", r"15\text{ m}^2", WRONG),
    (r"15\mbox{ cm}^2", r"15\,\mathrm{cm}^2", RIGHT),
    ("5", r"5 \text{ apples}", RIGHT),
    ("5", "5 cm", RIGHT),
    (r"\$32,\!348", "32348", RIGHT),
    (r"\$32,\!348", r"\$32,348.00", RIGHT),
    (r"\$18.90", "18.9 dollars", RIGHT),
    ("50", r"50\%", RIGHT),
    ("0.5", r"50\%", RIGHT),
    (r"50\%", "0.5", RIGHT),
    (r"50\%", "5", WRONG),
    ("5", r"50\%", WRONG),
    ("50", "5000", WRONG),
    (r"5\sqrt{2}", r"500\sqrt{2}", WRONG),
    ("5", r"\text{Area} = 5", RIGHT),
    ("5", r"\text{The answer is } 5", RIGHT),
    ("5", r"\text{The answer is not } 5", WRONG),
    ("5", r"5 \text{ or maybe 6}", WRONG),
    ("5", r"5 \text{ or six}", WRONG),
    ("5", r"5 \text{ is wrong, } 6", WRONG),
    ("5", r"5 \quad 6", WRONG),
    ("5", r"5 \ne 6", WRONG),
    ("5", "5 = 5 = 6", WRONG),
    ("5", r"5 \approx 6", RIGHT),  # the exact side is the answer
    # bases
    ("52_8", "52_{8}", RIGHT),
    ("52_8", "52", WRONG),
    ("52_8", "42", WRONG),
    ("4210_{5}", "4210_6", WRONG),
    # words
    (r"\text{Evelyn}", "Evelyn", RIGHT),
    (r"\text{Evelyn}", r"\textbf{evelyn}", RIGHT),
    (r"\text{Evelyn}", r"\text{Carla}", WRONG),
    (r"\text{(C)}", "C", RIGHT),
    (r"\text{(C)}", "(C)", RIGHT),
    (r"\text{(C)}", r"\text{(B)}", WRONG),
    (r"\text{even}", r"\text{odd}", WRONG),
    ("5", r"\text{five}", WRONG),
    # degenerate
    ("5", "", WRONG),
    ("5", "{}", WRONG),
    ("5", "()", WRONG),
    ("5", ",", WRONG),
    ("5", "5,", RIGHT),  # punctuation at the end
    ("5", ",5", WRONG),
    ("5", "5+", WRONG),
    ("5", "(5", WRONG),
    ("5", "5}", WRONG),
    ("5", r"\frac{5}{", WRONG),
    ("5", "((5))", RIGHT),
    ("5", "x", WRONG),
    ("5", "?", WRONG),
    ("0", r"\frac{1}{0}", WRONG),
    (r"\infty", "-\\infty", WRONG),
    ("f(x)+1", "1+f(x)", RIGHT),
    ("f(x)+1", "1+f(y)", WRONG),
]


@pytest.mark.parametrize(("gold", "candidate", "outcome"), PAIRS)
def test_an_answer_is_graded_as_a_mathematician_would(gold, candidate, outcome):
    assert grade_answer(candidate, gold).outcome == outcome


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.5", r"\frac{2}{4}"),
        (r"\sqrt{8}", r"2\sqrt2"),
        ("3, 1, 2", r"\{1,2,3\}"),
        ("5", "x=5"),
        ("(1, 2]", r"1 < x \le 2"),
        (r"(x+1)^2", "x^2+2x+1"),
        (r"90^\circ", "90"),
        ("Evelyn", r"\text{evelyn}"),
        (r"1 \pm \sqrt{2}", r"1-\sqrt{2}, 1+\sqrt{2}"),
    ],
)
def test_equal_answers_have_one_canonical_text_and_others_another(one, other):
    texts = {grade_answer(text, "no such answer").answer for text in (one, other)}
    assert len(texts) == 1
    assert grade_answer("12345", "no such answer").answer not in texts
    assert grade_answer(one, other).answer in texts


BOMBS = ["9^{9^{9^9}}", "(10^9)!", r"\binom{10^7}{5\cdot 10^6}", "x^{10^9}+1"]


@pytest.mark.parametrize("bomb", [BOMBS[0], *(pytest.param(bomb, marks=pytest.mark.slow) for bomb in BOMBS[1:])])
def test_what_takes_too_long_could_not_be_scored_and_the_next_answer_is(bomb, monkeypatch):
    monkeypatch.setattr(workers, "WALL_FACTOR", 1000.0)  # the kernel ends it, not the clock
    settings = {"timeout": 0.4, "workers": 1}
    with ThreadPoolExecutor(1) as thread:  # math-verify's own time-outs fail outside the main thread
        found = thread.submit(grade, f"\\boxed{{{bomb}}}", "7", **settings).result(timeout=60)
        after = thread.submit(grade, r"\boxed{\sqrt{49}}", "7", **settings).result(timeout=60)
    assert (found.outcome, found.reward, found.reason) == ("unscored", 0.0, "time-out")
    assert after.outcome == "right"


@pytest.mark.slow
def test_what_takes_too_much_memory_could_not_be_scored():
    found = grade_answer("2^{10^{10}}", "7", timeout=60.0, workers=1)
    assert (found.outcome, found.reason) == ("unscored", "out of memory")


def test_deep_nesting_ends_quickly():
    start = time.perf_counter()
    for depth in (10, 20, 100):
        nested = r"\frac{1}{1+" * depth + "1" + "}" * depth
        assert grade_answer(nested, "7").outcome == "wrong"
    assert time.perf_counter() - start < 20


def test_a_form_that_is_not_taken_apart_is_left_to_math_verify():
    assert grade_answer(r"x^2 \ne 4", r"x^2 \ne 4").outcome == "right"
    assert grade_answer("x^2 > 4", "4 < x^2").outcome == "right"
    assert grade_answer("x^2 > 4", "5 < x^2").outcome == "wrong"


def test_without_the_library_plain_numbers_are_still_graded_and_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert grade_answer("0.50", r"\frac{1}{2}").outcome == "right"
    with pytest.raises(IsentropeError, match=r"math-verify; pip install 'isentrope\[tasks\]'"):
        grade_answer(r"\sqrt{50000}", "3")


def test_a_value_lost_once_is_asked_for_again(monkeypatch):
    found = Values(Pool(Path("none"), 1, 1.0, 1))
    replies = iter([WorkerLost("time-out"), {"exact": "3", "digits": [], "symbols": []}])

    def ask(request):
        reply = next(replies)
        if isinstance(reply, WorkerLost):
            raise reply
        return reply

    monkeypatch.setattr(found.pool, "ask", ask)
    with pytest.raises(WorkerLost):
        found(r"\sqrt{9}")
    assert found(r"\sqrt{9}") == found(r"\sqrt{9}") == Value(Fraction(3))


def test_values_that_nothing_can_compare_are_undecided():
    with pytest.raises(Undecided):
        same_value(Value(digits=("?",)), Value(digits=("2",)))
    assert not same_value(Value(digits=("?", "1", "2")), Value(digits=("3", "1", "3")))
    assert same_value(Value(digits=("?", "1", "2")), Value(digits=("3", "1", "2")))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["aime24", "aime25", "hmmt_feb_2025", "amc23", "math500", "gsm8k_test", "gsm8k_train"])
def test_every_gold_answer_and_every_published_solution_is_right(evaluation_data, name):
    lines = (evaluation_data / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    records = [json.loads(line) for line in lines if line]
    for record in records:
        gold = str(record["answer"])
        assert grade(f"So it is $\\boxed{{{gold}}}$.", gold).outcome == "right", gold
        if "solution" in record:
            assert grade(record["solution"], gold).outcome == "right", record["solution"]
    assert len(records) >= 30
