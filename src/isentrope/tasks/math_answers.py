r"""Whether an answer equals the gold answer, as a mathematician would grade it. docs/tasks.md states the policy."""

from collections.abc import Sequence
from dataclasses import dataclass

from isentrope.tasks.base import NO_ANSWER, Score, judge, unscored
from isentrope.tasks.math_forms import (
    Bag,
    Digits,
    Equation,
    Form,
    Grid,
    Named,
    Quantity,
    Row,
    Union,
    Unknown,
    Word,
    plain,
    readings,
)
from isentrope.tasks.math_text import final_answer, normal
from isentrope.tasks.math_values import (
    Undecided,
    Value,
    Values,
    proportional,
    rational,
    same_value,
    shown_value,
    values,
)
from isentrope.tasks.workers import WorkerLost


def grade(completion: str, gold: str, *, timeout: float = 5.0, workers: int = 2) -> Score:
    r"""Score a completion against a gold answer in LaTeX.

    completion: its final answer is found by `math_text.final_answer`. gold: the bare answer, "\frac{1}{2}".
    timeout: seconds of CPU time for one expression. workers: processes that this process uses at the most.
    Right if the final answer has the gold one's form and value. "unscored" where the worker ran out of time or memory,
    or where no value can be computed. The canonical answer is a text that is the same for equal answers.
    Raises IsentropeError if math-verify is needed and not installed.

    >>> grade(r"Thus \boxed{0.5}.", r"\frac{1}{2}"), grade("I cannot say.", "7").reason
    (Score(reward=1.0, outcome='right', answer='1/2', reason=''), 'no answer')
    """
    found = final_answer(completion)
    return NO_ANSWER if found is None else grade_answer(found, gold, timeout=timeout, workers=workers)


def grade_answer(answer: str, gold: str, *, timeout: float = 5.0, workers: int = 2) -> Score:
    """`grade` for an answer that is already without the text around it."""
    number, expected_number = rational(answer), rational(gold)
    if number is not None and expected_number is not None:  # nine answers in ten
        return judge(number == expected_number, str(number))
    text = normal(answer)
    if text is None:
        return Score(0.0, "wrong", "", "the answer is empty, too long, too deep or broken")
    comparison, expected = Comparison(values(workers, timeout)), normal(gold) or ""
    try:
        is_right = text == expected or any(
            comparison(g, expected, c, text) for g in readings(gold) for c in readings(answer)
        )
        return judge(is_right, comparison.shown(readings(answer)[0], text))
    except WorkerLost as lost:
        return unscored(str(lost), text)
    except Undecided as why:
        return unscored(str(why), text)


@dataclass(frozen=True)
class Comparison:
    """The comparison of two forms, expression by expression."""

    values: Values

    def __call__(self, gold: Form, gold_text: str, candidate: Form, text: str) -> bool:
        """True if the candidate is right; the texts are both in normal spelling."""
        if isinstance(gold, Word) or isinstance(candidate, Word):
            return plain(gold_text) == plain(text)
        return self.same(gold, candidate)

    def same(self, gold: Form, candidate: Form) -> bool:
        """True if both have the same form and the same parts."""
        if isinstance(gold, Named | Equation) or isinstance(candidate, Named | Equation):
            return self._with_names(gold, candidate)
        match gold, candidate:
            case Bag(a), Bag(b):
                return self._in_any_order(a, b)
            case (Bag(a), _) if a:  # a set of one is its element
                return all(self.same(item, candidate) for item in a)
            case (_, Bag(b)) if b:
                return all(self.same(gold, item) for item in b)
            case Quantity(), Quantity():
                return self._quantities(gold, candidate)
            case Union(a), Union(b):
                return self._in_any_order(a, b)
            case Row(), Row():
                brackets = (gold.opening, gold.closing) == (candidate.opening, candidate.closing)
                return brackets and self._in_order(gold.items, candidate.items)
            case Grid(a), Grid(b):
                return len(a) == len(b) and all(self._in_order(x, y) for x, y in zip(a, b, strict=True))
            case (Word(), Word()) | (Digits(), Digits()):
                return gold == candidate
            case (Unknown(a), Unknown(b)):
                return a == b or self.values.agree(a, b)
        return False

    def _with_names(self, gold: Form, candidate: Form) -> bool:
        """x = 5 against 5, y = 2x + 3 against another equation of the same line, a = b = c against c."""
        match gold, candidate:
            case Named(), Named():
                return (gold.name == candidate.name and self.same(gold.item, candidate.item)) or self._equations(
                    gold, candidate
                )
            case ((Named() | Equation()), (Named() | Equation())):
                return self._equations(gold, candidate)
            case Named(_, item), _:
                return not self._has_symbols(item) and self.same(item, candidate)
            case _, Named(_, item):
                return self.same(gold, item)
            case _, Equation(sides):
                return all(self.same(gold, Quantity(side)) for side in sides)
        return False

    def _quantities(self, gold: Quantity, candidate: Quantity) -> bool:
        if gold.unit and candidate.unit and gold.unit != candidate.unit:
            return False
        if gold.latex == candidate.latex:
            return True
        a, b = self.values(gold.latex), self.values(candidate.latex)
        if same_value(a, b):
            return True
        if gold.is_percent == candidate.is_percent:
            return False
        return same_value(b, a, 100) if gold.is_percent else same_value(a, b, 100)

    def _in_order(self, gold: Sequence[Form], candidate: Sequence[Form]) -> bool:
        return len(gold) == len(candidate) and all(self.same(g, c) for g, c in zip(gold, candidate, strict=True))

    def _in_any_order(self, gold: Sequence[Form], candidate: Sequence[Form]) -> bool:
        """Equal as sets: each part of one equals a part of the other, and the other way round."""
        pairs = [(c, gold, False) for c in candidate] + [(g, candidate, True) for g in gold]
        return all(any(self.same(x, y) if is_gold else self.same(y, x) for y in others) for x, others, is_gold in pairs)

    def _equations(self, gold: Form, candidate: Form) -> bool:
        a, b = self._difference(gold), self._difference(candidate)
        return a is not None and b is not None and proportional(a, b)

    def _difference(self, form: Form) -> Value | None:
        """Left minus right side."""
        match form:
            case Named(name, Quantity(latex)):
                return self.values(f"({name})-({latex})")
            case Equation((left, right)):
                return self.values(f"({left})-({right})")
        return None

    def _has_symbols(self, form: Form) -> bool:
        return isinstance(form, Quantity) and bool(self.values(form.latex).symbols)

    def shown(self, form: Form, text: str) -> str:
        """A text that is the same for equal answers; the answer as written where it has no value."""
        try:
            return self._text(form)
        except (WorkerLost, Undecided):
            return text

    def _text(self, form: Form) -> str:
        match form:
            case Quantity(latex):
                value = self.values(latex)
                return shown_value(value) if value.is_valid and value.digits != ("?",) else latex
            case Named(name, item):
                return f"{name}={self._text(item)}" if self._has_symbols(item) else self._text(item)
            case Bag(items):
                distinct = sorted({self._text(item) for item in items})
                return distinct[0] if len(distinct) == 1 else "{" + ", ".join(distinct) + "}"
            case Union(pieces):
                return " u ".join(sorted(map(self._text, pieces)))
            case Row(opening, closing, items):
                return f"{opening}{', '.join(map(self._text, items))}{closing}"
            case Grid(rows):
                return "; ".join(", ".join(map(self._text, row)) for row in rows)
            case Equation(sides):
                return "=".join(sides)
            case Word(text) | Digits(text) | Unknown(text):
                return text
        raise AssertionError(form)
