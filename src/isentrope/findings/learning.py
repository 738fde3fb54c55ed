"""What keeps a run from learning: rules without effect, clipping, stale batches, tasks, lengths, rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev

from isentrope.diagnostics import QUADRANTS
from isentrope.findings import robust, stages
from isentrope.findings.base import Finding
from isentrope.findings.entropy import collapse, entropy, explosion, reward_course
from isentrope.findings.knobs import knob
from isentrope.run import Run, Series

STILL = 1e-6  # ratio and KL to the old policy that differ from on-policy by less have not moved
MANY_UPDATES = 16  # a rollout batch; reports of late surges and of covariance rules that fail start here
FAR_KL, FAR_CLIP = 0.05, 0.1  # nats from the rollout's policy; share of tokens clipped on both sides
NEAR_KL = 0.01  # nats; below, a large clip fraction is that of a narrow band, as sequence ratios have
VERY_FAR_KL = 0.1  # nats; says by itself that a batch is used up
ONE_SIDED, TIMES = 0.03, 4.0  # share of tokens clipped on one side, and how many times the other
SILENT = 0.3  # share of a quadrant's tokens without gradient
SHORT = 0.5  # of the length at the start
SAG = 0.7  # of the entropy at the start
CUT, CUT_MORE, CUT_HALF = 0.25, 0.15, 0.5  # share of completions cut; how much it has grown; where nothing excuses it
EARLY = 12  # steps; a run that has just begun may still learn to be brief
EQUAL = 0.8  # share of groups whose rewards are all the same
STARVED, FED = 0.25, 0.5  # of a task's own entropy at the start
LOST, HALF = 0.1, 0.5  # of the level that a reward had: what is left on average, and at any step
SURELY_LOST = 4.0  # standard errors of the mean at the end


def inert(run: Run) -> Finding | None:
    """Ratios that are always 1: rules that act through the ratio do nothing."""
    said = run.facts.inert or ()
    moved = _movement(run)
    if not said and (moved is None or moved > STILL or len(_ratio_curves(run)[0]) < robust.MIN_POINTS):
        return None
    alarm = bool(said) or _needs_help(run)
    still = () if moved is None else ("ratio, KL to the old policy and clip fraction never leave 1, 0 and 0",)
    return Finding(
        name="inert",
        severity="warning" if alarm else "note",
        confidence="high" if moved is not None and moved <= STILL else "medium",
        title="the ratio is always 1: clipping, and every rule that acts through the ratio, does nothing",
        evidence=(*said, *still),
        rests_on="the recipe" if said else "curves that never move",
        turn=f"several updates a rollout batch ({knob(run.engine, 'updates')}), or a rule that acts at the first update"
        " (REPO, GEPO, high-entropy tokens)",
    )


def _ratio_curves(run: Run) -> list[Series]:
    names = ("kl_old", "clip", "clip_low", "clip_high")
    return [s for name in names if (s := run.get(name)) is not None]


def _movement(run: Run) -> float | None:
    """The furthest that any of these curves is from on-policy; None where there is none."""
    curves = [abs(v) for series in _ratio_curves(run) for v in series.values]
    ratio = run.get("ratio")
    curves += [] if ratio is None else [abs(v - 1) for v in ratio.values]
    return max(curves) if _ratio_curves(run) else None


def _needs_help(run: Run) -> bool:
    """Whether the entropy is in trouble that a working clip might have met."""
    return collapse(run) is not None or explosion(run) is not None


def starved_quadrant(run: Run) -> Finding | None:
    """Clipping that takes the gradient from one kind of token, while entropy goes where that kind would not let it."""
    found = _silenced(run) or _lost(run) or _one_sided(run)
    if found is None:
        return None
    quadrant, evidence, certain = found
    side = "high" if quadrant.startswith("PA") else "low"
    effect = "lowers" if quadrant == "PA&LP" else "raises"
    return Finding(
        name="starved_quadrant",
        severity="warning",
        confidence="high" if certain else "medium",
        title=f"clipping starves {quadrant}, which {effect} entropy",
        evidence=(evidence,),
        rests_on="weights of single tokens" if certain else "clip fractions by side and the course of the entropy",
        turn=f"{knob(run.engine, f'clip_{side}')}: wider, or with gradient beyond it (ce_gppo)",
    )


def _silenced(run: Run) -> tuple[str, str, bool] | None:
    shares = {q: s for q in QUADRANTS if (s := run.get(f"tokens/silenced/{q}")) is not None}
    if len(shares) < len(QUADRANTS):
        return None
    level = {q: median(s.values) for q, s in shares.items()}
    for quadrant in ("PA&LP", "NA&LP"):
        others = [v for q, v in level.items() if q != quadrant]
        if level[quadrant] >= SILENT and level[quadrant] >= 2 * median(others):
            return quadrant, f"{level[quadrant]:.0%} of the {quadrant} tokens get no gradient", True
    return None


def _lost(run: Run) -> tuple[str, str, bool] | None:
    """The share of the gradient that the engine has measured as lost beyond one bound."""
    sides = {"PA&LP": run.get("lost_gradient_high"), "NA&LP": run.get("lost_gradient_low")}
    level = {quadrant: median(s.last(0.5).values) for quadrant, s in sides.items() if s is not None}
    for quadrant, own in level.items():
        others = [v for q, v in level.items() if q != quadrant]
        if own >= SILENT and own >= TIMES * max(others, default=0.0):
            return quadrant, f"{own:.0%} of the gradient is lost beyond its bound", True
    return None


def _one_sided(run: Run) -> tuple[str, str, bool] | None:
    low, high, course = run.get("clip_low"), run.get("clip_high"), entropy(run)
    if low is None or high is None or course is None:
        return None
    sides = {"PA&LP": robust.end(high, 0.5), "NA&LP": robust.end(low, 0.5)}
    heading = robust.log_trend(course)
    for (quadrant, own), other, sign in (
        (("PA&LP", sides["PA&LP"]), sides["NA&LP"], -1),
        (("NA&LP", sides["NA&LP"]), sides["PA&LP"], 1),
    ):
        goes = heading.is_sure and sign * heading.change >= 0.3
        if own >= ONE_SIDED and own >= TIMES * other and goes:
            return quadrant, f"{own:.1%} of the tokens are clipped on its side, {other:.1%} on the other", False
    return None


def many_updates(run: Run) -> Finding | None:
    """So many updates on one rollout batch that the policy leaves it behind."""
    updates = run.facts.updates_per_rollout
    kl, clip = _level(run, "kl_old"), _clipped(run)
    far = kl >= FAR_KL or (clip >= FAR_CLIP and (kl >= NEAR_KL or run.get("kl_old") is None))
    many = updates is not None and updates >= MANY_UPDATES
    if not (many or kl >= VERY_FAR_KL):
        return None
    harmed = far or _reward_falls(run) or collapse(run) is not None or explosion(run) is not None
    said = [] if updates is None else [f"{updates} updates a rollout batch"]
    return Finding(
        name="many_updates",
        severity="warning" if harmed else "note",
        confidence="high" if many and far else "medium",
        title="too many updates on one rollout batch" if harmed else "many updates on one rollout batch",
        evidence=(*said, *_distance(run, kl, clip), *(["the reward falls"] if _reward_falls(run) else [])),
        rests_on="the recipe and the distance from the rollout's policy" if many else "the distance alone",
        turn=knob(run.engine, "updates"),
        numbers={"kl_old": kl, "clip": clip},
    )


def _distance(run: Run, kl: float, clip: float) -> list[str]:
    """How far from the rollout's policy a run is, of what it logs."""
    said = [f"KL to the rollout's policy {kl:.3g} nats"] if run.get("kl_old") is not None else []
    if run.get("clip_low", "clip_high", "clip") is not None:
        said.append(f"{clip:.1%} of the tokens clipped")
    return [", ".join(said)] if said else []


