"""Surrogates: the printed gradients, which sides are clipped, and what stays finite."""

import math
from dataclasses import replace

import pytest
import torch

from isentrope import check, presets
from isentrope.surrogate import (
    ClipCov,
    ClippedWeight,
    EntropyRatioClip,
    GeometricClip,
    GradientPreservingClip,
    ImportanceWeighted,
    KLCov,
    PolicyGradient,
    PPOClip,
    ReinforceTempered,
    SoftGate,
    covariance,
)

KEPT = GradientPreservingClip(low=0.2, high=0.2, keep_low=0.5, keep_high=1.0)
CISPO = ClippedWeight(low=0.2, high=0.2)
SIMPLE = [
    PolicyGradient(),
    ImportanceWeighted(),
    PPOClip(),
    PPOClip(dual=3.0),
    KEPT,
    CISPO,
    ClippedWeight(),
    SoftGate(),
]


def slope(rule, log_ratio, advantage, **columns):
    """dJ/dlogp of one token with the given log-ratio; logp is -2."""
    logp = torch.tensor([[-2.0]], dtype=torch.float64, requires_grad=True)
    given = {"logp": logp, "mask": torch.ones(1, 1, dtype=torch.bool)} | columns
    wanted = {n: x for n, x in given.items() if n in rule.__call__.__code__.co_varnames}
    ratio = logp - (-2.0 - log_ratio)
    objective = rule(ratio, torch.tensor([[advantage]], dtype=torch.float64), **wanted)
    (gradient,) = torch.autograd.grad(objective.sum(), logp, allow_unused=True, materialize_grads=True)
    return gradient.item()


PRINTED = [
    # r, A: gradient-preserving (keep .5, 1), PPO, CISPO (.2 on both sides)
    (0.5, -1, -0.4, 0, -0.8),
    (1.5, 1, 1.2, 0, 1.2),
    (1.5, -1, -1.5, -1.5, -1.2),
    (0.5, 1, 0.5, 0.5, 0.8),
    (1.0, 1, 1, 1, 1),
    (1.0, -1, -1, -1, -1),
]


@pytest.mark.parametrize(("r", "advantage", "kept", "ppo", "cispo"), PRINTED)
def test_gradients_are_the_printed_ones(r, advantage, kept, ppo, cispo):
    assert slope(KEPT, math.log(r), advantage) == pytest.approx(kept, rel=1e-12)
    assert slope(PPOClip(), math.log(r), advantage) == pytest.approx(ppo, rel=1e-12)
    assert slope(CISPO, math.log(r), advantage) == pytest.approx(cispo, rel=1e-12)


@pytest.mark.parametrize(("r", "positive", "negative"), [(1.5, 1.41002, -1.40121), (0.5, 0.47001, -0.46707)])
def test_the_soft_gates_gradients_are_the_printed_ones(r, positive, negative):
    assert slope(SoftGate(), math.log(r), 1) == pytest.approx(positive, abs=1e-5)
    assert slope(SoftGate(), math.log(r), -1) == pytest.approx(negative, abs=1e-5)


@pytest.mark.parametrize(("advantage", "expected"), [(1.0, 0.967216), (-1.0, -1.105171)])
def test_the_geometric_mean_is_the_printed_one(advantage, expected):
    log_ratio = torch.tensor([[0.6, -0.6, 0.1, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False]])
    found = GeometricClip()(log_ratio, torch.full_like(log_ratio, advantage), mask=mask)
    assert found[mask].tolist() == pytest.approx([expected] * 3, abs=1e-6)


