"""Measurements against plain loops, hand cases and laws."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from isentrope import diagnostics, presets, theory
from isentrope.aggregate import TokenMean
from isentrope.diagnostics import QUADRANTS
from isentrope.surrogate import GradientPreservingClip, ImportanceWeighted
from isentrope.tally import Tally, merge, tally


def batch(num_groups: int = 6, size: int = 4, length: int = 20, seed: int = 0) -> dict[str, Tensor]:
    """A rollout batch with off-policy ratios on both sides of the clip, NaN behind the mask, and three tasks."""
    g = torch.Generator().manual_seed(seed)
    rows = num_groups * size
    lengths = torch.randint(1, length + 1, (rows, 1), generator=g)
    mask = torch.arange(length)[None] < lengths
    old = -torch.rand(rows, length, generator=g, dtype=torch.float64) * 4 - 0.01
    columns = {
        "old_logp": old,
        "logp": (old + 0.5 * torch.randn(rows, length, generator=g, dtype=torch.float64)).clamp(max=-1e-3),
        "rollout_logp": old + 0.1 * torch.randn(rows, length, generator=g, dtype=torch.float64),
        "ref_logp": old + 0.2,
        "old_entropy": torch.rand(rows, length, generator=g, dtype=torch.float64) * 2,
        "entropy": torch.rand(rows, length, generator=g, dtype=torch.float64) * 2,
    }
    columns = {name: x.masked_fill(~mask, torch.nan) for name, x in columns.items()}
    group = torch.arange(num_groups).repeat_interleave(size)
    reward = (torch.rand(rows, generator=g, dtype=torch.float64) > 0.5).double()
    return columns | {"mask": mask, "group": group, "task": group % 3, "reward": reward}


def prepared(objective=presets.ce_gppo, **kw):
    rows, state = objective.prepare(batch(**kw))
    now = objective.at(state)
    return now, rows, now.count(rows)


def parts_of(rows: dict[str, Tensor], size: int) -> list[dict[str, Tensor]]:
    return [{name: x[i : i + size] for name, x in rows.items()} for i in range(0, len(rows["mask"]), size)]


def same(a: Tally, b: Tally) -> None:
    assert a.sums.keys() == b.sums.keys()
    for name in a.sums:
        torch.testing.assert_close(a.sums[name], b.sums[name], rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(a.counts[name], b.counts[name])


def test_micro_batches_add_up_to_the_whole() -> None:
    now, rows, totals = prepared()
    parts = merge(diagnostics.update(now, part, totals) for part in parts_of(rows, 5))
    whole = diagnostics.update(now, rows, totals)
    padded = Tally() + whole
    same(parts, padded)


def test_entropy_is_the_pooled_token_mean_not_a_mean_of_means() -> None:
    """trl 6380, 7047: rows of different lengths."""
    rows = {
        "mask": torch.tensor([[True, False, False], [True, True, True]]),
        "entropy": torch.tensor([[4.0, torch.nan, torch.nan], [0.0, 0.0, 0.0]]),
    }
    assert diagnostics.entropy(rows).mean("entropy") == 1.0


def test_entropy_by_task_position_and_probability_agree_with_loops() -> None:
    rows = batch()
    found = diagnostics.entropy(rows)
    by_task: dict[int, list[float]] = {}
    by_position: dict[int, list[float]] = {}
    by_tenth: dict[int, list[float]] = {}
    edges = diagnostics.POSITION_EDGES
    for i, row in enumerate(rows["mask"].tolist()):
        position = 0
        for t, used in enumerate(row):
            if not used:
                continue
            h = float(rows["entropy"][i, t])
            by_task.setdefault(int(rows["task"][i]), []).append(h)
            by_position.setdefault(max(k for k, e in enumerate(edges) if e <= position), []).append(h)
            by_tenth.setdefault(min(9, int(math.exp(float(rows["logp"][i, t])) * 10)), []).append(h)
            position += 1
    assert len(by_task) == 3
    assert len(by_tenth) == 10
    for suffix, expected in (("task", by_task), ("position", by_position), ("probability", by_tenth)):
        means = found.means(f"entropy/{suffix}")
        for k, values in expected.items():
            assert float(means[k]) == pytest.approx(sum(values) / len(values))


def test_estimates_and_exact_entropies_have_different_names() -> None:
    """NeMo-RL 342: the mean of -logp is not shown as the entropy."""
    rows = batch()
    del rows["entropy"]
    found = diagnostics.summary(diagnostics.entropy(rows))
    assert "entropy" not in found
    assert found["surprisal"] == pytest.approx(-float(rows["logp"][rows["mask"]].mean()))


def test_predicted_change_has_the_sign_of_its_quadrant() -> None:
    """PA&HP and NA&LP lower entropy, PA&LP and NA&HP raise it."""
    now, rows, totals = prepared(replace(presets.grpo, surrogate=ImportanceWeighted()))
    found = diagnostics.entropy_change(diagnostics.judged(now, rows, totals))
    assert [name for name, x in zip(QUADRANTS, found.sums["change"].tolist(), strict=True) if x < 0] == [
        "PA&HP",
        "NA&LP",
    ]
    assert all(x != 0 for x in found.sums["change"].tolist())
    assert found.total("change/all") == pytest.approx(found.total("change"))
    assert found.total("change/task") == pytest.approx(found.total("change"))


def test_predicted_change_agrees_with_the_exact_change_of_a_tabular_policy() -> None:
    """One state, all actions sampled in proportion: the policy-gradient step's change, by weights and S."""
    z = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    advantage = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64)
    pi, eta = z.exp(), 1e-4
    spread = advantage - (pi * advantage).sum()
    step = eta * pi * spread
    ones = torch.ones(3, 1, dtype=torch.bool)
    rows = {
        "mask": ones,
        "logp": z[:, None],
        "entropy": theory.entropy(z).expand(3, 1),
        "squared_mass": theory.squared_mass(z).expand(3, 1),
    }
    found = diagnostics.entropy_change(rows | {"weight": (pi * spread)[:, None], "advantage": spread[:, None]})
    assert eta * found.total("change/all") == pytest.approx(float(theory.exact_change(z, step)), rel=1e-3)