def _reward_falls(run: Run) -> bool:
    series = run.get("reward")
    return series is not None and len(series) >= robust.MIN_POINTS and robust.direction(series, 1.0) == -1


def _level(run: Run, name: str) -> float:
    series = run.get(name)
    return 0.0 if series is None else abs(robust.end(series, 0.34))


def _clipped(run: Run) -> float:
    sides = _level(run, "clip_low") + _level(run, "clip_high")
    return max(sides, _level(run, "clip"))


def starved_task(run: Run) -> Finding | None:
    """A task that loses reward or entropy while another gains."""
    rewards = {t: s for t, s in run.tasks("reward").items() if len(s) >= robust.MIN_POINTS}
    entropies = {t: s for t, s in run.tasks("entropy").items() if len(s) >= robust.MIN_POINTS}
    gaining = [t for t, s in rewards.items() if robust.direction(s, 1.0) == 1]
    losing = [t for t in rewards if t not in gaining and _loses(rewards[t], entropies, t)]
    if not losing or not gaining:
        return None
    said = [_task_words(t, rewards[t], entropies.get(t)) for t in (*losing, *gaining)]
    return Finding(
        name="starved_task",
        severity="warning",
        confidence="high" if any(robust.direction(rewards[t], 1.0) == -1 for t in losing) else "medium",
        title=f"{', '.join(losing)} starves while {', '.join(gaining)} gains",
        evidence=tuple(said),
        rests_on="reward" + (" and entropy" if entropies else "") + " by task",
        turn=knob(run.engine, "mix"),
    )


