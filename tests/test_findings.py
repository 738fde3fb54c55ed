"""Findings: what each looks for is found, and nothing else, on synthetic runs of several seeds."""

import pytest

from isentrope.findings import diagnose

from .synthetic_runs import CASES

SEEDS = range(5)


def alarms(found):
    return {finding.name for finding in found if finding.is_alarm}


@pytest.mark.parametrize("name", CASES)
def test_a_synthetic_run_raises_the_expected_alarms_and_no_others(name):
    case = CASES[name]
    wrong = {seed: sorted(got) for seed in SEEDS if (got := alarms(diagnose(case.build(seed)))) != case.alarms}
    assert wrong == {}, f"expected {sorted(case.alarms)}"
