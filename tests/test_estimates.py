"""Estimators against enumeration and against textbook values."""

import itertools
import math

import pytest

from isentrope.estimates import (
    avg_at_k,
    bootstrap_interval,
    half_width,
    majority_vote,
    paired_interval,
    pass_at_k,
    ratio,
    ratio_interval,
)


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
        assert pass_at_k(n, c, k) == sum(map(any, subsets)) / len(subsets)


def test_pass_at_k_is_exact_for_thousands_of_samples():
    assert pass_at_k(10_000, 1, 1) == 1e-4
    assert pass_at_k(10_000, 1, 5_000) == 0.5
    assert pass_at_k(10_000, 9_999, 1) == 0.9999
    assert pass_at_k(4_000, 2_000, 2_000) == 1.0  # nearest float: the rest is below 1e-1000


def test_pass_at_k_grows_with_k_and_with_right_samples():
    for c in range(9):
        row = [pass_at_k(8, c, k) for k in range(1, 9)]
        assert row == sorted(row)
        assert row[0] == c / 8
        assert row[-1] == float(c > 0)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 5), (4, 2, 0), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_counts(n, c, k):
    with pytest.raises(ValueError, match="must be between"):
        pass_at_k(n, c, k)


def test_avg_at_k_averages_the_first_k_of_each_problem():
    assert avg_at_k([[1, 0, 1], [0, 0, 1]], 3) == 0.5
    assert avg_at_k([[0.5, 9.0], [0.0]], 1) == 0.25
    for rewards, k in ([], 1), ([[1.0], []], 1), ([[1.0]], 2), ([[1.0]], 0):
        with pytest.raises(ValueError, match="avg_at_k"):
            avg_at_k(rewards, k)


def test_the_bootstrap_interval_is_seeded_and_covers_the_mean():
    values = [i / 200 for i in range(60)] + [1.0] * 40
    low, high = bootstrap_interval(values, seed=3)
    assert (low, high) == bootstrap_interval(values, seed=3)
    assert (low, high) != bootstrap_interval(values, seed=4)
    # mean 0.4885, population std 0.423, so the normal interval is 0.4885 -/+ 1.96 * 0.0423
    assert low == pytest.approx(0.4056, abs=0.01)
    assert high == pytest.approx(0.5714, abs=0.01)
    narrow = bootstrap_interval(values, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_the_bootstrap_interval_of_equal_values_has_no_width():
    assert bootstrap_interval([0.25] * 10) == (0.25, 0.25)
    assert bootstrap_interval([1.0]) == (1.0, 1.0)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0], 0.0), ([1.0], 1.0)])
def test_the_bootstrap_interval_refuses_what_has_no_answer(values, level):
    with pytest.raises(ValueError, match="bootstrap_interval"):
        bootstrap_interval(values, level=level)


ANSWERS = ("a", "b", "c", "")


@pytest.mark.parametrize("length", range(6))
def test_the_vote_is_the_share_of_right_answers_among_the_most_frequent(length):
    for answers in itertools.product(ANSWERS, repeat=length):
        for right in itertools.combinations(("a", "b", "c"), 1):
            counts = {answer: answers.count(answer) for answer in set(answers) - {""}}
            tied = [answer for answer, count in counts.items() if count == max(counts.values())]
            expected = sum(answer in right for answer in tied) / len(tied) if tied else 0.0
            assert majority_vote(answers, [answer in right for answer in answers]) == expected


def test_an_answer_judged_both_ways_counts_with_its_mean():
    assert majority_vote(["a", "a", "b"], [True, False, False]) == 0.5


def test_the_interval_of_a_ratio_resamples_whole_problems():
    # one problem with many tokens of entropy 1, three with few of entropy 0: the ratio is 0 without the first
    low, high = ratio_interval([(90.0, 90.0), (0.0, 10.0), (0.0, 10.0), (0.0, 10.0)])
    assert low == 0.0
    assert 0.9 < high <= 1.0
    assert ratio([(90.0, 90.0), (0.0, 10.0), (0.0, 10.0), (0.0, 10.0)]) == 0.75


def test_problems_that_do_not_count_leave_the_figure_alone():
    counted = [(1.0, 1.0), (0.0, 1.0)]
    assert ratio([*counted, (0.0, 0.0)]) == 0.5
    assert math.isnan(ratio([(0.0, 0.0)]))
    assert all(map(math.isnan, ratio_interval([(0.0, 0.0)] * 3)))
    low, high = ratio_interval([*counted * 10, *[(0.0, 0.0)] * 20])
    assert 0 < low < 0.5 < high < 1


def test_a_paired_difference_is_surer_than_two_separate_scores():
    easy_and_hard = [(float(i % 2), 1.0) for i in range(40)]
    better = [(min(1.0, value + 0.1), 1.0) for value, _ in easy_and_hard]  # helps every hard problem a little
    low, high = paired_interval(easy_and_hard, better)
    alone = ratio_interval(easy_and_hard)
    assert low > 0  # clear, although the separate intervals overlap by far
    assert high - low < (alone[1] - alone[0]) / 4
    assert paired_interval(easy_and_hard, easy_and_hard) == (0.0, 0.0)
    assert paired_interval(better, easy_and_hard) == pytest.approx((-high, -low))


def test_problems_that_are_not_paired_are_refused():
    with pytest.raises(ValueError, match="2 and 1 problems"):
        paired_interval([(1.0, 1.0)] * 2, [(1.0, 1.0)])


def test_the_half_width_is_wilsons():
    # Wilson: (p + z^2/2n -/+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n) with z = 1.959964; n = 30, p = .2
    n, p, z = 30, 0.2, 1.959963984540054
    roots = [(p + z * z / (2 * n) + s * z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))) for s in (-1, 1)]
    low, high = (root / (1 + z * z / n) for root in roots)
    assert half_width(0.2, 30) == pytest.approx((high - low) / 2, rel=1e-12)
    assert half_width(0.0, 30) == half_width(1.0, 30) == pytest.approx(0.0568, abs=1e-4)
    assert half_width(0.5, 30) > half_width(0.5, 40) > half_width(0.5, 500) == pytest.approx(0.0437, abs=1e-4)


@pytest.mark.parametrize(("share", "problems"), [(-0.1, 30), (1.1, 30), (0.5, 0)])
def test_a_half_width_of_nothing_is_refused(share, problems):
    with pytest.raises(ValueError, match="half_width"):
        half_width(share, problems)