def _loses(reward: Series, entropies: dict[str, Series], task: str) -> bool:
    """Whether a task's reward falls, or its entropy is spent while another task keeps half of its own."""
    if robust.direction(reward, 1.0) == -1:
        return True
    left = {t: robust.end(s) / robust.start(s) for t, s in entropies.items() if robust.start(s) > 0}
    return left.get(task, 1.0) <= STARVED and max((v for t, v in left.items() if t != task), default=0.0) >= FED


def _task_words(task: str, reward: Series, entropy_: Series | None) -> str:
    said = f"{task}: reward {robust.start(reward):.3g} to {robust.end(reward):.3g}"
    return said if entropy_ is None else said + f", entropy {robust.start(entropy_):.3g} to {robust.end(entropy_):.3g}"


def length_collapse(run: Run) -> Finding | None:
    """Completions that shrink to half or less together with the entropy."""
    length, course = run.get("length"), entropy(run)
    if length is None or course is None or len(length) < robust.MIN_POINTS:
        return None
    shorter = robust.end(length) / robust.start(length) if robust.start(length) > 0 else 1.0
    lower = robust.end(course) / robust.start(course) if robust.start(course) > 0 else 1.0
    link = robust.together(length, course)
    if shorter > SHORT or lower > SAG or not robust.trend(length).is_sure or not link >= 0.5:
        return None
    return Finding(
        name="length_collapse",
        severity="warning",
        confidence="high" if link >= 0.8 else "medium",
        title="completions shrink together with the entropy",
        evidence=(
            f"length {robust.start(length):.0f} to {robust.end(length):.0f} ({shorter:.0%}), entropy to {lower:.0%} of"
            f" its start; correlation {link:.2f}",
            *(() if reward_course(run, 1.0) != 1 else ("the reward rises: shorter may be what it asks for",)),
        ),
        rests_on="two curves that fall together",
        turn="what rewards and loss say of length (aggregate: token mean or constant length)",
        numbers={"length": shorter, "entropy": lower},
    )


def truncation(run: Run) -> Finding | None:
    """A quarter of the completions cut by the length limit, neither with gain in reward nor on the way down."""
    cut = run.get("truncated")
    if cut is None or len(cut) < 3:
        return None
    first, last = robust.start(cut), robust.end(cut, 0.2)
    gain = reward_course(run, 1.0)
    excused = gain == 1 or robust.direction(cut, 1.0) == -1 or len(cut) < EARLY
    if last < CUT or (last < CUT_HALF and excused):
        return None
    grown = last - first >= CUT_MORE
    return Finding(
        name="truncation",
        severity="warning",
        confidence="high" if grown and gain == -1 else "medium",
        title=f"{last:.0%} of the completions are cut by the length limit",
        evidence=(
            f"share cut {first:.0%} at the start, {last:.0%} at the end",
            "a cut completion counts as wrong whatever it was about to say: all of its tokens are pushed down",
        ),
        rests_on="the share of cut completions"
        + (" that grows while the reward falls" if grown and gain == -1 else ""),
        turn=knob(run.engine, "length"),
        numbers={"start": first, "end": last},
    )


