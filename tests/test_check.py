"""`check` finds what is wrong: every law has an objective that breaks it, and a sound one breaks none."""

import builtins
import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import pytest
import torch
from typer.testing import CliRunner

from isentrope import IsentropeError, Objective, check, cli, presets
from isentrope.check import LAWS, DoesNotApply, LawBroken
from isentrope.surrogate import ClipCov, KLCov, PPOClip

SOUND = presets.ce_gppo


# -- rules that break a law ---------------------------------------------------------------------------


def by_position(*, reward):
    return reward - reward[:1]


def by_group_number(*, reward, group):
    return reward + group


@dataclass(frozen=True)
class PaddedMean:
    def __call__(self, totals, *, mask):
        return torch.full((1, 1), 1 / max(mask.shape[1], 1), dtype=torch.float64)


def centred_in_the_slice(advantage, *, logp):
    return advantage - advantage.mean()


def unmasked(*, old_logp, rollout_logp):
    gap = (old_logp - rollout_logp).nan_to_num(0.0, 9.0, -9.0).clamp(-9, 9)
    return gap.sum(-1, keepdim=True).clamp(-9, 9).exp()


def unbounded(log_ratio, advantage):
    return log_ratio.exp() * advantage


def by_cancellation(log_ratio, advantage):
    return (log_ratio.clamp(-20, 20).exp() + 1e5 - 1e5) * advantage


def by_division(totals, *, counted):
    return torch.ones(1, 1, dtype=torch.float64) / torch.tensor(totals.tokens)


def against_the_best(*, reward):
    return reward - reward.max()


def standardised(*, reward, group):
    found = torch.zeros_like(reward)
    for g in group.unique():
        found[group == g] = (reward[group == g] - reward[group == g].mean()) / reward[group == g].std()
    return found


def centred_surrogate(log_ratio, advantage):
    j = log_ratio.clamp(-20, 20).exp() * advantage
    return j - j.sum() / 10


@dataclass(frozen=True)
class Doubled:
    plain_at_ratio_one = True

    def __call__(self, log_ratio, advantage):
        return (2 * log_ratio.clamp(-20, 20)).exp() * advantage


def noisy(*, reward):
    return reward + torch.rand(reward.shape)


def in_place(*, reward):
    return reward.mul_(2.0)


class Forgetful:
    """A controller that keeps what it has seen in itself."""

    def __init__(self):
        self.seen = 0

    def init(self):
        return {"value": 0.2}

    def observe(self, state):
        self.seen += 1
        return {"value": 0.2 + 0.01 * self.seen}

    def value(self, state):
        return state["value"]


class Endless:
    def init(self):
        return {"value": float("inf")}

    def observe(self, state):
        return state

    def value(self, state):
        return 0.2


def optional_in_name_only(advantage, *, task=None):
    return advantage * (1 + 0 * task[:, None])


class Leaky(Objective):
    """Not what `loss` is: it reads a column that no rule names, and gives dropped tokens a gradient."""

    def loss(self, rows, totals):
        leak = torch.where(rows["mask"], rows["logp"], 0).sum() * 1e-3
        return super().loss(rows, totals) + leak * rows.get("value", torch.ones(1)).nan_to_num(3.0).mean()


class Lenient(Objective):
    """Replaces what is missing or wrong in silence."""

    def prepare(self, batch, state=None):
        filled = {"reward": torch.zeros(len(batch["mask"]), dtype=torch.float64)} | dict(batch)
        return super().prepare(filled | {"reward": filled["reward"].nan_to_num(0.0, 0.0, 0.0)}, state)


class Trusting(Objective):
    """Counts a token at which old_logp is not finite, and takes a bad logp for 0."""

    def prepare(self, batch, state=None):
        clean = {n: x.nan_to_num(0.0, 0.0, 0.0) if n == "old_logp" else x for n, x in batch.items()}
        return super().prepare(clean, state)

    def loss(self, rows, totals):
        return super().loss(dict(rows) | {"logp": rows["logp"].nan_to_num(0.0, 0.0, 0.0)}, totals)


class Narrow(Objective):
    """A loss in the precision of its column, and weights of the loss instead of J."""

    def loss(self, rows, totals):
        return super().loss(rows, totals).to(rows["logp"].dtype)

    def weights(self, rows, totals):
        return -super().weights(rows, totals)


