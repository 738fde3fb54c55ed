"""What the tabular engine calls exact is what enumerating all completions gives."""

import math

import pytest
import torch

from isentrope import theory
from isentrope.engines import tabular_policy as policy
from isentrope.engines.tabular_policy import Rows
from isentrope.engines.tabular_problems import (
    Problems,
    completion_logp,
    draw,
    enumerate_completions,
    family,
    scaled_to,
    shares,
    world,
    written,
)
from isentrope.engines.tabular_table import Settings, check_table, settings
from isentrope.errors import IsentropeError

CHAIN = Settings(length=3, vocabulary=4)
BANDIT = Settings(length=1, vocabulary=12)
BOTH = pytest.mark.parametrize("shape", [CHAIN, BANDIT], ids=["chain", "bandit"])
TASKS = [("a", {"entropy": 0.3, "ranks": [0, 2, 5]}, 1.0), ("b", {"entropy": 0.9}, 2.0)]
TASKS[0][1]["accepted"] = [0.5, 0.5, 0.9]


def problems_of(shape: Settings) -> tuple[torch.Tensor, Problems]:
    """A policy that has learnt something, and ten problems."""
    made = world(TASKS, shape)
    learnt = torch.randn(made.prior.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return learnt, draw(made, [4, 6], seed=3)


def enumerated(learnt: torch.Tensor, problems: Problems, shape: Settings) -> tuple[torch.Tensor, torch.Tensor]:
    """All completions [N, length] and their log-probabilities for each problem [P, N]."""
    every = enumerate_completions(shape)
    return every, completion_logp(policy.tables(learnt, problems), every.expand(len(problems), -1, -1), shape.ends)


@BOTH
def test_the_probabilities_of_all_completions_sum_to_one(shape: Settings) -> None:
    _, logp = enumerated(*problems_of(shape), shape)
    torch.testing.assert_close(logp.exp().sum(1), torch.ones(10, dtype=torch.float64), rtol=1e-12, atol=0)


def test_a_chain_has_one_completion_more_for_each_way_to_go_on() -> None:
    assert len(enumerate_completions(CHAIN)) == 1 + 3 + 9 * 4  # end at once, after one symbol, or go on to the limit
    assert written(torch.tensor([[0, 0, 0], [2, 0, 0], [1, 3, 2]]), ends=True).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@BOTH
def test_entropy_over_states_is_the_entropy_of_completions(shape: Settings) -> None:
    """The chain rule: H(completion) = sum over states of visits * H(state)."""
    learnt, problems = problems_of(shape)
    _, logp = enumerated(learnt, problems, shape)
    tables = policy.tables(learnt, problems)
    reached = policy.visits(tables)
    by_states = (reached * policy.state_entropy(tables)).sum((1, 2))
    torch.testing.assert_close(by_states, -(logp.exp() * logp).sum(1), rtol=1e-12, atol=0)
    every = enumerate_completions(shape)
    lengths = (logp.exp() * written(every, shape.ends).sum(1)).sum(1)
    torch.testing.assert_close(reached.sum((1, 2)), lengths, rtol=1e-12, atol=0)
    torch.testing.assert_close(policy.entropy(tables, reached), by_states.sum() / lengths.sum(), rtol=1e-12, atol=0)


@BOTH
def test_kl_over_states_is_that_of_completions(shape: Settings) -> None:
    learnt, problems = problems_of(shape)
    _, logp = enumerated(learnt, problems, shape)
    _, start = enumerated(torch.zeros_like(learnt), problems, shape)
    tables = policy.tables(learnt, problems)
    reached = policy.visits(tables)
    found = policy.kl(tables, policy.tables(torch.zeros_like(learnt), problems), reached) * reached.sum()
    torch.testing.assert_close(found, (logp.exp() * (logp - start)).sum(), rtol=1e-12, atol=0)


def is_accepted(problems: Problems, every: torch.Tensor) -> torch.Tensor:
    """Which completions each problem accepts, [P, N], in plain loops."""
    found = torch.zeros((len(problems), len(every)), dtype=torch.float64)
    for p in range(len(problems)):
        for k in range(problems.good.shape[1]):
            if problems.accepts[p, k]:
                found[p] += (every == problems.good[p, k]).all(1).double()
    return found


@BOTH
def test_success_is_the_mass_of_accepted_completions(shape: Settings) -> None:
    learnt, problems = problems_of(shape)
    every, logp = enumerated(learnt, problems, shape)
    accepted = is_accepted(problems, every)
    assert accepted.max() == 1
    found = policy.success(policy.tables(learnt, problems), problems)
    torch.testing.assert_close(found, (accepted * logp.exp()).sum(1), rtol=1e-12, atol=0)


@BOTH
def test_the_exact_gradient_is_the_expected_policy_gradient(shape: Settings) -> None:
    """d/dz sum p R = sum p R dlog p/dz, summed over every completion."""
    learnt, problems = problems_of(shape)
    learnt.requires_grad_()
    every, logp = enumerated(learnt, problems, shape)
    accepted = is_accepted(problems, every)
    (by_rows,) = torch.autograd.grad((logp.detach().exp() * accepted * logp).sum(1).mean(), learnt)
    (exact,) = torch.autograd.grad(policy.expected_reward(learnt, problems), learnt)
    torch.testing.assert_close(exact, by_rows, rtol=1e-10, atol=1e-15)
    assert exact.abs().max() > 1e-4


@BOTH
def test_the_critic_is_the_chance_of_success_from_here(shape: Settings) -> None:
    learnt, problems = problems_of(shape)
    every, logp = enumerated(learnt, problems, shape)
    accepted = is_accepted(problems, every)
    one = torch.full((len(every),), 2)
    rows = Rows(one, every, written(every, shape.ends))
    found = policy.value(learnt, problems, rows, 1.0)
    for n, completion in enumerate(every.tolist()):
        for t in range(int(rows.mask[n].sum())):
            same = (every[:, :t] == torch.tensor(completion[:t])).all(1)
            same &= written(every, shape.ends)[:, t]
            chance = float((logp[2].exp() * accepted[2])[same].sum() / logp[2].exp()[same].sum())
            assert float(found[n, t]) == pytest.approx(chance, abs=1e-12)


@BOTH
def test_samples_follow_the_probabilities(shape: Settings) -> None:
    learnt, problems = problems_of(shape)
    every, logp = enumerated(learnt, problems, shape)
    num = 20_000
    rows = policy.sample(
        learnt, problems, torch.full((num,), 5), torch.ones(num, dtype=torch.float64), torch.Generator().manual_seed(0)
    )
    counts = torch.stack([(rows.symbols == one).all(1).double().sum() for one in every])
    assert counts.sum() == num  # nothing else was drawn
    p = logp[5].exp()
    spread = (p * (1 - p) / num).sqrt()
    assert ((counts / num - p).abs() <= 4.5 * spread + 1e-3).all()
    again = policy.states(learnt, problems, rows, 1.0)
    summed = torch.where(rows.mask, policy.chosen(again, rows.symbols), 0.0).sum(1)
    index = (rows.symbols[:50, None] == every).all(-1).long().argmax(1)
    torch.testing.assert_close(summed[:50], logp[5][index], rtol=1e-12, atol=0)


def test_a_higher_temperature_flattens_samples_and_tables() -> None:
    learnt, problems = problems_of(BANDIT)
    cold, hot = (float(policy.policy_entropy(learnt, problems, t)) for t in (0.5, 2.0))
    assert cold < float(policy.policy_entropy(learnt, problems)) < hot


@BOTH
def test_expected_numbers_of_different_answers(shape: Settings) -> None:
    learnt, problems = problems_of(shape)
    every, logp = enumerated(learnt, problems, shape)
    answers, right = policy.distinct(policy.tables(learnt, problems), problems, shape, samples=1)
    assert answers == pytest.approx(1.0)  # one sample is one answer
    assert right == pytest.approx(float((is_accepted(problems, every) * logp.exp()).sum(1).mean()))
    more, _ = policy.distinct(policy.tables(learnt, problems), problems, shape, samples=8)
    assert 1 < more < 8


def test_squared_mass_is_the_theorys() -> None:
    z = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = policy.squared_mass(torch.log_softmax(z, -1))
    torch.testing.assert_close(found, theory.squared_mass(z), rtol=1e-12, atol=1e-15)


def test_rounding_to_bf16_keeps_the_gradient() -> None:
    x = torch.tensor([-3.001], dtype=torch.float64, requires_grad=True)
    found = policy.rounded(x, "bf16")
    (0.1 * found).sum().backward()
    assert found.item() == -3.0  # the spacing there is 2^-6
    assert x.grad is not None
    assert x.grad.item() == 0.1  # not rounded


# -- problems ---------------------------------------------------------------------------------------


def test_every_state_starts_at_the_familys_entropy() -> None:
    made = world(TASKS, CHAIN)
    found = theory.entropy(made.prior) / math.log(4)
    torch.testing.assert_close(found[0], torch.full((3, 4), 0.3, dtype=torch.float64), rtol=1e-9, atol=0)
    torch.testing.assert_close(found[1], torch.full((3, 4), 0.9, dtype=torch.float64), rtol=1e-9, atol=0)
    nearly = theory.entropy(scaled_to(torch.randn(32, dtype=torch.float64), 0.01)) / math.log(32)
    assert float(nearly) == pytest.approx(0.01, rel=1e-6)


def test_good_completions_have_the_ranks_that_were_asked_for() -> None:
    made = world(TASKS, CHAIN)
    every = enumerate_completions(CHAIN)
    logp = completion_logp(theory.log_probabilities(made.prior[0]), every, ends=True)
    for rank, good in zip((0, 2, 5), made.good[0], strict=True):
        own = completion_logp(theory.log_probabilities(made.prior[0]), good[None], ends=True)
        assert int((logp > own).sum()) == rank


def test_problems_are_drawn_by_seed_and_accept_something() -> None:
    made = world(TASKS, BANDIT)
    first, again, other = (draw(made, [50, 50], seed) for seed in (0, 0, 1))
    assert torch.equal(first.logits, again.logits)
    assert torch.equal(first.accepts, again.accepts)
    assert not torch.equal(first.logits, other.logits)
    assert first.accepts.any(1).all()
    assert not first.accepts[:50, 3].any()  # task a has three good completions
    share = draw(made, [4000, 0], 2).accepts.double().mean(0)
    assert float(share[2]) == pytest.approx(0.9, abs=0.03)


def test_families_of_one_table_start_alike_and_share_it() -> None:
    shared = [
        (n, {"entropy": 0.5, "table": "t", "ranks": [r], "accepted": [1.0]}, 1.0) for n, r in (("a", 0), ("b", 3))
    ]
    made = world(shared, BANDIT)
    assert made.prior.shape[0] == 1
    assert made.tables.tolist() == [0, 0]
    shared[1][1]["entropy"] = 0.6
    with pytest.raises(IsentropeError, match="one table starts at one entropy"):
        world(shared, BANDIT)


def test_shares_are_whole_and_proportional() -> None:
    assert shares(7, [2.0, 1.0, 1.0]) == [3, 2, 2]
    assert sum(shares(101, [0.3, 0.3, 0.4])) == 101


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "has no texts, its tasks are families of problems: give it options.entropy"),
        ({"entropy": 1.0}, r"entropy must be a share of log\(vocabulary\) in \(0, 1\); found 1.0"),
        ({"entropy": 0.5, "rank": [1]}, "has no 'rank'; did you mean 'ranks'"),
        ({"entropy": 0.5, "ranks": [1, 1]}, "different whole numbers"),
        ({"entropy": 0.5, "accepted": [0.5]}, "accepted must be 4 numbers"),
        ({"entropy": 0.5, "spread": -1.0}, "spread must be at least 0"),
    ],
)
def test_a_family_that_cannot_be_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(IsentropeError, match=sentence):
        family("mine", options)


def test_a_rank_beyond_the_completions_is_refused() -> None:
    with pytest.raises(IsentropeError, match="rank 10 is not below the 3 completions"):
        world([("a", {"entropy": 0.5}, 1.0)], Settings(vocabulary=3))


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"lenght": 2}, "has no key 'lenght'; did you mean 'length'"),
        ({"length": 0}, "length must be a whole number, at least 1; found 0"),
        ({"length": True}, "length must be a whole number"),
        ({"vocabulary": 1}, "at least 2"),
        ({"precision": "fp8"}, "precision must be one of fp32, bf16, fp16; found 'fp8'"),
        ({"optimizer": "lion"}, "optimizer must be one of adam, sgd"),
        ({"length": 6, "vocabulary": 32}, r"at most 65536, so that completions can be enumerated; found 32 \*\* 6"),
    ],
)
def test_a_table_that_cannot_be_is_refused(table: dict[str, object], sentence: str) -> None:
    with pytest.raises(IsentropeError, match=sentence):
        check_table(table, "recipe mine")
    assert settings({}).precision == "fp32"
