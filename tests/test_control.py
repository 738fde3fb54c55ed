"""Controllers and schedules: the printed traces, hand-made ones, and what a bad observation does."""

import json
import math

import pytest
import torch

from isentrope import IsentropeWarning, presets
from isentrope.control import (
    EntropyGain,
    EntropyPI,
    EntropyServo,
    EntropyStep,
    EntropySwitch,
    GroupEntropyThreshold,
    Hysteresis,
    is_controller,
)
from isentrope.rollout import Rollout
from isentrope.schedule import Constant, Cosine, Linear, Piecewise
from isentrope.shaping import GroupEntropyGate
from isentrope.surrogate import PPOClip


def trace(controller, entropies, state=None):
    """The number in force after each observation."""
    state = controller.init() if state is None else state
    found = []
    for entropy in entropies:
        state = controller.observe(state, measured_entropy=entropy)
        found.append(controller.value(state))
    return found


SERVOS = [
    EntropyGain(start=1e-3, low=1e-4, high=0.05),
    EntropyServo(),
    EntropyStep(target="initial"),
    EntropyPI(start=0.5, low=0, high=1, ki=0.1),
    EntropySwitch(below=1.2, above=0.8, start=1.0),
]


# -- gain with sign flip ------------------------------------------------------------------------------


def test_the_gain_follows_the_printed_trace():
    """Seven steps below the target, then ten above it, through zero by way of the lower bound."""
    gain = EntropyGain(start=1e-3, low=1e-4, high=0.05, target=1.0)
    expected = [0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    expected += [0.025, 0.0125, 0.00625, 0.003125, 0.0015625, 0.00078125, 0.000390625, 0.0001953125, -0.0001, -0.0002]
    assert trace(gain, [0.5] * 7 + [1.5] * 10) == pytest.approx(expected, rel=1e-12)


def test_the_gain_is_bounded_below_and_comes_back():
    gain = EntropyGain(start=-1e-3, low=1e-4, high=4e-3, target=1.0)
    assert trace(gain, [2, 2, 2, 0, 0, 0, 0, 0, 0, 0]) == pytest.approx(
        [-2e-3, -4e-3, -4e-3, -2e-3, -1e-3, -5e-4, -2.5e-4, -1.25e-4, 1e-4, 2e-4]
    )


def test_the_gain_leaves_zero_on_either_side():
    gain = EntropyGain(start=0.0, low=1e-4, high=0.05, target=1.0)
    assert trace(gain, [0.5]) == [1e-4]
    assert trace(gain, [1.5]) == [-1e-4]


def test_repo_presets_hold_the_papers_bounds():
    zeta = presets.repo_d.shaping[0].zeta
    assert (zeta.start, zeta.low, zeta.high) == (1.0, 1e-3, 10.0)
    zeta = presets.repo_r.shaping[0].zeta
    assert (zeta.start, zeta.low, zeta.high) == (1e-3, 1e-4, 0.05)


# -- multiplicative, additive, switch -----------------------------------------------------------------


def test_the_servo_multiplies_and_divides_within_its_bounds():
    servo = EntropyServo(start=0.28, rate=1.1, low=0.25, high=0.32, target=1.0)
    assert trace(servo, [0.5, 0.5, 0.5, 1.5]) == pytest.approx([0.308, 0.32, 0.32, 0.32 / 1.1])
    assert trace(servo, [1.5, 1.5, 1.5]) == pytest.approx([0.28 / 1.1, 0.25, 0.25])


def test_the_step_adds_and_subtracts_within_its_bounds():
    step = EntropyStep(step=2e-3)
    assert trace(step, [0.1, 0.1, 0.1, 0.3, 0.3, 0.3]) == pytest.approx([0.002, 0.004, 0.005, 0.003, 0.001, 0])


def test_the_step_recovers_from_zero():
    """trl 6140: an adaptive coefficient that multiplies is dead at 0."""
    assert trace(EntropyStep(), [9, 9, 9, 0.1]) == pytest.approx([0, 0, 0, 1e-4])


def test_the_switch_takes_one_of_two_numbers():
    switch = EntropySwitch(below=1.2, above=0.8, start=1.0, target=0.5)
    assert trace(switch, [0.5, 0.4, 0.5, 0.6]) == [1.0, 1.2, 1.2, 0.8]


@pytest.mark.parametrize("controller", SERVOS, ids=lambda c: type(c).__name__)
def test_the_initial_target_is_the_first_finite_observation(controller):
    state = controller.init()
    assert "target" not in state
    with pytest.warns(IsentropeWarning, match=f"{type(controller).__name__}: measured entropy is nan; state kept"):
        state = controller.observe(state, measured_entropy=math.nan)
    assert state == controller.init()
    state = controller.observe(state, measured_entropy=1.25)
    assert state["target"] == 1.25
    assert controller.value(state) == controller.value(controller.init())
    assert controller.observe(state, measured_entropy=7.0)["target"] == 1.25


@pytest.mark.parametrize("controller", SERVOS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_bad_observation_keeps_the_state_and_warns(controller, bad):
    state = controller.observe(controller.observe(controller.init(), measured_entropy=1.0), measured_entropy=0.5)
    with pytest.warns(IsentropeWarning, match="state kept"):
        assert controller.observe(state, measured_entropy=bad) == state


@pytest.mark.parametrize("controller", SERVOS, ids=lambda c: type(c).__name__)
def test_observing_the_target_changes_nothing(controller):
    state = controller.observe(controller.observe(controller.init(), measured_entropy=1.0), measured_entropy=0.5)
    assert controller.observe(state, measured_entropy=1.0) == state


@pytest.mark.parametrize("controller", [*SERVOS, Hysteresis(), Linear(0.0, 1.0, 3)], ids=lambda c: type(c).__name__)
def test_state_is_a_flat_dict_of_floats_that_json_keeps(controller):
    def observe(state, entropy):
        given = {} if isinstance(controller, Linear) else {"measured_entropy": entropy}
        return controller.observe(state, **given)

    state = controller.init()
    for entropy in (1.0, 0.9, 1 / 3):
        kept = dict(state)
        after = observe(state, entropy)
        assert state == kept
        assert all(type(x) is float for x in after.values())
        assert observe(json.loads(json.dumps(after)), 0.77) == observe(after, 0.77)
        state = after


# -- PI -----------------------------------------------------------------------------------------------


def test_pi_by_hand():
    """e = 1 - H = .4, .2, -.3. I = .04, .06, .03; x = .5 + .5 e + I."""
    pi = EntropyPI(start=0.5, low=0.0, high=1.0, kp=0.5, ki=0.1, target=1.0)
    assert trace(pi, [0.6, 0.8, 1.3]) == pytest.approx([0.5 + 0.2 + 0.04, 0.5 + 0.1 + 0.06, 0.5 - 0.15 + 0.03])


def test_the_integral_never_leaves_the_bounds():
    """Anti-windup: after any time at a bound, one step of the other sign acts at once."""
    pi = EntropyPI(start=0.5, low=0.0, high=1.0, ki=0.2, target=1.0)
    found = trace(pi, [0.0] * 50 + [2.0])
    assert found[:3] == pytest.approx([0.7, 0.9, 1.0])
    assert found[-2:] == pytest.approx([1.0, 0.8])


def test_inside_the_dead_band_there_is_no_error():
    pi = EntropyPI(start=0.5, low=0.0, high=1.0, kp=1.0, ki=1.0, dead_band=0.25, target=1.0)
    assert trace(pi, [0.75, 1.25]) == [0.5, 0.5]
    assert trace(pi, [0.5, 0.75]) == pytest.approx([1.0, 1.0])  # .5 + .5 + .5 is cut, then the integral alone holds it


def test_a_negative_gain_lowers_the_number_where_entropy_is_short():
    pi = EntropyPI(start=0.5, low=0.0, high=1.0, kp=-0.5, target=1.0)
    assert trace(pi, [0.6, 1.4]) == pytest.approx([0.3, 0.7])


# -- hysteresis ---------------------------------------------------------------------------------------


def test_the_gate_closes_at_one_entropy_and_opens_at_another():
    gate = Hysteresis(reference=1.0)
    assert trace(gate, [1.0, 1.2, 1.21, 1.0, 0.8, 0.79, 1.0, 1.3]) == [0, 0, 1, 1, 1, 0, 0, 1]


def test_the_gate_measures_against_the_initial_entropy():
    assert trace(Hysteresis(low=0.5, high=2.0), [0.4, 0.79, 0.81, 0.21, 0.19]) == [0, 0, 1, 1, 0]


def test_a_bad_observation_leaves_the_gate():
    with pytest.warns(IsentropeWarning, match="Hysteresis"):
        assert trace(Hysteresis(), [1.0, 2.0, math.nan]) == [0, 1, 1]


# -- thresholds ---------------------------------------------------------------------------------------


def test_a_threshold_that_is_not_finite_is_not_taken():
    threshold = GroupEntropyThreshold(offset=0.1)
    columns = {"mask": torch.ones(2, 1, dtype=torch.bool), "group": torch.tensor([0, 1])}
    with pytest.warns(IsentropeWarning, match="state kept"):
        assert threshold.observe({}, old_logp=torch.tensor([[-math.inf], [-1.0]]), **columns) == {}


def test_groups_without_tokens_and_batches_without_groups_are_left_out():
    threshold = GroupEntropyThreshold(offset=0.0)
    old, group = torch.tensor([[-1.0], [-9.0]]), torch.tensor([0, 1])
    state = threshold.observe({}, old_logp=old, mask=torch.tensor([[True], [False]]), group=group)
    assert state == {"value": 1.0}
    assert threshold.observe(state, old_logp=old, mask=torch.zeros(2, 1, dtype=torch.bool), group=group) == state


# -- schedules ----------------------------------------------------------------------------------------


def numbers(schedule, batches):
    state, found = schedule.init(), []
    for _ in range(batches):
        state = schedule.observe(state)
        found.append(schedule.value(state))
    return found


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Constant(0.3), [0.3, 0.3, 0.3]),
        (Linear(0.0, 1.0, batches=4), [0, 0.25, 0.5, 0.75, 1, 1]),
        (Linear(1.0, 0.5, batches=1), [1, 0.5, 0.5]),
        (Cosine(1.0, 0.0, batches=4), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]),
        (Piecewise(((0, 0.0), (2, 0.5), (3, 1.0))), [0, 0, 0.5, 1, 1]),
    ],
    ids=lambda x: type(x).__name__,
)
def test_schedules_count_rollout_batches_from_zero(schedule, expected):
    assert schedule.value(schedule.init()) == expected[0]
    assert numbers(schedule, len(expected)) == pytest.approx(expected, abs=1e-12)


