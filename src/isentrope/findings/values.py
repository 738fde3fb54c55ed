"""Numbers that cannot be, or are not what they are called; and two policies that are not the same."""

from __future__ import annotations

import math
from statistics import fmean, median

from isentrope.findings import robust, stages
from isentrope.findings.base import Finding
from isentrope.findings.knobs import knob
from isentrope.run import Run, Series

ROUNDING = 1e-3  # nats; what sums in float32 may be off
SAME = 2e-3  # relative; two curves of the same number, one perhaps written with fewer digits
LIKE = 0.9  # share of tokens
KL_MISMATCH, KL_BROKEN = 0.01, 0.1  # nats; vLLM or SGLang in bf16 against a bf16 trainer lies at .0005 to .002
LOGP_MISMATCH = 0.1  # nats, mean absolute difference; .01 to .02 in bf16
P_MISMATCH = 0.01  # mean absolute difference of probabilities; verl's own advice is to look from here
GROWN = 5.0  # times the mismatch at the start
GROWN_LEAST = 0.2  # of the thresholds: growth from nothing to next to nothing is none
NUMERICAL = 0.005  # share of tokens that number formats alone clip; 0 in float32
STILL = 1e-7  # a ratio or KL that differs from on-policy by less has not moved


def impossible(run: Run) -> Finding | None:
    """Entropy below 0, above log V, NaN or infinite; probabilities above 1."""
    reasons = [*_impossible_curve(run), *_impossible_tokens(run)]
    if not reasons:
        return None
    return Finding(
        name="impossible",
        severity="error",
        confidence="high",
        title="values that cannot be",
        evidence=tuple(reasons),
        rests_on="what an entropy can be: 0 to log V",
        turn="the entropy's code: mask out padding (negative), x log x = 0 at 0 (NaN), no sum over tokens for a mean"
        " (too large)",
    )


def _impossible_curve(run: Run) -> list[str]:
    said = []
    for name, series in run.series.items():
        if name.partition("/")[0] != "entropy":
            continue
        at = list(zip(series.steps, series.values, strict=True))
        said += _where(name, "is not finite", [s for s, v in at if not math.isfinite(v)], len(at))
        said += _where(name, "is negative", [s for s, v in at if v < -ROUNDING and math.isfinite(v)], len(at))
        if run.facts.vocabulary:
            top = math.log(run.facts.vocabulary)
            over = [s for s, v in at if math.isfinite(v) and v > top + ROUNDING]
            said += _where(name, f"is above log V = {top:.3f}", over, len(at))
    return said


def _where(name: str, what: str, steps: list[float], total: int) -> list[str]:
    if not steps:
        return []
    first = ", ".join(f"{step:g}" for step in steps[:3]) + (", ..." if len(steps) > 3 else "")
    return [f"{name} {what} at {len(steps)} of {total} steps ({first})"]


def _impossible_tokens(run: Run) -> list[str]:
    words = {
        "below_zero": "an entropy below 0",
        "above_log_v": "an entropy above log V",
        "not_finite": "an entropy that is not finite",
        "above_one": "a probability above 1",
    }
    said = []
    if _tokens_are_estimates(run):
        del words["above_log_v"]  # -logp of a rare token may be that large
    for name, what in words.items():
        series = run.get(f"tokens/{name}")
        if series is not None and max(series.values) > 0:
            said.append(f"{fmean(series.values):.2%} of the dumped tokens have {what}")
    return said


# -- meaning ----------------------------------------------------------------------------------------


def definition_jump(run: Run) -> robust.Jump | None:
    """A jump of the entropy that neither reward nor length takes part in nor a new stage explains; None without one."""
    series = run.get("entropy")
    found = None if series is None else robust.jump(series)
    if series is None or found is None:
        return None
    before = max((step for step in series.steps if step < found.step), default=found.step)
    if stages.is_at_boundary(run, before, found.step):
        return None
    return None if any(_jumps_too(run.get(name), found.step) for name in ("reward", "length")) else found


def _jumps_too(series: Series | None, step: float) -> bool:
    if series is None:
        return False
    earlier = [v for s, v in zip(series.steps, series.values, strict=True) if s < step][-6:]
    later = series.since(step).values[:6]
    if len(earlier) < 3 or len(later) < 3:
        return False
    change = abs(median(later) - median(earlier))
    return change > max(4 * robust.noise(series.values), 0.1 * max(abs(median(earlier)), abs(median(later))))


def definition_change(run: Run) -> Finding | None:
    """Entropy that jumps from one step to the next while reward and length go on: the number has another meaning."""
    found = definition_jump(run)
    if found is None:
        return None
    seen = [name for name in ("reward", "length") if run.get(name) is not None]
    return Finding(
        name="definition_change",
        severity="warning",
        confidence="high" if seen else "low",
        title=f"entropy jumps at step {found.step:g}, as if its definition or the temperature had changed",
        evidence=(
            f"{found.before:.3g} nats before, {found.after:.3g} from step {found.step:g} on"
            f" ({found.after / found.before if found.before else math.inf:.2f} times), and steady on both sides",
            *(f"{name} goes on as before" for name in seen),
        ),
        rests_on="a jump between two steps" + (f" without one in {' or '.join(seen)}" if seen else " alone"),
        turn=knob(run.engine, "temperature") + "; mask and logits it is taken from, around that step",
        steps=(found.step, found.step),
        numbers={"before": found.before, "after": found.after},
    )


