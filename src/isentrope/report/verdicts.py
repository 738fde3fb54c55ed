"""What `isentrope diagnose` finds in the runs, as a section of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isentrope.findings import Finding
from isentrope.report.data import RunData
from isentrope.report.page import section, text

SIGNS = {"error": "\u2716", "warning": "\u26a0", "note": "\u2139"}  # beside the word, never in its place


def findings_section(runs: Sequence[RunData]) -> str:
    """The findings of every run, worst first; a clean bill where there is none, and what could not be looked at."""
    about = "What the curves and tokens of each run say is wrong with it, and the knob to turn."
    return section("findings", "Findings", about, *(_run(run, i, len(runs) > 1) for i, run in enumerate(runs)))


def _run(run: RunData, index: int, named: bool) -> str:
    name = f'<span class="swatch run-{index % 8}" aria-hidden="true"></span>{text(run.name)}' if named else ""
    if not run.findings:
        clean = '<span class="sign" aria-hidden="true">\u2714</span> nothing wrong found'
        return f'<article class="finding clean"><h3>{name} {clean}</h3>{_lacks(run.lacks)}</article>'
    head = f'<h3 class="of-run">{name}</h3>' if named else ""
    return f"{head}{''.join(_card(finding) for finding in run.findings)}{_lacks(run.lacks)}"


def _card(finding: Finding) -> str:
    evidence = "".join(f"<li>{text(line)}</li>" for line in finding.evidence)
    return (
        f'<article class="finding {text(finding.severity)}">'
        f'<h4><span class="sign" aria-hidden="true">{SIGNS[finding.severity]}</span> {text(_capital(finding.title))}'
        f'<span class="tag">{text(finding.severity)}, {text(finding.confidence)} confidence{_when(finding)}</span></h4>'
        f"<ul>{evidence}</ul>"
        f'<p><b>Turn</b> {text(finding.turn)}</p><p class="rests">Rests on {text(finding.rests_on)}.</p>'
        f"{_button(finding)}</article>"
    )


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _when(finding: Finding) -> str:
    return f", steps {finding.steps[0]:g} to {finding.steps[1]:g}" if finding.steps else ""


def _button(finding: Finding) -> str:
    if not finding.steps or finding.steps[0] >= finding.steps[1]:
        return ""
    first, last = finding.steps
    steps = f'data-from="{first:g}" data-to="{last:g}"'
    return f'<button type="button" class="show" {steps}>Show these steps in the charts</button>'


def _lacks(sentences: Iterable[str]) -> str:
    listed = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return (
        f"<details class=lacks><summary>What could not be looked at</summary><ul>{listed}</ul></details>"
        if listed
        else ""
    )
