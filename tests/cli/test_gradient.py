"""The measured gradient weight: that of the objective's own code, and drawn where it belongs."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from isentrope import masked, presets
from isentrope.cli import _gradient, _gradient_chart
from isentrope.control import EntropyServo
from isentrope.correction import TruncatedImportance
from isentrope.errors import IsentropeError
from isentrope.penalty import ReferenceKL

RATIOS = (0.25, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 1.5, 4.0)


def curves(objective, ratios=RATIOS):
    found = _gradient.measure(objective, ratios)
    return dict(zip(ratios, zip(found.positive, found.negative, strict=True), strict=True))


def test_ratios_are_spaced_evenly_in_their_logarithm_with_1_exactly_in_the_middle():
    ratios = _gradient.spaced(5)
    assert ratios[2] == 1.0
    assert [math.log10(r) for r in ratios] == pytest.approx([-1, -0.5, 0, 0.5, 1])


def test_ppo_keeps_the_ratio_inside_the_clip_and_nothing_outside():
    """PPO, eq. 7: dJ/dlogp = r A inside; 0 for A > 0 above 1.2 and for A < 0 below .8."""
    found = curves(presets.grpo)
    for r, (positive, negative) in found.items():
        assert positive == pytest.approx(r if r < 1.2 else 0)
        assert negative == pytest.approx(-r if r > 0.8 else 0)


def test_ce_gppo_keeps_a_constant_outside_the_clip():
    """CE-GPPO, eq. 8 at keep (.5, 1): .5 * .8 below, 1.2 above."""
    found = curves(presets.ce_gppo)
    assert found[0.5] == pytest.approx((0.5, -0.4))
    assert found[4.0] == pytest.approx((1.2, -4.0))


def test_rows_of_one_token_make_the_sequence_ratio_a_token_ratio():
    """GSPO's band is 3e-4 and 4e-4 wide."""
    found = curves(presets.gspo, (0.9996, 0.9998, 1.0, 1.0003, 1.0005))
    assert [positive == 0 for positive, _ in found.values()] == [False, False, False, False, True]
    assert [negative == 0 for _, negative in found.values()] == [True, False, False, False, False]


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_can_be_measured_and_is_the_plain_policy_gradient_at_ratio_1(name):
    """repo_r alone scales the advantage by the probability, by one part in 300."""
    positive, negative = curves(getattr(presets, name))[1.0]
    assert positive == pytest.approx(1, abs=0.0031)
    assert negative == pytest.approx(-1, abs=0.0031)


def test_shaping_by_the_current_probability_acts():
    """REPO-R, A > 0: A (1 - zeta lp), lp = ln(.05 r)."""
    rule = replace(presets.repo_r.shaping[0], zeta=0.1)
    found = curves(replace(presets.repo_r, shaping=(rule,)))
    for r in (0.5, 1.0, 1.19):
        assert found[r][0] == pytest.approx(r * (1 - 0.1 * math.log(0.05 * r)))


def test_selection_acts():
    @dataclass(frozen=True)
    class SuccessesAlone:
        def __call__(self, *, advantage):
            return advantage[:, 0] > 0

    found = curves(replace(presets.grpo, select=(SuccessesAlone(),)))
    assert found[1.0] == pytest.approx((1, 0))


def test_a_batch_where_nothing_is_selected_has_weights_of_0():
    class Nothing:
        def __call__(self, *, mask):
            return torch.zeros_like(mask)

    assert set(curves(replace(presets.grpo, select=(Nothing(),))).values()) == {(0.0, 0.0)}


def test_the_plotted_tokens_are_those_of_highest_entropy():
    """The 80/20 rule keeps a fifth of the tokens; all of the others are background."""
    found = curves(presets.high_entropy)
    assert [positive for positive, _ in found.values()] == pytest.approx([r if r < 1.2 else 0 for r in RATIOS])


def test_penalties_act_with_the_reference_at_the_old_policy():
    """k2: the gradient of coef (logp - ref)^2 / 2 is coef ln r."""
    found = curves(replace(presets.rloo, penalties=(ReferenceKL(coef=0.1, estimator="k2"),)))
    for r, (positive, negative) in found.items():
        assert positive == pytest.approx(1 - 0.1 * math.log(r))
        assert negative == pytest.approx(-1 - 0.1 * math.log(r))


def test_the_sampler_agrees_with_the_trainer():
    assert curves(replace(presets.grpo, correction=TruncatedImportance())) == curves(presets.grpo)