def estimate(run: Run) -> Finding | None:
    """A curve called entropy that is the mean of -logp, a noisy estimate of it, and not the exact number."""
    if run.facts.entropy_kind == "estimate":
        return None
    share = run.get("tokens/is_estimate")
    if share is not None and _tokens_are_estimates(run):
        return _estimate(f"for {median(share.values):.0%} of the tokens the entropy is exactly -logp", "tokens")
    series, other = run.get("entropy"), run.get("surprisal", "tokens/surprisal")
    if series is None or other is None:
        return None
    both = dict(zip(other.steps, other.values, strict=True))
    pairs = [(v, both[s]) for s, v in zip(series.steps, series.values, strict=True) if s in both]
    close = sum(abs(a - b) <= SAME * max(abs(a), 1e-3) for a, b in pairs)
    if len(pairs) < 3 or close < LIKE * len(pairs):
        return None
    return _estimate(f"entropy equals the mean of -logp at {close} of {len(pairs)} steps", "the curves")


def _tokens_are_estimates(run: Run) -> bool:
    share = run.get("tokens/is_estimate")
    return share is not None and median(share.values) >= LIKE


def _estimate(evidence: str, where: str) -> Finding:
    return Finding(
        name="estimate",
        severity="warning",
        confidence="high",
        title="the number called entropy is an estimate, the mean of -logp",
        evidence=(
            evidence,
            "it is right on average for the policy that sampled, noisier, and wrong for a policy that has moved since",
        ),
        rests_on=f"equality in {where}",
        turn="the exact entropy of the softmax, from the logits; or call the number an estimate",
    )


# -- two policies that should be one ----------------------------------------------------------------


def mismatch(run: Run) -> Finding | None:
    """Sampler and trainer that disagree more than bf16 explains, or ever more."""
    for name, bound, unit in (
        ("kl_rollout", KL_MISMATCH, "nats of KL"),
        ("mismatch", LOGP_MISMATCH, "nats"),
        ("mismatch_p", P_MISMATCH, "in probability"),
    ):
        series = run.get(name)
        if series is None:
            continue
        level = abs(robust.end(series, 0.34))
        first = abs(robust.start(series))
        grows = level >= GROWN * first and level >= GROWN_LEAST * bound and len(series) >= robust.MIN_POINTS
        if level >= bound or grows:
            return _mismatch(run, name, series, first, level, bound, unit)
    return None


def _mismatch(run: Run, name: str, series: Series, first: float, level: float, bound: float, unit: str) -> Finding:
    grown = f"; {level / first:.1f} times the start" if first > 0 and level >= 2 * first else ""
    return Finding(
        name="mismatch",
        severity="error" if name == "kl_rollout" and level >= KL_BROKEN else "warning",
        confidence="high" if level >= 2 * bound else "medium",
        title="sampler and trainer disagree about the probabilities of the tokens",
        evidence=(
            f"{name}: {level:.3g} {unit} in the last third{grown}; from {bound:g} on it is more than rounding",
            "stale rollouts (asynchronous training), truncated sampling (top-p, top-k), a temperature on one side only,"
            " other kernels or experts routed otherwise look like this",
        ),
        rests_on=f"the level of {name} over {len(series)} steps",
        turn=knob(run.engine, "correction"),
        steps=(series.steps[0], series.steps[-1]),
        numbers={"level": level, "start": first},
    )


def precision(run: Run) -> Finding | None:
    """Log-probabilities rounded to bf16, or ratios that leave 1 though the weights have not changed."""
    reasons = [*_on_grid(run), *_clipped_numerically(run), *_clipped_at_rest(run)]
    if not reasons:
        return None
    return Finding(
        name="precision",
        severity="warning",
        confidence="high",
        title="number formats move the ratios",
        evidence=(
            *reasons,
            "rounding raises the ratio, most for rare tokens, and takes them over the upper bound: entropy falls",
        ),
        rests_on="the log-probabilities themselves" if len(_on_grid(run)) else "clipping without a change of weights",
        turn=knob(run.engine, "precision"),
    )


def _on_grid(run: Run) -> list[str]:
    share = run.get("tokens/on_grid")
    if share is None or median(share.values) < LIKE:
        return []
    return [f"{median(share.values):.0%} of the log-probabilities are bf16 numbers (by chance: 1 in 65,536)"]


def _clipped_numerically(run: Run) -> list[str]:
    """Clipping that the engine has measured where every ratio should be 1."""
    sides = [run.get(f"clip_numerical_{side}") for side in ("low", "high")]
    share = sum(median(s.values) for s in sides if s is not None)
    if share < NUMERICAL:
        return []
    return [f"{share:.2%} of the tokens are clipped at the first update of a rollout, where every ratio should be 1"]


def _clipped_at_rest(run: Run) -> list[str]:
    """Clipping where the policy cannot have moved: learning rate 0, or one update a rollout batch."""
    said = []
    rate = run.get("learning_rate")
    for name in ("clip", "clip_low", "clip_high"):
        series = run.get(name)
        if series is None:
            continue
        if rate is not None:
            still = {s for s, v in zip(rate.steps, rate.values, strict=True) if v == 0}
            at = [v for s, v in zip(series.steps, series.values, strict=True) if s in still]
            if len(at) >= 3 and median(at) > 0:
                said.append(f"at learning rate 0, {median(at):.2%} of the tokens are clipped ({name}, {len(at)} steps)")
        if run.facts.updates_per_rollout == 1 and robust.end(series, 1.0) > STILL:
            said.append(
                f"with 1 update a rollout batch, {robust.end(series, 1.0):.2%} of the tokens are clipped ({name})"
            )
    return said