@dataclass(frozen=True)
class FalselyElementwise:
    """Curved in logp, so that the mean of a row does not stand for its tokens."""

    elementwise = True
    ignores_ratio = True

    def __call__(self, log_ratio, advantage, *, logp):
        return advantage * logp * logp.detach()


class Late(Objective):
    """Shapes a batch by the state before it."""

    def prepare(self, batch, state=None):
        _, after = super().prepare(batch, state)
        prepared, _ = Objective.prepare(self.at(state or self.init()), batch)
        return prepared, after


def like(kind, base):
    return kind(**{f.name: getattr(base, f.name) for f in fields(base)})


def shaped(rule):
    return replace(SOUND, shaping=(rule,))


BREAKS = {
    "rows_in_any_order": replace(SOUND, advantage=by_position),
    "groups_by_any_name": replace(SOUND, advantage=by_group_number),
    "padded_longer": replace(SOUND, aggregate=PaddedMean()),
    "split_into_micro_batches": shaped(centred_in_the_slice),
    "masked_positions_never_matter": replace(SOUND, correction=unmasked),
    "extreme_ratios_stay_finite": replace(SOUND, surrogate=unbounded),
    "float32_agrees_with_float64": replace(SOUND, surrogate=by_cancellation),
    "half_precision_is_widened": like(Narrow, SOUND),
    "a_masked_batch_gives_zero": replace(SOUND, aggregate=by_division),
    "an_empty_batch_gives_zero": replace(SOUND, advantage=against_the_best),
    "odd_groups_stay_finite": replace(SOUND, advantage=standardised),
    "value_is_the_documented_sum": replace(SOUND, surrogate=centred_surrogate),
    "weights_equal_autograd": like(Narrow, SOUND),
    "plain_gradient_at_ratio_one": replace(SOUND, surrogate=Doubled()),
    "dropped_tokens_get_no_gradient": like(Leaky, presets.high_entropy),
    "state_survives_json": replace(SOUND, surrogate=PPOClip(high=Endless())),
    "the_returned_state_is_in_force": like(Late, presets.repo_d),
    "the_same_twice": replace(SOUND, advantage=noisy),
    "inputs_stay_as_they_are": replace(SOUND, advantage=in_place),
    "specification_reads_back": shaped(lambda advantage, *, mask: advantage),
    "only_named_columns_are_read": like(Leaky, SOUND),
    "missing_columns_are_named": like(Lenient, SOUND),
    "bad_rewards_are_refused": like(Lenient, SOUND),
    "bad_tokens_count_as_masked": like(Trusting, SOUND),
    "bad_logp_counts_as_dropped": like(Trusting, presets.gspo),
    "by_row_as_by_token": replace(SOUND, surrogate=FalselyElementwise()),
}


def test_every_law_has_a_rule_that_breaks_it():
    assert BREAKS.keys() == LAWS.keys()


@pytest.mark.parametrize("name", LAWS)
def test_a_law_tells_a_broken_objective_from_a_sound_one(name):
    report = check.check(BREAKS[name], examples=10, laws=[name])
    assert [r.law for r in report.broken] == [name]
    assert report.broken[0].detail.startswith(f"{name}: ")
    assert "draw(" in report.broken[0].detail
    assert not check.check(SOUND, examples=10, laws=[name]).broken


@pytest.mark.parametrize(
    ("objective", "name"),
    [
        (replace(SOUND, surrogate=PPOClip(high=Forgetful())), "state_survives_json"),
        (replace(SOUND, shaping=(optional_in_name_only,)), "missing_columns_are_named"),
        (replace(SOUND, advantage=standardised), "float32_agrees_with_float64"),  # NaN agrees with nothing
    ],
)
def test_further_ways_to_break_a_law(objective, name):
    assert check.check(objective, examples=10, laws=[name]).broken


def test_statistics_of_the_micro_batch_break_the_laws_that_they_are_documented_to_break():
    for rule in (ClipCov(scope="micro_batch", cov_low=-1.0, ratio=0.2), KLCov(scope="micro_batch", k=0.2)):
        report = check.check(replace(presets.clip_cov, surrogate=rule), examples=4)
        assert {r.law for r in report.broken} == {"split_into_micro_batches", "value_is_the_documented_sum"}


# -- the report ---------------------------------------------------------------------------------------


