"""Where the entropy goes: collapse, explosion, a bonus that runs away, oscillation.

Thresholds are fractions of the run's own start level, so that a run that lives at .05 nats and one that lives at 2 are
judged alike; docs/diagnose.md gives the reason of each.
"""

from __future__ import annotations

import math
from statistics import fmean

from isentrope.diagnostics import QUADRANTS
from isentrope.findings import robust
from isentrope.findings.base import Finding
from isentrope.findings.knobs import knob
from isentrope.findings.values import definition_jump
from isentrope.run import Run, Series

FLOOR = 0.1  # of the start level: what is left then no longer explores
NOTHING = 0.02  # nats; a run that starts here has nothing to lose
LATE = 0.4  # share of the run whose slope says where it is heading
FALLING = 0.12  # of the logarithm over the late part: less is drift
FALLEN, SOON = 0.6, 0.6  # collapse is ahead: below this share of the start, floor within this share of the run
SAGGED, SOMETIME = 0.8, 4.0  # the same for a run whose reward no longer rises: the entropy then buys nothing
UNSEEN_SAGGED, UNSEEN_SOON = 0.7, 1.5  # the same where the reward cannot be told
NEARLY_GONE = 0.25  # of the start: a fall that needs no reward to be one
ALIKE = 0.4  # of the share of different completions at the start
DOUBLED, RISEN = 2.0, 0.3  # explosion: times the start, and nats
FAR = 4.0  # times the start: no reward that rises excuses this
NEAR_UNIFORM = 0.7  # of log V
BONUS_GROWN, BONUS_RISEN = 1.5, 0.2  # the same with a bonus in the loss: a known suspect needs less
MET = 1.2  # times the target of a controller: it is where it was meant to go


def entropy(run: Run) -> Series | None:
    """The entropy since it last changed its meaning; None for fewer points than say anything."""
    series = run.get("entropy", "tokens/surprisal", "surprisal")
    if series is None:
        return None
    jump = definition_jump(run)
    series = series if jump is None else series.since(jump.step)
    return series if len(series) >= robust.MIN_POINTS else None


def reward_course(run: Run, share: float = 0.5) -> int | None:
    """1, 0 or -1 where the reward's later part rises, stands or falls; None where that cannot be told."""
    reward = run.get("reward")
    return None if reward is None else robust.course(reward, share)


# -- collapse ---------------------------------------------------------------------------------------


def collapse(run: Run) -> Finding | None:
    """Entropy that has gone, or is on its way: the floor is a tenth of the start level.

    Gone: below the floor. Ahead: below .6 of the start and at the late pace at the floor within .6 of the run so far,
    whatever the reward does. Slow: below .8 and there within 4 runs' length, where the reward no longer rises.
    """
    series = entropy(run)
    if series is None:
        return _same_answers(run)
    begin, now = robust.start(series), robust.end(series)
    if begin <= NOTHING:
        return None
    pace = robust.log_trend(series.last(LATE))
    left = _steps_to_floor(begin, now, pace)
    kind = _kind_of_collapse(run, series, begin, now, left)
    if kind is None:
        return None
    reward = reward_course(run)
    why, turn = cause_of_fall(run)
    severity = "error" if kind == "gone" and reward != 1 else "warning"
    rests = {None: "entropy alone: the reward is unknown or too noisy", 1: "entropy; the reward still rises"}.get(
        reward, "entropy that falls while the reward does not rise"
    )
    return Finding(
        name="collapse",
        severity=severity,
        confidence=_confidence(kind, now / begin, reward),
        title=_TITLES[kind].format(begin=begin, now=now, left=left),
        evidence=(*_fall(series, begin, now, pace, left), *_reward_words(reward), why),
        rests_on=rests,
        turn=turn,
        steps=(series.steps[0], series.steps[-1]),
        numbers={"start": begin, "end": now, "steps_to_floor": left, "log_slope": pace.slope},
    )


def _confidence(kind: str, left: float, reward: int | None) -> str:
    """left: share of the start that is left."""
    if kind == "gone" or reward in (0, -1):
        return "high"
    return "low" if reward is None and left > NEARLY_GONE else "medium"


def _same_answers(run: Run) -> Finding | None:
    """Where no entropy is known: groups whose completions become copies of each other."""
    series = run.get("distinct")
    if series is None or len(series) < robust.MIN_POINTS:
        return None
    begin, now = robust.start(series), robust.end(series)
    if now > ALIKE * begin or not robust.trend(series).is_sure:
        return None
    return Finding(
        name="collapse",
        severity="warning",
        confidence="low",
        title=f"completions of a prompt become copies: {now:.0%} are different, {begin:.0%} were at the start",
        evidence=(f"steps {series.steps[0]:g} to {series.steps[-1]:g}", *_reward_words(reward_course(run))),
        rests_on="texts alone: no entropy in the files",
        turn=knob(run.engine, "control"),
        steps=(series.steps[0], series.steps[-1]),
        numbers={"start": begin, "end": now},
    )


