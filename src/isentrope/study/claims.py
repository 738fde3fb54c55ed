"""The claims of the study, in the order of its page."""

from __future__ import annotations

from collections.abc import Callable

from isentrope.study import claims_control as control
from isentrope.study import claims_entropy as entropy
from isentrope.study import claims_outcome as outcome
from isentrope.study.verdict import Claim, Study

CLAIMS: tuple[Callable[[Study], Claim], ...] = (
    entropy.grpo_fastest,
    entropy.more_at_equal_reward,
    entropy.dapo_keeps_more,
    entropy.dapo_overshoots,
    entropy.ce_gppo_between,
    entropy.keep_low_lowers,
    entropy.keep_high_raises,
    entropy.ce_gppo_stable,
    entropy.cispo_unstable,
    control.neutral_step,
    control.repo_r_holds,
    control.adapo_holds,
    control.prediction_matches,
    control.prediction_from_samples,
    outcome.entropy_and_accuracy,
    outcome.collapsed_learns_worse,
    control.precision_lowers,
    outcome.low_entropy_dominates,
    outcome.gepo_keeps_regimes,
    control.bonus_is_sensitive,
    entropy.covariance_keeps,
    entropy.on_policy_falls,
    outcome.certainty_costs_variety,
)