def test_a_sound_objective_obeys_all_laws():
    report = check.check(SOUND, examples=5)
    assert [r.law for r in report.results] == list(LAWS)
    assert {r.outcome for r in report.results} == {"holds"}
    assert all(r.examples >= 1 for r in report.results)
    assert report.to_dict()["ok"]
    assert len(str(report).splitlines()) == len(LAWS)


def test_what_is_not_promised_says_why():
    (result,) = check.check(presets.clip_cov, examples=3, laws=["plain_gradient_at_ratio_one"]).results
    assert result.outcome == "not promised"
    assert "ClipCov does not promise it: it takes the gradient of the tokens it draws" in result.detail
    (result,) = check.check(
        replace(SOUND, surrogate=unbounded), examples=3, laws=["plain_gradient_at_ratio_one"]
    ).results
    assert "plain_at_ratio_one = True" in result.detail


def test_a_broken_law_is_shown_on_the_smallest_batch_that_breaks_it():
    (result,) = check.check(BREAKS["rows_in_any_order"], examples=30, laws=["rows_in_any_order"]).broken
    (rows,) = re.search(r"\((\d+) rows, \d+ tokens: draw\(", result.detail).groups()
    assert int(rows) == 2  # one row has no order


def test_a_law_can_be_run_on_a_batch_again():
    (result,) = check.check(BREAKS["rows_in_any_order"], laws=["rows_in_any_order"]).broken
    recipe = result.detail.rpartition(": ")[2].removesuffix(")")
    batch = eval(recipe, {"draw": check.draw})
    with pytest.raises(LawBroken, match=r"rows_in_any_order: expected .*; found"):
        LAWS["rows_in_any_order"](BREAKS["rows_in_any_order"], batch)
    LAWS["rows_in_any_order"](SOUND, batch)


def test_a_rule_that_crashes_breaks_the_law_with_its_error():
    def crash(log_ratio, advantage):
        raise ZeroDivisionError("mine")

    (result,) = check.check(replace(SOUND, surrogate=crash), examples=2, laws=["rows_in_any_order"]).broken
    assert "expected a result; found ZeroDivisionError('mine')" in result.detail


