"""The order of a mix: every batch keeps the weights as nearly as integers allow, and depends on its number alone."""

from collections import Counter
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isentrope.errors import IsentropeError
from isentrope.tasks.mix import Batches, Order, Stretch, quotas

TASKS = ["a"] * 12 + ["b"] * 6 + ["c"] * 3


def rows_of(batches, numbers):
    return [batches(number) for number in numbers]


def test_a_batch_holds_the_share_of_a_task_rounded_down_or_up():
    # 8 prompts of shares 12:6:3 of 21: 4.571, 2.286, 1.143
    batches = Batches(TASKS, prompts=8, seed=0)
    counts = [Counter(TASKS[row] for row in batches(number)) for number in range(50)]
    assert {c["a"] for c in counts} == {4, 5}
    assert {c["b"] for c in counts} == {2, 3}
    assert {c["c"] for c in counts} == {1, 2}
    assert all(sum(c.values()) == 8 for c in counts)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 40))
def test_no_task_falls_behind_its_weight_by_more_than_a_few_prompts(weights, prompts):
    exact = [prompts * weight / sum(weights) for weight in weights]
    given_so_far = [0] * len(weights)
    for number, counts in enumerate(islice(quotas(weights, prompts), 60), start=1):
        assert sum(counts) == prompts
        assert all(x - 1 - 1e-6 < n < x + 1 + 1e-6 for n, x in zip(counts, exact, strict=True))
        given_so_far = [n + k for n, k in zip(given_so_far, counts, strict=True)]
        assert all(abs(n - number * x) < 3 for n, x in zip(given_so_far, exact, strict=True))


def test_equal_weights_take_turns():
    assert list(islice(quotas([1, 1, 1], 1), 6)) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]] * 2
    assert list(islice(quotas([0.1, 0.2, 0.7], 10), 3)) == [[1, 2, 7]] * 3


def test_weights_take_the_place_of_the_data_sets_shares():
    batches = Batches(TASKS, prompts=8, seed=0, weights={"a": 1, "b": 1, "c": 2})
    assert batches.counts(0) == batches.counts(9) == {"a": 2, "b": 2, "c": 4}
    assert Counter(TASKS[row] for row in batches(3)) == {"a": 2, "b": 2, "c": 4}


def test_every_pass_goes_through_all_rows_of_a_task_once_in_a_new_order():
    batches = Batches(["a"] * 6, prompts=2, seed=0)
    passes = [[frozenset(batches(3 * number + i)) for i in range(3)] for number in range(8)]
    assert all(frozenset().union(*three) == set(range(6)) for three in passes)
    assert len({frozenset(three) for three in passes}) > 1, "every pass makes the same pairs"
    odd = Batches(["a"] * 6, prompts=4, seed=0)  # two passes in three batches
    assert Counter(row for number in range(3) for row in odd(number)) == dict.fromkeys(range(6), 2)


def test_a_task_with_fewer_rows_than_its_share_repeats_them():
    batches = Batches(["a", "a", "b"], prompts=8, seed=0, weights={"a": 1, "b": 3})
    assert Counter(batches(0)) == {0: 1, 1: 1, 2: 6}


@pytest.mark.parametrize("start", [1, 5, 17])
def test_the_rows_of_a_batch_depend_on_seed_and_number_alone(start):
    whole = rows_of(Batches(TASKS, prompts=5, seed=3), range(24))
    assert rows_of(Batches(TASKS, prompts=5, seed=3), range(start, 24)) == whole[start:]
    backwards = rows_of(Batches(TASKS, prompts=5, seed=3), range(23, -1, -1))
    assert backwards[::-1] == whole
    assert rows_of(Batches(TASKS, prompts=5, seed=4), range(24)) != whole


def test_a_batch_is_not_sorted_by_task():
    batches = Batches(TASKS, prompts=8, seed=0)
    first = Counter(TASKS[batches(number)[0]] for number in range(60))
    assert set(first) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Order(weights={"a": 0.0}), "gives task a the weight 0.0; it must be above 0"),
        (lambda: Order(weights={"a": float("nan")}), "gives task a the weight nan"),
        (lambda: Batches(["a", "b"], 2, 0, {"a": 1.0}), "the weights name a, the rows are of a, b"),
        (lambda: Batches(["a"], 0, 0), "a batch of 0 prompts from 1 rows"),
        (lambda: Batches([], 2, 0), "a batch of 2 prompts from 0 rows"),
    ],
)
def test_what_cannot_be_ordered_is_refused(make, message):
    with pytest.raises(IsentropeError, match=message):
        make()


# -- stages -----------------------------------------------------------------------------------------

STAGES = (Stretch(("a",), 3), Stretch(("c", "b"), 2), Stretch(("a",), 1))


def staged(seed=0, stages=STAGES, **more):
    return Batches(TASKS, prompts=6, seed=seed, stages=stages, **more)


def test_a_batch_of_a_stage_holds_its_tasks_alone_and_the_last_stage_goes_on():
    batches = staged()
    tasks = [{TASKS[row] for row in batches(number)} for number in range(9)]
    assert tasks == [{"a"}] * 3 + [{"b", "c"}] * 2 + [{"a"}] * 4
    assert [batches.stage(number) for number in range(9)] == [1, 1, 1, 2, 2, 3, 3, 3, 3]
    assert Batches(TASKS, prompts=6, seed=0).stage(5) == 0


def test_the_tasks_of_a_stage_keep_their_weights_among_themselves():
    # 6 prompts of b and c: 4 and 2 by the data's shares 6:3, 1 and 5 by weights 1:5, whatever a has
    assert staged().counts(3) == staged().counts(4) == {"a": 0, "b": 4, "c": 2}
    assert staged(weights={"a": 9, "b": 1, "c": 5}).counts(4) == {"a": 0, "b": 1, "c": 5}


def test_a_task_that_comes_again_goes_on_through_its_problems():
    batches = staged(stages=(Stretch(("a",), 1), Stretch(("b",), 1), Stretch(("a",), 1)))
    first, _, third = rows_of(batches, range(3))
    assert sorted(first + third) == list(range(12))  # 12 rows of a, 6 of them in each batch


def test_the_rows_of_a_staged_batch_depend_on_seed_and_number_alone():
    whole = rows_of(staged(3), range(9))
    assert rows_of(staged(3), range(8, -1, -1))[::-1] == whole
    assert rows_of(staged(3), range(4, 9)) == whole[4:]
    assert rows_of(staged(4), range(9)) != whole


def test_the_rows_that_a_batch_may_draw_from_are_those_of_its_stage():
    assert staged().allowed(0) == staged().allowed(7) == list(range(12))
    assert staged().allowed(3) == list(range(12, 21))
    assert staged(stages=()).allowed(3) == list(range(21))


def test_stages_without_sense_are_refused():
    with pytest.raises(IsentropeError, match="a stage draws from task d, the rows are of a, b, c"):
        staged(stages=(Stretch(("d",), 1),))
    with pytest.raises(IsentropeError, match="each once"):
        Stretch(("a", "a"), 1)
    with pytest.raises(IsentropeError, match="name one task or more"):
        Stretch((), 1)
    with pytest.raises(IsentropeError, match=r"Stretch.batches is 0"):
        Stretch(("a",), 0)
