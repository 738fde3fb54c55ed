"""Findings: what is wrong with a run, from its curves and tokens alone.

`diagnose(run)` runs every detector of `DETECTORS` and returns what they found, worst first. A detector is a function
of a `Run` that returns a `Finding` or None; it looks at one thing, says nothing where the run lacks what it needs, and
says nothing of a healthy run. Adding one is adding a function and a line here, and a paragraph in docs/diagnose.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from isentrope.findings import control, entropy, learning, values
from isentrope.findings.base import SEVERITIES, Detector, Finding
from isentrope.findings.tokens import measured
from isentrope.run import Run

__all__ = ["DETECTORS", "Finding", "diagnose", "measured"]

DETECTORS: Mapping[str, Detector] = {
    "impossible": values.impossible,
    "definition_change": values.definition_change,
    "estimate": values.estimate,
    "collapse": entropy.collapse,
    "explosion": entropy.explosion,
    "entropy_bonus": entropy.entropy_bonus,
    "oscillation": entropy.oscillation,
    "pinned_controller": control.pinned_controller,
    "inert": learning.inert,
    "starved_quadrant": learning.starved_quadrant,
    "many_updates": learning.many_updates,
    "starved_task": learning.starved_task,
    "length_collapse": learning.length_collapse,
    "truncation": learning.truncation,
    "equal_rewards": learning.equal_rewards,
    "lost_reward": learning.lost_reward,
    "mismatch": values.mismatch,
    "precision": values.precision,
}

# A finding that says more than another takes its place: the bonus is the explosion's cause, and that the reward's fall.
INSTEAD_OF: Mapping[str, tuple[str, ...]] = {
    "entropy_bonus": ("explosion", "lost_reward"),
    "explosion": ("lost_reward",),
}


def diagnose(run: Run) -> list[Finding]:
    """What is wrong with a run, errors first; tokens are measured first where they have not been."""
    run = measured(run)
    found = {name: finding for name, detector in DETECTORS.items() if (finding := detector(run)) is not None}
    hidden = {other for name in found for other in INSTEAD_OF.get(name, ())}
    return sorted((f for name, f in found.items() if name not in hidden), key=lambda f: SEVERITIES.index(f.severity))