def test_columns_outside_the_glossary_are_drawn_and_said():
    def weighted(advantage, *, pass_rate):
        return advantage * pass_rate

    report = check.check(shaped(weighted), examples=3, laws=["rows_in_any_order", "missing_columns_are_named"])
    assert report.drawn == ("pass_rate",)
    assert not report.broken


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "grpo"}, "check takes an Objective; found str"),
        ({"examples": 0}, "examples must be at least 1; found 0"),
        ({"laws": ["all"]}, "there is no law 'all'; there are rows_in_any_order"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(IsentropeError, match=message):
        check.check(**({"objective": SOUND} | arguments))


def test_the_same_seed_draws_the_same_batches():
    def recipes(seed):
        found = []
        check._explore(lambda batch: found.append(batch.recipe), (), 10, seed)
        return found

    seen = [recipes(seed) for seed in (3, 3, 4)]
    assert seen[0] == seen[1] != seen[2]
    assert len(set(seen[0])) > 5


def without_hypothesis(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable = builtins.__import__

    def imports(name, *rest, **named):
        if name.split(".")[0] == "hypothesis":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", imports)
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "hypothesis")


def test_without_hypothesis_the_seed_draws(monkeypatch):
    without_hypothesis(monkeypatch)
    report = check.check(SOUND, examples=12, laws=["rows_in_any_order", "split_into_micro_batches"])
    assert [r.examples for r in report.results] == [12, 12]
    for name in ("rows_in_any_order", "split_into_micro_batches", "masked_positions_never_matter"):
        assert check.check(BREAKS[name], examples=12, laws=[name]).broken


# -- drawn batches ------------------------------------------------------------------------------------


def test_drawing_again_draws_the_same():
    a, b = check.draw(seed=5, rewards="graded", extra=("mine",)), check.draw(seed=5, rewards="graded", extra=("mine",))
    assert a.recipe == "draw(5, 8, 6, 3, 'graded', ['mine'])"
    assert a.keys() == b.keys()
    assert all(torch.equal(x.nan_to_num(9.0), b[name].nan_to_num(9.0)) for name, x in a.items())


def test_values_are_those_that_float32_holds():
    for x in check.draw(seed=6).values():
        assert x.dtype != torch.float32
        if x.is_floating_point():
            assert torch.equal(x.float().double().nan_to_num(9.0), x.nan_to_num(9.0))


def test_drawn_batches_hold_every_case():
    counts = dict.fromkeys(
        [
            "empty row",
            "hole",
            "full row",
            "lone group",
            "no rollout",
            "above",
            "below",
            "tiny",
            "same",
            "cut",
            "hot",
            "far",
        ],
        0,
    )
    for seed in range(20):
        b = check.draw(seed)
        mask, change = b["mask"], b["logp"] - b["old_logp"]
        counts["empty row"] += int((~mask.any(-1)).sum())
        counts["full row"] += int(mask.all(-1).sum())
        counts["hole"] += int((~mask[:, 1:-1] & mask[:, :-2] & mask[:, 2:]).sum())
        counts["lone group"] += int((b["group"].unique(return_counts=True)[1] == 1).sum())
        counts["no rollout"] += int(b["rollout_logp"].isnan().sum())
        counts["above"] += int((change > 0.25).sum())
        counts["below"] += int((change < -0.25).sum())
        counts["tiny"] += int(((change != 0) & (change.abs() < 4e-4)).sum())
        counts["same"] += int((change == 0).sum())
        counts["cut"] += int(b["length_limit_hit"].sum())
        counts["hot"] += int(b["tempered"].sum())
        counts["far"] += int(((b["entropy"] / b["old_entropy"] - 1).abs() > 0.05).sum())
        assert torch.isfinite(b["reward"]).all()
        assert (b["logp"] < 0).all()
        assert (b["old_logp"] < 0).all()
        assert (b["old_entropy"] > 0).all()
    assert min(counts.values()) >= 5, counts


def test_laws_that_cannot_show_say_so():
    empty = dict(check.draw(seed=1))
    empty["mask"] = torch.zeros_like(empty["mask"])
    with pytest.raises(DoesNotApply, match="no token"):
        LAWS["bad_tokens_count_as_masked"](SOUND, empty)


# -- the verb -----------------------------------------------------------------------------------------


def run(*arguments):
    return CliRunner().invoke(cli.app, ["check", *map(str, arguments)])


BAD_FILE = """
from dataclasses import replace
from isentrope import presets

def first(*, reward):
    return reward - reward[:1]

mine = replace(presets.grpo, advantage=first)
"""


def test_the_verb_prints_a_table_and_succeeds():
    found = run("grpo", "--examples", 2)
    assert found.exit_code == 0
    assert all(name.replace("_", " ") in found.stdout for name in LAWS)
    assert found.stdout.endswith(f"grpo: {len(LAWS)} laws hold, 0 broken\n")


def test_the_verb_fails_with_the_law_that_is_broken(tmp_path):
    (tmp_path / "mine.py").write_text(BAD_FILE)
    found = run(f"{tmp_path / 'mine.py'}:mine", "--examples", 10)
    assert found.exit_code == 1
    assert "broken" in found.stdout
    assert "draw(" in found.stdout


def test_the_verb_takes_toml_and_prints_json(tmp_path):
    (tmp_path / "mine.toml").write_text(str(presets.gepo))
    found = run(tmp_path / "mine.toml", "--examples", 1, "--seed", 7, "--json")
    told = json.loads(found.stdout)
    assert (found.exit_code, told["ok"], told["seed"]) == (0, True, 7)
    assert [r["law"] for r in told["results"]] == list(LAWS)


@pytest.mark.parametrize("arguments", [("no_such",), ("grpo", "--examples", 0), ("missing.toml",)])
def test_bad_input_is_one_line(arguments):
    found = run(*arguments)
    assert found.exit_code == 2
    assert len(found.stderr.strip().splitlines()) == 1


def nothing_behind_the_mask(advantage, *, logp, mask):
    return torch.where(mask, advantage, torch.nan)


def test_what_a_shaping_rule_leaves_behind_the_mask_does_not_matter_to_the_laws():
    batch = check.draw(seed=3)
    assert not batch["mask"].all()
    objective = replace(SOUND, shaping=(nothing_behind_the_mask,))
    for law in ("split_into_micro_batches", "rows_in_any_order", "value_is_the_documented_sum"):
        check.LAWS[law](objective, batch)