def test_tokens_without_advantage_belong_to_no_quadrant() -> None:
    rows = {"mask": torch.ones(1, 1, dtype=torch.bool), "logp": -torch.ones(1, 1), "entropy": torch.ones(1, 1) / 2}
    found = diagnostics.entropy_change(rows | {"weight": torch.ones(1, 1), "advantage": torch.zeros(1, 1)})
    assert found.total("change") == 0
    assert found.total("change/all") != 0


def test_clipping_loses_gradient_on_both_sides_and_keeping_it_loses_less() -> None:
    ppo, rows, totals = prepared(replace(presets.grpo, aggregate=TokenMean()))
    lost = diagnostics.clipping(diagnostics.judged(ppo, rows, totals))
    keeping = replace(ppo, surrogate=GradientPreservingClip(keep_low=0.5, keep_high=1.0))
    kept = diagnostics.clipping(diagnostics.judged(keeping, rows, totals))
    assert (lost.sums["clipped"] > 0).all()
    assert (lost.sums["lost_gradient"] > 0).all()
    torch.testing.assert_close(kept.sums["clipped"], lost.sums["clipped"])
    assert (kept.sums["lost_gradient"] < lost.sums["lost_gradient"]).all()
    assert float(lost.sums["lost_gradient"].sum()) < lost.total("gradient")


def test_nothing_is_said_of_clipping_where_nothing_clips() -> None:
    now, rows, totals = prepared(presets.rloo)
    assert "clipped" not in diagnostics.clipping(diagnostics.judged(now, rows, totals))


def test_plain_ppo_changes_no_token_and_ce_gppo_only_the_clipped() -> None:
    ppo, rows, totals = prepared(replace(presets.grpo, aggregate=TokenMean()))
    assert diagnostics.changed_tokens(diagnostics.judged(ppo, rows, totals)).mean("changed") == 0
    ce = replace(ppo, surrogate=GradientPreservingClip(keep_low=0.5, keep_high=1.0))
    sides = ce.clipped(rows)
    assert sides is not None
    share = float((sides[0] | sides[1])[rows["mask"]].double().mean())
    assert diagnostics.changed_tokens(diagnostics.judged(ce, rows, totals)).mean("changed") == pytest.approx(share)
    assert share > 0.1


def test_effective_sample_size_is_one_on_policy_and_small_where_one_token_dominates() -> None:
    rows = batch()
    rows["logp"] = rows["old_logp"]
    assert diagnostics.effective_sample_size(diagnostics.ratios(rows)) == pytest.approx(1.0)
    rows["logp"] = rows["old_logp"].clone()
    rows["logp"][0, 0] += 15.0
    assert diagnostics.effective_sample_size(diagnostics.ratios(rows)) < 0.01


def test_policies_are_compared_by_name() -> None:
    found = diagnostics.ratios(batch())
    assert found.mean("kl_old") > 0
    assert found.mean("kl_rollout") > 0
    assert found.mean("no_rollout_logp") == 0
    rows = batch()
    rows["ref_logp"] = rows["logp"]
    assert diagnostics.ratios(rows).mean("kl_ref") == pytest.approx(0, abs=1e-12)


def test_missing_sampler_probabilities_are_counted_and_left_out() -> None:
    """trl 6166."""
    rows = batch()
    rows["rollout_logp"][0, 0] = torch.nan
    found = diagnostics.sampler_mismatch(rows)
    assert float(found.counts["mismatch"].sum()) == int(rows["mask"].sum()) - 1
    assert diagnostics.ratios(rows).mean("no_rollout_logp") == pytest.approx(1 / int(rows["mask"].sum()))


def test_mismatch_is_found_where_it_is() -> None:
    """Precision-RL 10: growing with position, for unlikely tokens."""
    rows = batch(length=40)
    position = torch.arange(40, dtype=torch.float64)[None]
    rows["rollout_logp"] = rows["old_logp"] - 0.01 * position * (rows["old_logp"] < -2)
    found = diagnostics.sampler_mismatch(rows)
    by_position, by_tenth = found.means("mismatch/position"), found.means("mismatch/probability")
    assert by_position[5] > by_position[3] > by_position[1]
    assert by_tenth[0] > 0
    assert by_tenth[5] == 0


