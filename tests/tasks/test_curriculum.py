"""A curriculum by pass rate: weights of its formula, a running mean, a draw that follows the weights."""

import math
from collections import Counter

import pytest

from isentrope.errors import IsentropeError
from isentrope.tasks.curriculum import Curriculum, PassRates

RULE = Curriculum(low=0.4, high=0.6, width=0.2, floor=0.05, keep=0.75)


def test_the_weight_is_one_in_the_band_and_falls_off_outside():
    assert [RULE.weight(p) for p in (0.4, 0.5, 0.6, None)] == [1.0] * 4
    assert RULE.weight(0.2) == pytest.approx(math.exp(-0.5))  # one width below the band
    assert RULE.weight(0.8) == pytest.approx(math.exp(-0.5))
    assert RULE.weight(0.0) == pytest.approx(math.exp(-2.0))  # two widths
    assert Curriculum(low=0.5, high=0.5, width=0.1).weight(1.0) == 0.1  # the floor: exp(-12.5) is less
    assert Curriculum(low=0.5, high=0.5, width=0.0).weight(0.500001) == 0.1


def test_the_running_rate_starts_at_the_first_group_and_keeps_a_share_of_the_old():
    rates = PassRates(RULE, [0, 1])
    rates.observe(0, [1.0, 0.0, 1.0, 0.5])
    assert rates.rates == [0.5, None]
    rates.observe(0, [1.0, 1.0])
    assert rates.rates == [0.75 * 0.5 + 0.25 * 1.0, None]
    rates.observe(1, [])
    assert rates.rates[1] is None


def test_rows_of_one_problem_share_its_rate():
    rates = PassRates(Curriculum(low=0.5, high=0.5, width=0.0, floor=0.001), [0, 1, 0, 1])
    rates.observe(0, [0.0])
    rates.observe(1, [1.0, 0.0])
    drawn = Counter(row for n in range(200) for row in rates.draw([0, 1, 2, 3], 2, n))
    assert drawn[1] == drawn[3] == 200  # both rows of the problem in the band, in nearly every draw
    assert drawn[0] + drawn[2] == 0


def test_problems_are_drawn_in_proportion_to_their_weights():
    rates = PassRates(Curriculum(low=0.5, high=0.5, width=0.0, floor=0.25), [0, 1, 2])
    for problem, rewards in enumerate([[1.0, 0.0], [1.0], [0.0]]):
        rates.observe(problem, rewards)
    drawn = Counter(rates.draw([0, 1, 2], 1, n)[0] for n in range(6000))
    # weights 1, 1/4, 1/4: probabilities 2/3, 1/6, 1/6; three standard deviations are .018 and .015
    assert drawn[0] / 6000 == pytest.approx(2 / 3, abs=0.019)
    assert drawn[1] / 6000 == pytest.approx(1 / 6, abs=0.015)


def test_a_draw_is_without_replacement_until_the_rows_are_used_up():
    rates = PassRates(RULE, list(range(5)))
    assert sorted(rates.draw(range(5), 5, "x")) == [0, 1, 2, 3, 4]
    assert sorted(Counter(rates.draw(range(5), 12, "x")).values()) == [2, 2, 2, 3, 3]


def test_the_state_brings_the_same_draws_back():
    rates = PassRates(RULE, [0, 1, 2, 3])
    for problem, rewards in [(0, [1.0]), (2, [0.0, 1.0, 1.0])]:
        rates.observe(problem, rewards)
    again = PassRates(RULE, [0, 1, 2, 3])
    assert again.draw(range(4), 2, 7) != rates.draw(range(4), 2, 7) or again.rates != rates.rates
    again.load(rates.state())
    assert again.rates == rates.rates
    assert [again.draw(range(4), 2, n) for n in range(20)] == [rates.draw(range(4), 2, n) for n in range(20)]
    with pytest.raises(IsentropeError, match="the pass rates are of 4 problems, the data set has 2"):
        PassRates(RULE, [0, 1]).load(rates.state())


def test_the_figures_say_what_is_known_and_what_is_drawn():
    rates = PassRates(RULE, [0, 1, 2, 3])
    assert rates.figures([0, 1]) == {"seen": (0.0, 4), "new": (2.0, 2)}
    rates.observe(0, [1.0, 0.0])
    rates.observe(1, [1.0])
    assert rates.figures([0, 1, 2]) == {"seen": (2.0, 4), "in_band": (1.0, 2), "pass_rate": (1.5, 2), "new": (1.0, 3)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"low": 0.7, "high": 0.6}, "the band is 0.7 to 0.6"),
        ({"high": 1.5}, "the band is 0.25 to 1.5"),
        ({"width": -1.0}, "width is -1.0"),
        ({"floor": 0.0}, "floor is 0.0"),
        ({"keep": 1.0}, "keep is 1.0"),
        ({"passed": math.inf}, "passed is inf"),
    ],
)
def test_a_rule_without_sense_is_refused(fields, message):
    with pytest.raises(IsentropeError, match=message):
        Curriculum(**fields)
