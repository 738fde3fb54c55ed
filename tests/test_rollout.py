"""Rollout knobs: what an engine may be asked for."""

import math

import pytest

from isentrope import presets
from isentrope.control import EntropySwitch
from isentrope.rollout import Rollout


def test_by_default_the_engine_samples_as_it_does():
    assert Rollout() == Rollout(temperature=None, share=1.0, rounds=0)


def test_a_controller_may_set_the_temperature():
    heat = EntropySwitch(below=1.2, above=0.8, start=1.0, target=0.5)
    assert Rollout(temperature=heat, share=0.05).temperature is heat


def test_an_engine_reads_a_number_from_the_objective_in_force():
    objective = presets.arbitrary_entropy
    assert list(objective.controllers()) == ["rollout.temperature"]
    assert objective.at({"rollout.temperature.value": 0.8}).rollout == Rollout(temperature=0.8, share=0.05)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rollout(temperature=0.0), "Rollout.temperature must be above 0; found 0.0"),
        (lambda: Rollout(temperature=-1.0), "Rollout.temperature"),
        (lambda: Rollout(temperature=math.nan), "Rollout.temperature"),
        (lambda: Rollout(temperature=1.0, share=0.0), r"Rollout.share must be in \(0, 1\]"),
        (lambda: Rollout(temperature=1.0, share=1.5), "Rollout.share"),
        (lambda: Rollout(share=0.5), "Rollout.share must be 1 where no temperature is set; found 0.5"),
        (lambda: Rollout(rounds=-1), "Rollout.rounds must be a whole number, at least 0; found -1"),
        (lambda: Rollout(rounds=1.5), "Rollout.rounds must be a whole number"),
    ],
)
def test_fields_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