def test_controllers_stand_at_their_start():
    servo = EntropyServo(start=0.6, low=0.1, high=1.0)
    found = curves(replace(presets.grpo, surrogate=replace(presets.adapo.surrogate, high=servo)), (1.59, 1.61))
    assert [positive for positive, _ in found.values()] == pytest.approx([1.59, 0])


def test_a_bonus_shows_as_the_weight_of_the_entropy():
    assert _gradient.measure(presets.entropy_bonus, (1.0,)).entropy == pytest.approx(1e-3)
    assert _gradient.measure(presets.grpo, (1.0,)).entropy == 0


def test_the_weight_of_a_token_does_not_depend_on_how_tokens_are_averaged():
    for name in ("grpo", "dapo", "dr_grpo"):
        objective = replace(presets.grpo, aggregate=getattr(presets, name).aggregate)
        assert _gradient.measure(objective, RATIOS).positive == pytest.approx(
            _gradient.measure(presets.grpo, RATIOS).positive
        )


@dataclass(frozen=True)
class ByRow:
    """Takes `difficulty` for a number a row."""

    def __call__(self, advantage, *, difficulty):
        return advantage * difficulty[:, None]


@dataclass(frozen=True)
class ByToken:
    """Takes `interest` for a number a token."""

    def __call__(self, advantage, *, interest):
        return advantage * masked.fill(interest, interest > 0)


def test_columns_of_ones_own_are_1_in_the_shape_that_the_rule_takes():
    objective = replace(presets.grpo, shaping=(ByRow(), ByToken()))
    found = _gradient.measure(objective, RATIOS)
    assert found.positive == pytest.approx(_gradient.measure(presets.grpo, RATIOS).positive)
    assert found.assumed == ("difficulty = 1", "interest = 1")
    assert "difficulty = 1, interest = 1" in " ".join(_gradient.notes(objective, found))


def test_a_rule_that_cannot_run_is_named_with_its_error():
    class Broken:
        def __call__(self, advantage, *, logp):
            raise KeyError("nothing there")

    with pytest.raises(IsentropeError, match="cannot be measured on a synthetic batch: KeyError: 'nothing there'"):
        _gradient.measure(replace(presets.grpo, shaping=(Broken(),)), RATIOS)


def test_notes_say_where_the_controllers_stand():
    found = _gradient.measure(presets.adapo, (1.0,))
    assert "Controllers at their start: surrogate.high = 0.28." in list(_gradient.notes(presets.adapo, found))
    assert "Controllers act from the first batch on." in list(_gradient.notes(presets.gepo, found))


# -- drawing -------------------------------------------------------------------------------------------


def drawn(objective: Any, width=40, height=9):
    found = _gradient.measure(objective, _gradient.spaced(_gradient_chart.dots(width)))
    return _gradient_chart.terminal(found, width, height).plain.splitlines()


def test_the_drawing_has_its_size_and_its_labels():
    lines = drawn(presets.ce_gppo)
    assert len(lines) == 9 + 2
    assert max(map(len, lines)) <= 40 + _gradient_chart.MARGIN + _gradient_chart.TAG
    assert lines[0].split("┤")[0].strip() == "1.2"
    assert lines[8].split("┤")[0].strip() == "-10"
    assert {"0", "-1"} <= {line.split("┤")[0].strip() for line in lines[:9]}
    assert lines[0].endswith("A=+1")
    assert lines[8].endswith("A=-1")


def test_ratio_1_stands_under_its_line():
    lines = drawn(presets.grpo)
    (place,) = {line.index("┊") for line in lines if "┊" in line}
    assert lines[9][place] == "1"
    assert lines[9].split() == ["0.1", "0.2", "0.5", "1", "2", "5", "10"]


def test_curves_without_a_gap():
    """A constant curve puts a dot into every column; the clip's jump into every row between its ends."""
    (top,) = [line for line in drawn(presets.rloo) if line.endswith("A=+1")]
    body = top.split("┤")[1][:40]
    assert set(body[:-1]) == {"⠉"}
    jump = [line.split("┤")[1][:40] for line in drawn(presets.dapo)[:9]]
    column = max(i for i, character in enumerate(jump[0]) if ord(character) > 0x2800)
    assert all(ord(row[column]) > 0x2800 for row in jump[:2])


def test_curves_that_end_together_share_a_tag():
    class Nothing:
        def __call__(self, *, mask):
            return torch.zeros_like(mask)

    assert any(line.endswith("A=±1") for line in drawn(replace(presets.grpo, select=(Nothing(),))))