def equal_rewards(run: Run) -> Finding | None:
    """Groups whose completions all get the same reward: there is nothing to learn from them."""
    share, spread, reward = run.get("zero_std"), run.get("reward_std"), run.get("reward")
    level = None if share is None or len(share) < 3 else robust.end(share, 0.2)
    no_spread = share is None and spread is not None and len(spread) >= 3 and robust.end(spread, 0.2) < 1e-6
    varies = (level is not None and level < EQUAL) or (spread is not None and not no_spread)
    constant = reward is not None and len(reward) >= 20 and len(set(reward.values)) == 1 and not varies
    if not (constant or no_spread or (level is not None and level >= EQUAL)):
        return None
    solved = reward is not None and not constant and robust.direction(reward, 1.0) == 1 and _near_best(reward)
    said = (
        [] if level is None else [f"in {level:.0%} of the groups all rewards are equal, in the last fifth of the run"]
    )
    said += [f"the reward is {reward.values[0]:g} at all {len(reward)} steps"] if constant and reward else []
    said += ["the spread of rewards is 0"] if no_spread else []
    return Finding(
        name="equal_rewards",
        severity="note" if solved else "warning",
        confidence="high",
        title="the tasks are solved: hardly a group teaches anything"
        if solved
        else "rewards do not vary within groups",
        evidence=tuple(said),
        rests_on="rewards within groups" if not constant else "a reward that never changes",
        turn=knob(run.engine, "prompts"),
    )


def lost_reward(run: Run) -> Finding | None:
    """A reward that was there and is gone: a tenth of its level or less over the last tenth of the run, or 8 points.

    The level is the second largest mean of equally long parts before. Of several stages the last one is looked at. A
    reward that is below 0 somewhere has no level at which it is gone.
    """
    reward = stages.current(run, run.get("reward"))
    size = 0 if reward is None else max(robust.MIN_POINTS, len(reward) // 10)
    if reward is None or len(reward) < 3 * size or min(reward.values) < 0:
        return None
    earlier, late = reward.values[:-size], reward.values[-size:]
    level, now = _level_of_parts(earlier, size), fmean(late)
    doubt = stdev(earlier) / math.sqrt(size)
    if now > LOST * level or max(late) > HALF * level or fmean(earlier) - now <= SURELY_LOST * doubt or level <= 0:
        return None
    since = reward.steps[-_count_from_end(reward.values, HALF * level)]
    return Finding(
        name="lost_reward",
        severity="error",
        confidence="high",
        title=f"the reward was at {level:.3g} and is gone",
        evidence=(f"{now:.3g} on average over the last {size} points; below half of its level since step {since:g}",),
        rests_on="a reward that was there for several parts of the run and is not at any point of the last",
        turn=f"{knob(run.engine, 'rate')}, from a checkpoint before step {since:g}; read completions of both sides of"
        " that step",
        steps=(since, reward.steps[-1]),
        numbers={"level": level, "end": now},
    )


def _level_of_parts(values: Sequence[float], size: int) -> float:
    """The second largest mean of consecutive parts of `size` values."""
    means = [fmean(values[i : i + size]) for i in range(0, len(values) - size + 1, size)]
    return sorted(means)[-2]


def _count_from_end(values: Sequence[float], bound: float) -> int:
    """How many values at the end lie at or below the bound."""
    return next((n for n, x in enumerate(reversed(values)) if x > bound), len(values))


def _near_best(reward: Series) -> bool:
    """Whether a reward ends at the top of what it has been and, if it is a share, near 1."""
    values = robust.blocks(reward, 20).values
    top = max(values)
    return robust.end(reward) >= 0.9 * top and (top > 1 or fmean(values[-3:]) >= 0.75)