_TITLES = {
    "gone": "entropy has collapsed, from {begin:.3g} to {now:.3g} nats",
    "ahead": "entropy is about to collapse: a tenth of its start in some {left:.0f} steps",
    "slow": "entropy collapses slowly: a tenth of its start in some {left:.0f} steps",
}


def _steps_to_floor(begin: float, now: float, pace: robust.Trend) -> float:
    """Steps from the end to the floor at the late pace; infinite where it does not surely fall."""
    if now <= FLOOR * begin:
        return 0.0
    if not pace.is_sure or pace.change > -FALLING:
        return math.inf
    return math.log(now / (FLOOR * begin)) / -pace.slope


def _kind_of_collapse(run: Run, series: Series, begin: float, now: float, left: float) -> str | None:
    if now <= FLOOR * begin:
        return "gone"
    length = series.steps[-1] - series.steps[0]
    if now <= FALLEN * begin and left <= SOON * length:
        return "ahead"
    reward = reward_course(run)
    if reward is None:
        return "slow" if now <= UNSEEN_SAGGED * begin and left <= UNSEEN_SOON * length else None
    return "slow" if reward < 1 and now <= SAGGED * begin and left <= SOMETIME * length else None


def _fall(series: Series, begin: float, now: float, pace: robust.Trend, left: float) -> tuple[str, ...]:
    first, last = series.steps[0], series.steps[-1]
    said = f"steps {first:g} to {last:g}: {begin:.3g} to {now:.3g} nats ({now / begin:.0%} of the start)"
    if not 0 < left < math.inf:
        return (said,)
    return (said, f"late pace {100 * (math.exp(pace.slope) - 1):.2g}% a step: floor near step {last + left:.0f}")


def _reward_words(reward: int | None) -> tuple[str, ...]:
    words = {1: "the reward still rises", 0: "the reward no longer rises", -1: "the reward falls"}
    return () if reward is None else (words[reward],)


def cause_of_fall(run: Run) -> tuple[str, str]:
    """What lowers the entropy as far as the files tell, and the knob against it."""
    shares = quadrant_shares(run)
    if shares:
        return _cause_by_quadrant(run, shares)
    high, low = (run.get(f"clip_{side}", f"tokens/clip_{side}") for side in ("high", "low"))
    if high is not None and robust.end(high, 0.5) >= 0.01 and (low is None or robust.end(low, 0.5) < robust.end(high)):
        return (
            f"cause, likely: the upper bound cuts {robust.end(high, 0.5):.1%} of the tokens, the rare ones of good"
            " completions that would raise entropy",
            knob(run.engine, "clip_high"),
        )
    return "cause: not in the files; a dump of tokens with weights would show it", knob(run.engine, "control")


def quadrant_shares(run: Run) -> dict[str, float]:
    """Mean share of each quadrant in the predicted entropy change over the later half; empty where not measured."""
    found = {q: run.get(f"change_share/{q}") for q in QUADRANTS}
    return {q: fmean(series.last(0.5).values) for q, series in found.items() if series is not None}


def _cause_by_quadrant(run: Run, shares: dict[str, float]) -> tuple[str, str]:
    worst = min(shares, key=lambda q: shares[q])
    who = {
        "PA&HP": "likely tokens of good completions",
        "NA&LP": "unlikely tokens of bad completions",
        "PA&LP": "unlikely tokens of good completions",
        "NA&HP": "likely tokens of bad completions",
    }[worst]
    said = f"cause: {worst} ({who}) make {-shares[worst]:.0%} of the predicted entropy change"
    silenced = run.get("tokens/silenced/PA&LP")
    if silenced is not None and fmean(silenced.values) >= 0.1:
        said += f"; {fmean(silenced.values):.0%} of PA&LP, which would raise it, get no gradient"
        return said, knob(run.engine, "clip_high")
    return said, knob(run.engine, "clip_low" if worst == "NA&LP" else "control")


# -- explosion --------------------------------------------------------------------------------------


def explosion(run: Run) -> Finding | None:
    """Entropy at twice its start and .3 nats above it that still rises, or that cost reward, and that nobody set."""
    series = entropy(run)
    if series is None or not _has_grown(run, series, DOUBLED, RISEN):
        return None
    begin, now = robust.start(series), robust.end(series)
    falls = reward_course(run) == -1 or _reward_lost(run)
    return Finding(
        name="explosion",
        severity="error" if falls else "warning",
        confidence="high" if falls else "medium",
        title=f"entropy explodes, from {begin:.3g} to {now:.3g} nats",
        evidence=(_grown_words(series, begin, now), *_reward_words(reward_course(run)), *_clip_words(run)),
        rests_on="entropy that rises while the reward falls" if falls else "entropy that rises without gain in reward",
        turn=f"{knob(run.engine, 'clip_high')} (lower); or {knob(run.engine, 'rate')}",
        steps=(series.steps[0], series.steps[-1]),
        numbers={"start": begin, "end": now},
    )