def test_covariance_and_correlation_agree_with_torch() -> None:
    rows, _ = presets.grpo.prepare(batch())
    found = diagnostics.advantage_covariance(rows)
    mask = rows["mask"]
    pair = torch.stack([rows["old_logp"][mask], rows["advantage"][mask]])
    assert found.covariance("logp", "advantage") == pytest.approx(float(torch.cov(pair, correction=0)[0, 1]))
    assert found.correlation("logp", "advantage") == pytest.approx(float(torch.corrcoef(pair)[0, 1]))


def test_heterogeneity_is_the_share_of_variance_between_tasks() -> None:
    task = torch.tensor([0, 0, 1, 1])
    assert diagnostics.heterogeneity(torch.tensor([1.0, 1.0, 3.0, 3.0]), task) == pytest.approx(1.0)
    assert diagnostics.heterogeneity(torch.tensor([1.0, 3.0, 1.0, 3.0]), task) == pytest.approx(0.0)
    assert diagnostics.heterogeneity(torch.tensor([0.0, 2.0, 2.0, 4.0]), task) == pytest.approx(0.5)
    assert math.isnan(diagnostics.heterogeneity(torch.tensor([1.0, 2.0]), torch.tensor([0, 0])))


def test_group_entropy_comes_with_the_task_of_the_group() -> None:
    rows = batch()
    found, task = diagnostics.group_entropy(
        {n: torch.nan_to_num(x) if x.is_floating_point() else x for n, x in rows.items()}
    )
    assert task is not None
    assert task.tolist() == [0, 1, 2, 0, 1, 2]
    own = rows["group"] == 4
    expected = -rows["old_logp"][own][rows["mask"][own]].mean()
    assert float(found[4]) == pytest.approx(float(expected))


def test_numerical_clipping_is_zero_for_equal_and_found_for_rounded_log_probabilities() -> None:
    """RLinf 1534: clipped at learning rate 0."""
    rows = batch()
    rows["logp"] = rows["old_logp"]
    assert diagnostics.numerical_clipping(rows).total("clipped_numerically") == 0
    rows["logp"] = (rows["old_logp"] * 40).bfloat16().double()
    rows["old_logp"] = rows["old_logp"] * 40
    assert (diagnostics.numerical_clipping(rows).means("clipped_numerically") > 0).all()


def test_noise_scale_recovers_a_known_signal_and_noise() -> None:
    signal, noise = 4.0, 100.0
    small, big = signal + noise / 8, signal + noise / 64
    assert diagnostics.noise_scale(small, big, 8, 64) == pytest.approx(noise / signal)
    assert math.isnan(diagnostics.noise_scale(10.0, 1.0, 8, 64))
    with pytest.raises(ValueError, match="num_small must be below"):
        diagnostics.noise_scale(1.0, 1.0, 8, 8)


def test_what_hides_behind_the_mask_changes_nothing() -> None:
    now, rows, totals = prepared()
    dirty = {
        n: x.masked_fill(~rows["mask"], torch.inf)
        if x.shape == rows["mask"].shape and x.is_floating_point() and "/" not in n
        else x
        for n, x in rows.items()
    }
    same(diagnostics.update(now, dirty, totals), diagnostics.update(now, rows, totals))


def test_summary_names_every_number_and_leaves_out_what_was_not_measured() -> None:
    now, rows, totals = prepared()
    found = diagnostics.summary(diagnostics.update(now, rows, totals), ["a", "b", "c"])
    for name in ("entropy/a", "entropy/c", "change/PA&HP", "change_share/NA&LP", "clipped/low", "lost_gradient/high"):
        assert math.isfinite(found[name])
    assert sum(abs(found[f"change_share/{q}"]) for q in QUADRANTS) == pytest.approx(1.0)
    assert not any(math.isnan(x) for x in found.values())


def test_an_empty_batch_measures_nothing_and_fails_at_nothing() -> None:
    now, rows, totals = prepared()
    nothing = {name: x[:0] for name, x in rows.items()}
    assert diagnostics.summary(diagnostics.update(now, nothing, totals))["change"] == 0


def test_tallies_survive_json_and_grow_with_new_bins() -> None:
    a = tally({"x": torch.tensor([1.0, 2.0])}, torch.tensor([0, 1]), 2)
    b = tally({"x": torch.tensor([3.0])}, torch.tensor([2]), 3)
    assert (a + b).means("x").tolist() == [1.0, 2.0, 3.0]
    same(Tally.of(a.state()), a)


def test_effective_sample_size_by_hand() -> None:
    """Ratios 1 and 3: (1 + 3)^2 / (2 (1 + 9)) = .8."""
    old = torch.zeros(1, 2, dtype=torch.float64)
    rows = {"mask": old == 0, "old_logp": old, "logp": torch.tensor([[1.0, 3.0]], dtype=torch.float64).log()}
    assert diagnostics.effective_sample_size(diagnostics.ratios(rows)) == pytest.approx(0.8)
