"""What a finding is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from isentrope.run import Run

SEVERITIES = ("error", "warning", "note")  # the run is lost or wrong; it is going wrong; good to know
CONFIDENCES = ("high", "medium", "low")


@dataclass(frozen=True)
class Finding:
    """Something about a run: what it is, how bad, how sure and why, what shows it, and what to do.

    name: as in `isentrope.findings.DETECTORS`. title: one sentence. evidence: sentences with steps and numbers.
    rests_on: what the confidence rests on. turn: the knob to turn, in the user's engine. steps: first and last step
    concerned. numbers: the evidence for programs.
    """

    name: str
    severity: str
    confidence: str
    title: str
    evidence: tuple[str, ...]
    rests_on: str
    turn: str
    steps: tuple[float, float] | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, allowed in (("severity", SEVERITIES), ("confidence", CONFIDENCES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"Finding.{name} must be one of {allowed}; found {getattr(self, name)!r}")

    @property
    def is_alarm(self) -> bool:
        """Whether it is a warning or worse."""
        return self.severity != "note"


Detector = Callable[[Run], Finding | None]