def _has_grown(run: Run, series: Series, times: float, nats: float) -> bool:
    """Whether entropy has grown that much and is neither meant to be there nor settled there without harm."""
    begin, now = robust.start(series), robust.end(series)
    if now < times * begin or now - begin < nats or _is_at_target(run, now):
        return False
    late, reward = robust.log_trend(series.last(0.5)), reward_course(run)
    rises = late.is_sure and late.change >= 0.05
    v = run.facts.vocabulary
    excused = reward == 1 and now < FAR * begin and (v is None or now < NEAR_UNIFORM * math.log(v))
    return not excused and (rises or _reward_lost(run))


def _reward_lost(run: Run) -> bool:
    """Whether the reward ends clearly below the best that it has been."""
    reward = run.get("reward")
    if reward is None or len(reward) < robust.MIN_POINTS:
        return False
    few = robust.blocks(reward, 20).values
    best, size = max(few[:-1]), max(few) - min(few)
    return best - robust.end(reward) > max(0.3 * size, 4 * robust.noise(reward.values) / math.sqrt(len(reward) / 20))


def _is_at_target(run: Run, now: float) -> bool:
    targets = [s.values[-1] for name in run.series if name.endswith(".target") and (s := run.get(name)) is not None]
    return any(now <= MET * target for target in targets)


def _grown_words(series: Series, begin: float, now: float) -> str:
    return f"steps {series.steps[0]:g} to {series.steps[-1]:g}: {begin:.3g} to {now:.3g} nats, {now / begin:.1f} times"


def _clip_words(run: Run) -> tuple[str, ...]:
    high = run.get("clip_high")
    return () if high is None else (f"the upper bound cuts {robust.end(high, 0.5):.2%} of the tokens",)


def entropy_bonus(run: Run) -> Finding | None:
    """An entropy bonus in the loss, and entropy that grows by half and .2 nats without gain in reward."""
    coef, series = bonus(run), entropy(run)
    if series is None or coef <= 0 or not _has_grown(run, series, BONUS_GROWN, BONUS_RISEN):
        return None
    begin, now = robust.start(series), robust.end(series)
    harmful = now >= DOUBLED * begin or reward_course(run) == -1
    return Finding(
        name="entropy_bonus",
        severity="error" if harmful else "warning",
        confidence="high" if harmful else "medium",
        title=f"the entropy bonus (coefficient {coef:.3g}) runs away: {begin:.3g} to {now:.3g} nats",
        evidence=(
            _grown_words(series, begin, now),
            *_reward_words(reward_course(run)),
            "a bonus pulls at every token of the vocabulary, so no reward holds it back once it leads",
        ),
        rests_on="a bonus in the loss and entropy that rises with it",
        turn=f"{knob(run.engine, 'entropy_coef')}: smaller, or held at a target",
        steps=(series.steps[0], series.steps[-1]),
        numbers={"coef": coef, "start": begin, "end": now},
    )


def bonus(run: Run) -> float:
    """The coefficient of the entropy bonus at the end of the run; 0 where there is none or none is known."""
    series = run.get("entropy_coef")
    if series is not None:
        return series.values[-1]
    held = [run.get(name) for name in run.series if name.startswith("controller/") and name.endswith("coef.value")]
    known = [s.values[-1] for s in held if s is not None]
    return max(known, default=run.facts.entropy_coef or 0.0)


# -- oscillation ------------------------------------------------------------------------------------


def oscillation(run: Run) -> Finding | None:
    """Entropy that swings by 15% of its level or more, again and again, without settling; with its controller."""
    series = entropy(run)
    found = None if series is None else robust.wave(series)
    if series is None or found is None:
        return None
    movers = [name for name in run.series if name.startswith("controller/") and name.endswith(".value")]
    hunting = [n for n in movers if (s := run.get(n)) is not None and len(s) > 3 and len(set(s.last(0.5).values)) > 1]
    level = robust.end(series, 0.5)
    return Finding(
        name="oscillation",
        severity="warning",
        confidence="high" if hunting else "medium",
        title="the controller hunts: entropy swings around its target" if hunting else "entropy oscillates",
        evidence=(
            f"swings of {found.amplitude:.2g} nats around {level:.3g}, every {found.period:.0f} steps,"
            f" {found.count:.1f} times in the later two thirds, not dying down",
            *(f"{name} moves with it" for name in hunting),
        ),
        rests_on="a period that comes back" + (" and a controller that moves" if hunting else "; no controller known"),
        turn=knob(run.engine, "servo" if hunting else "rate"),
        steps=(series.last(2 / 3).steps[0], series.steps[-1]),
        numbers={"amplitude": found.amplitude, "period": found.period, "level": level},
    )