def test_a_schedule_resumes_where_it_was():
    schedule = Linear(0.0, 1.0, batches=4)
    state = schedule.observe(schedule.observe(schedule.init()))
    assert schedule.value(schedule.observe(json.loads(json.dumps(state)))) == 0.5


# -- fields -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EntropyGain(start=1, low=0.0, high=1), "EntropyGain.low must be positive"),
        (lambda: EntropyGain(start=1, low=2, high=1), "EntropyGain.high must be at least low = 2"),
        (lambda: EntropyServo(rate=1.0), "EntropyServo.rate must be positive and not 1"),
        (lambda: EntropyServo(rate=-1.1), "EntropyServo.rate"),
        (lambda: EntropyServo(target="first"), 'EntropyServo.target must be a number of nats or "initial"'),
        (lambda: EntropyServo(target=math.nan), "EntropyServo.target"),
        (lambda: EntropyStep(step=0), "EntropyStep.step must be other than 0"),
        (lambda: EntropyPI(start=0, low=0, high=1), "EntropyPI.ki must be other than 0 where kp is 0"),
        (lambda: EntropyPI(start=0, low=0, high=1, kp=1, dead_band=-1), "EntropyPI.dead_band"),
        (lambda: EntropyPI(start=0, low=1, high=0, kp=1), "EntropyPI.high"),
        (lambda: EntropySwitch(below=1, above=2, start=1, target="now"), "EntropySwitch.target"),
        (lambda: Hysteresis(low=1.3), "Hysteresis.high must be at least low = 1.3"),
        (lambda: Hysteresis(low=0.0), "Hysteresis.high"),
        (lambda: Hysteresis(reference="x"), "Hysteresis.reference"),
        (lambda: GroupEntropyThreshold(offset=1, gamma=1.5), r"GroupEntropyThreshold.gamma must be in \(0, 1\]"),
        (lambda: Linear(0, 1, batches=0), "Linear.batches must be a positive number"),
        (lambda: Cosine(0, 1, batches=-1), "Cosine.batches"),
        (lambda: Piecewise(()), "Piecewise.pieces"),
        (lambda: Piecewise(((1, 0.5),)), "Piecewise.pieces"),
        (lambda: Piecewise(((0, 0.5), (0, 1.0))), "Piecewise.pieces"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_controller_is_whatever_has_the_three_methods():
    class Mine:
        def init(self):
            return {}

        def observe(self, state):
            return state

        def value(self, state):
            return 0.2

    assert is_controller(Mine())
    assert all(map(is_controller, SERVOS))
    assert not any(map(is_controller, [0.2, "initial", None, presets.grpo, presets.grpo.surrogate, (Mine(),)]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PPOClip(low=EntropyServo(start=0.2, low=0.0, high=1.5)),
        lambda: PPOClip(high=EntropyGain(start=0.1, low=0.01, high=0.2)),
        lambda: PPOClip(low=Linear(0.2, -0.1, batches=3)),
        lambda: PPOClip(low=Piecewise(((0, 0.2), (5, 1.2)))),
        lambda: GroupEntropyGate(alpha_low=0.5, alpha_high=EntropyPI(start=0.2, low=0.1, high=0.6, kp=0.1)),
        lambda: Rollout(temperature=EntropySwitch(below=1.2, above=-0.8, start=1.0)),
    ],
)
def test_a_controller_that_could_leave_its_fields_range_is_refused_before_it_does(make):
    with pytest.raises(ValueError, match="must be"):
        make()


def test_a_controller_that_does_not_say_where_it_stays_is_taken():
    class Mine:
        def init(self):
            return {"value": 0.3}

        def observe(self, state):
            return state

        def value(self, state):
            return state["value"]

    assert PPOClip(high=Mine()).high.value({"value": 0.3}) == 0.3