def test_values_are_the_formulas():
    a, r = torch.tensor([[2.0, -2.0, 2.0, -2.0]]).double(), torch.tensor([[0.5, 0.5, 1.5, 1.5]]).double()
    logp = torch.full_like(a, -3.0)
    for rule, expected in [
        (PolicyGradient(), [-6, 6, -6, 6]),
        (ImportanceWeighted(), [1, -1, 3, -3]),
        (PPOClip(), [1, -1.6, 2.4, -3]),
        (PPOClip(0.2, 0.28), [1, -1.6, 2.56, -3]),
        (PPOClip(dual=1.2), [1, -1.6, 2.4, -2.4]),
        (KEPT, [1, -0.8, 2.4, -3]),
        (CISPO, [-4.8, 4.8, -7.2, 7.2]),
        (ClippedWeight(), [-3, 3, -7.2, 7.2]),
    ]:
        given = {"logp": logp} if isinstance(rule, PolicyGradient | ClippedWeight) else {}
        assert rule(r.log(), a, **given).flatten().tolist() == pytest.approx(expected, rel=1e-12), rule


def test_an_absolute_cap_is_high_plus_one():
    assert slope(ClippedWeight(high=5.0 - 1), math.log(7.0), 1.0) == pytest.approx(5.0)


def test_the_dual_clip_caps_bad_rows_alone():
    assert slope(PPOClip(dual=3.0), math.log(4.0), -1) == 0
    assert slope(PPOClip(dual=3.0), math.log(2.9), -1) == pytest.approx(-2.9)
    assert slope(PPOClip(dual=3.0), math.log(1.1), 1) == pytest.approx(1.1)


@pytest.mark.parametrize("rule", [PPOClip(0.0, 0.0), GradientPreservingClip(0.0, 0.0, 0.0, 0.0)], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_ratio_on_its_bound_is_not_clipped(rule, sign):
    """Ratio 1 and bound 1 are exact."""
    one = torch.full((1, 1), sign, dtype=torch.float64)
    assert not any(side.any() for side in rule.clipped(torch.zeros_like(one), one))
    assert any(side.any() for side in rule.clipped(one * 1e-9, one))
    assert slope(rule, 0.0, sign) == sign
    assert slope(rule, sign * 1e-9, sign) == 0


@pytest.mark.parametrize("rule", [PPOClip(), KEPT, ClipCov(), EntropyRatioClip(), ReinforceTempered()], ids=str)
def test_sides_are_low_ratios_of_bad_rows_and_high_ratios_of_good_ones(rule):
    log_ratio = torch.tensor([[-1.0, -1.0, 0.0, 0.0, 1.0, 1.0]])
    advantage = torch.tensor([[1.0, -1.0, 1.0, -1.0, 1.0, -1.0]])
    low, high = rule.clipped(log_ratio, advantage)
    assert low.tolist() == [[False, True, False, False, False, False]]
    assert high.tolist() == [[False, False, False, False, True, False]]


def test_a_capped_weight_acts_on_either_sign():
    low, high = CISPO.clipped(torch.tensor([[-1.0, 1.0, 1.0, 1.0]]), torch.tensor([[1.0, 1.0, -1.0, 0.0]]))
    assert low.tolist() == [[True, False, False, False]]
    assert high.tolist() == [[False, True, True, False]]
    assert not ClippedWeight(low=None, high=None).clipped(torch.tensor([[-9.0, 9.0]]), torch.ones(1, 2))[1].any()


def test_geometric_sides_are_those_of_its_minimum():
    low, high = GeometricClip().clipped(torch.tensor([[-1.0, -1.0, 1.0, 1.0]]), torch.tensor([[1.0, -1.0, 1.0, -1.0]]))
    assert low.tolist() == [[False, True, False, False]]
    assert high.tolist() == [[False, False, True, False]]


@pytest.mark.parametrize("rule", [*SIMPLE, GeometricClip()], ids=str)
@pytest.mark.parametrize("log_ratio", [-300.0, -100.0, 100.0, 300.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_hundreds_of_nats_stay_finite_in_float32(rule, log_ratio, advantage):
    """verl 6478: Clip-Cov, KL-Cov and GMPO had no bound on the log-ratio."""
    logp = torch.tensor([[-301.0 if log_ratio < 0 else -1.0]], requires_grad=True)
    columns = {"logp": logp, "mask": torch.ones(1, 1, dtype=torch.bool)}
    wanted = {n: x for n, x in columns.items() if n in rule.__call__.__code__.co_varnames}
    objective = rule(logp - (logp.detach() - log_ratio), torch.tensor([[advantage]]), **wanted)
    (gradient,) = torch.autograd.grad(objective.sum(), logp)
    assert torch.isfinite(objective).all()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("preset", ["clip_cov", "kl_cov", "gmpo"])
def test_covariance_rules_stay_finite_at_a_hundred_nats(preset):
    """verl 6478, through the whole objective."""
    objective = getattr(presets, preset)
    batch = check.draw(seed=3)
    far = {n: x.float() if x.is_floating_point() else x for n, x in batch.items()}
    far["logp"] = torch.where(torch.rand_like(far["logp"]) < 0.5, far["logp"] - 100, far["logp"])
    prepared, _ = objective.prepare(far)
    totals = objective.count(prepared)
    assert torch.isfinite(objective.loss(prepared, totals))
    assert torch.isfinite(objective.weights(prepared, totals)).all()


def test_a_kept_gradient_survives_a_ratio_that_underflows():
    """CE-GPPO's reference code takes r / sg(r), which is 0 / 0 at -300 nats in float32."""
    logp = torch.tensor([[-301.0]], requires_grad=True)
    objective = KEPT(logp - torch.tensor([[-1.0]]), torch.tensor([[-1.0]]))
    (gradient,) = torch.autograd.grad(objective.sum(), logp)
    assert objective.item() == pytest.approx(-0.4)
    assert gradient.item() == pytest.approx(-0.4)


def test_the_ratio_has_no_gradient_beyond_twenty_nats():
    for log_ratio, gradient in ((19.9, -math.exp(19.9)), (20.1, 0.0)):
        assert slope(PPOClip(), log_ratio, -1) == pytest.approx(gradient)
    assert slope(ImportanceWeighted(), -20.1, 1) == 0
    assert slope(KEPT, 25.0, 1) == pytest.approx(1.2)  # u is not bounded


# -- covariance ---------------------------------------------------------------------------------------


def test_covariance_is_each_tokens_share():
    logp = torch.tensor([[-1.0, -3.0, 50.0]])
    advantage = torch.tensor([[1.0, -1.0, 50.0]])
    mask = torch.tensor([[True, True, False]])
    assert covariance(logp, advantage, mask)[mask].tolist() == [1.0, 1.0]


def prepared_for(rule, seed=3, **shape):
    objective = replace(presets.clip_cov, surrogate=rule)
    prepared, _ = objective.prepare(check.draw(seed, **shape))
    return objective, prepared


@pytest.mark.parametrize(("ratio", "expected"), [(2e-4, 1), (0.1, 0), (0.5, 0)])
def test_clip_cov_draws_its_share_of_all_tokens_from_the_eligible_ones(ratio, expected):
    rule = ClipCov(cov_low=0.0, cov_high=2.0, ratio=ratio)
    objective, rows = prepared_for(rule, rows=30, tokens=10)
    eligible = rule.eligible(covariance(rows["old_logp"], rows["advantage"], rows["mask"]), rows["mask"])
    drawn = rows["surrogate/drawn"]
    total = int(rows["mask"].sum())
    assert int(drawn.sum()) == min(int(eligible.sum()), max(1, int(ratio * total)))
    assert not (drawn & ~eligible).any()
    assert expected in (0, int(drawn.sum()))
    weights = objective.weights(rows, objective.count(rows))
    assert not weights[drawn].any()
    assert objective.count(rows).tokens == total  # what is drawn stays in the denominator


def test_clip_cov_draws_by_its_seed():
    drawn = [
        prepared_for(ClipCov(cov_low=0.0, ratio=0.1, seed=seed), rows=30, tokens=10)[1]["surrogate/drawn"]
        for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_clip_cov_does_not_draw_what_the_clip_has_dropped_in_the_micro_batch():
    rule = ClipCov(cov_low=-9.0, cov_high=9.0, ratio=1.0, scope="micro_batch")
    objective, rows = prepared_for(rule)
    assert "surrogate/drawn" not in rows
    assert not objective.weights(rows, objective.count(rows)).any()
    base = replace(presets.clip_cov, surrogate=PPOClip())
    low, high = rule.clipped(rows["logp"] - rows["old_logp"], rows["advantage"])
    kept = (low | high) & rows["mask"]
    assert kept.any()
    # a clipped token keeps PPO's value, a drawn one has none
    expected = -sum((1.2 if h else 0.8) * float(a) for h, a in zip(high[kept], rows["advantage"][kept], strict=True))
    totals = base.count(rows)
    assert float(objective.loss(rows, totals)) == pytest.approx(expected / totals.tokens)


def test_clip_cov_bounds_see_advantages_that_no_count_has_divided():
    """SkyRL 0.4: advantages arrive divided by the token count, so that no covariance reaches 1.

    Here the aggregation's weight comes after the surrogate: the same tokens are drawn under any of them.
    """
    rule = ClipCov(ratio=0.2)
    batch = check.draw(seed=4, rows=40, tokens=8)
    drawn = []
    for base in (presets.clip_cov, presets.grpo, replace(presets.dr_grpo, advantage=presets.grpo.advantage)):
        rows, _ = replace(base, surrogate=rule).prepare(batch)
        drawn.append(rows["surrogate/drawn"])
    assert drawn[0].sum() > 5
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize(("k", "tokens"), [(0.0, 1), (2e-3, 1), (0.25, 10), (1.0, 40)])
def test_kl_cov_penalises_its_share_of_the_highest_covariances(k, tokens):
    batch = check.draw(seed=3, rows=8, tokens=5) | {"mask": torch.ones(8, 5, dtype=torch.bool)}
    rows, _ = replace(presets.kl_cov, surrogate=KLCov(k=k)).prepare(batch)
    chosen = rows["surrogate/penalised"]
    assert int(chosen.sum()) == tokens
    cov = covariance(rows["old_logp"], rows["advantage"], rows["mask"])
    assert k == 1 or cov[chosen].min() > cov[~chosen].max()


def test_kl_covs_term_pulls_towards_the_old_policy():
    batch = check.draw(seed=3)
    plain, full = (replace(presets.kl_cov, surrogate=KLCov(k=1.0, coef=c)) for c in (0.0, 0.5))
    rows, _ = full.prepare(batch)
    totals = full.count(rows)
    pull = full.weights(rows, totals) - plain.weights(rows, totals)
    expected = -0.5 * torch.sign(rows["logp"] - rows["old_logp"]) / totals.tokens
    torch.testing.assert_close(pull[rows["mask"]], expected[rows["mask"]], rtol=1e-9, atol=1e-12)


def test_equal_advantages_have_no_covariance():
    advantage = torch.full((1, 7), 1 / 3)
    logp, mask = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)), torch.ones(1, 7, dtype=torch.bool)
    assert not covariance(logp, advantage, mask).any()


def test_equal_covariances_are_chosen_from_without_regard_to_order():
    batch = check.draw(seed=3, rewards="equal")
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    objective = replace(presets.kl_cov, surrogate=KLCov(k=0.2))
    a, _ = objective.prepare(batch)
    b, _ = objective.prepare({n: x[order] for n, x in batch.items()})
    assert a["surrogate/penalised"].any()
    assert torch.equal(a["surrogate/penalised"][order], b["surrogate/penalised"])


# -- wrappers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entropy", "old_entropy", "passes"),
    [(1.0, 1.0, True), (1.04, 1.0, True), (1.06, 1.0, False), (0.94, 1.0, False), (0.0, 0.0, True), (1e-9, 0.0, False)],
)
def test_the_entropy_ratio_cuts_the_gradient_and_keeps_the_value(entropy, old_entropy, passes):
    rule = EntropyRatioClip(ImportanceWeighted())
    columns = {
        n: torch.tensor([[x]], dtype=torch.float64) for n, x in (("entropy", entropy), ("old_entropy", old_entropy))
    }
    logp = torch.tensor([[-1.0]], dtype=torch.float64, requires_grad=True)
    objective = rule(logp + 1.5, torch.ones(1, 1, dtype=torch.float64), **columns)
    assert objective.item() == pytest.approx(math.exp(0.5))
    assert objective.requires_grad
    (gradient,) = torch.autograd.grad(objective.sum(), logp)
    assert (gradient.item() != 0) == passes


def test_the_entropy_band_is_open():
    rule = EntropyRatioClip(ImportanceWeighted(), low=0.5, high=2.0)
    old = torch.tensor([[1.0 - 1e-8]], dtype=torch.float64)
    entropy = torch.tensor([[2.0 - 1e-8, 0.5 - 1e-8]], dtype=torch.float64)
    log_ratio = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    objective = rule(log_ratio, torch.ones(1, 2), entropy=entropy, old_entropy=old.expand(1, 2))
    (gradient,) = torch.autograd.grad(objective.sum(), log_ratio)
    assert gradient.tolist() == [[0, 0]]


def test_a_wrapped_rule_prepares_and_reads_its_own_columns():
    objective, rows = prepared_for(EntropyRatioClip(ClipCov(cov_low=0.0, ratio=0.3), low=0.0, high=math.inf), rows=20)
    bare, _ = prepared_for(ClipCov(cov_low=0.0, ratio=0.3), rows=20)
    drawn = rows["surrogate/drawn"]
    assert drawn.any()
    weights = objective.weights(rows, objective.count(rows))
    assert not weights[drawn].any()
    torch.testing.assert_close(weights, bare.weights(rows, bare.count(rows)))


def test_tempered_rows_get_reinforce():
    rule = ReinforceTempered(PPOClip(), coef=0.5)
    log_ratio = torch.tensor([[1.0], [1.0]])
    found = rule(log_ratio, torch.ones(2, 1), logp=torch.tensor([[-3.0], [-3.0]]), tempered=torch.tensor([True, False]))
    assert found.flatten().tolist() == pytest.approx([-1.5, 1.2])


# -- fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPOClip(low=1.2), r"PPOClip.low must be .* in \[0, 1\]; found 1.2"),
        (lambda: PPOClip(low=-0.1), "PPOClip.low"),
        (lambda: PPOClip(high=-0.1), "PPOClip.high"),
        (lambda: PPOClip(high=None), "PPOClip.high"),
        (lambda: PPOClip(high=True), "PPOClip.high"),
        (lambda: PPOClip(dual=1.0), "PPOClip.dual must be None or a number above 1"),
        (lambda: GradientPreservingClip(keep_low=-1), "GradientPreservingClip.keep_low"),
        (lambda: GradientPreservingClip(keep_high=math.nan), "GradientPreservingClip.keep_high"),
        (lambda: GradientPreservingClip(low=2), "GradientPreservingClip.low"),
        (lambda: ClippedWeight(low=-1), "ClippedWeight.low"),
        (lambda: ClippedWeight(high=-0.2), "ClippedWeight.high"),
        (lambda: SoftGate(tau_pos=0), "SoftGate.tau_pos must be above 0"),
        (lambda: SoftGate(tau_neg=-1), "SoftGate.tau_neg"),
        (lambda: GeometricClip(clip=-0.4), "GeometricClip.clip"),
        (lambda: ClipCov(ratio=2), "ClipCov.ratio"),
        (lambda: ClipCov(scope="row"), 'ClipCov.scope must be "batch" or "micro_batch"'),
        (lambda: KLCov(k=1.1), "KLCov.k"),
        (lambda: KLCov(coef=-1), "KLCov.coef"),
        (lambda: KLCov(scope=""), "KLCov.scope"),
        (lambda: EntropyRatioClip(low=-1), "EntropyRatioClip.low"),
        (lambda: EntropyRatioClip(low=1.1, high=1.0), "EntropyRatioClip.high must be above low = 1.1"),
        (lambda: ReinforceTempered(coef=-1), "ReinforceTempered.coef"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
