"""The names by which engines log what a `Run` holds, and how to recognise an engine by them.

`KEYS[engine][ours]` are that engine's names in order of preference; the first that a file has is taken. A prefix that
a logger adds ("train/" of TRL under W&B) is stripped where the name is not known with it. Checked against the sources
of TRL 1.16, verl 0.9, ms-swift 3 and 4, slime and prime-rl.
"""

import re
from collections.abc import Collection, Mapping, Sequence

Names = Mapping[str, tuple[str, ...]]

_TRL: Names = {
    "entropy": ("entropy/current_exact", "entropy", "entropy/old_exact"),
    "surprisal": ("surprisal",),
    "reward": ("reward",),
    "reward_std": ("reward_std",),
    "zero_std": ("frac_reward_zero_std",),
    "length": ("completions/mean_length", "completion_length"),
    "truncated": ("completions/clipped_ratio",),
    "clip_low": ("clip/low", "clip_ratio/low_mean"),
    "clip_high": ("clip/high", "clip_ratio/high_mean"),
    "clip": ("clip_ratio/region_mean", "clip_ratio"),
    "clip_numerical_low": ("clip/numerical_low",),
    "clip_numerical_high": ("clip/numerical_high",),
    "lost_gradient_low": ("diagnostics/lost_gradient/low",),
    "lost_gradient_high": ("diagnostics/lost_gradient/high",),
    "ratio": ("ratio/mean",),
    "kl_old": ("kl_old",),
    "kl_ref": ("kl",),
    "kl_rollout": ("kl_rollout",),
    "mismatch": ("sampling/sampling_logp_difference/mean",),
    "grad_norm": ("grad_norm",),
    "learning_rate": ("learning_rate",),
    "loss": ("loss",),
    "entropy_coef": ("entropy_coef",),
}
KEYS: Mapping[str, Names] = {
    "isentrope": {**_TRL, "stage": ("stage",)},
    "trl": _TRL,
    "ms-swift": {
        **_TRL,
        "entropy": ("entropy/mean", "entropy"),
        "kl_rollout": ("rollout_correction/k3_kl", "rollout_correction/kl"),
    },
    "verl": {
        "entropy": ("actor/entropy", "actor/entropy_loss"),  # old versions call the entropy a loss
        "surprisal": ("rollout_corr/training_log_ppl", "mismatch/mismatch_training_log_ppl"),
        "reward": ("critic/score/mean", "critic/rewards/mean"),
        "length": ("response_length/mean",),
        "truncated": ("response_length/clip_ratio",),
        "clip": ("actor/pg_clipfrac",),
        "clip_low": ("clip/low",),
        "clip_high": ("clip/high", "actor/pg_clipfrac_higher"),
        "ratio": ("ratio/mean",),
        "kl_old": ("kl_old", "actor/ppo_kl"),
        "kl_ref": ("actor/kl_loss", "actor/reward_kl_penalty"),
        "kl_rollout": ("rollout_corr/k3_kl", "rollout_corr/kl", "mismatch/mismatch_k3_kl", "mismatch/mismatch_kl"),
        "mismatch_p": ("training/rollout_probs_diff_mean",),
        "grad_norm": ("actor/grad_norm",),
        "learning_rate": ("actor/lr",),
        "loss": ("actor/pg_loss",),
        "entropy_coef": ("actor/entropy_coeff",),
    },
    "slime": {
        "entropy": ("rollout/entropy", "train/entropy_loss"),
        "reward": ("rollout/raw_reward", "rollout/rewards"),
        "zero_std": ("rollout/zero_std/count_0_share",),
        "length": ("rollout/response_len/mean", "rollout/response_lengths"),
        "truncated": ("rollout/truncated_ratio", "rollout/truncated"),
        "clip": ("train/pg_clipfrac",),
        "kl_old": ("train/ppo_kl",),
        "kl_ref": ("train/kl_loss",),
        "kl_rollout": ("train/train_rollout_kl", "train/mis_k3_kl", "train/mis_kl"),
        "mismatch": ("train/train_rollout_logprob_abs_diff",),
        "grad_norm": ("train/grad_norm",),
        "loss": ("train/loss",),
    },
    "prime-rl": {
        "entropy": ("entropy/all/mean", "entropy/mean"),
        "reward": ("reward/all/mean", "reward/mean"),
        "zero_std": ("batch/solve_none_and_all",),
        "length": ("seq_len/all/mean", "decode_len/all/mean", "seq_len/mean"),
        "truncated": ("is_truncated/all/mean", "is_truncated/mean"),
        "clip": ("is_masked/all/mean", "is_masked/mean"),
        "clip_low": ("is_masked_low/all/mean", "is_masked_low/mean"),
        "clip_high": ("is_masked_high/all/mean", "is_masked_high/mean"),
        "kl_rollout": ("mismatch_kl/all/mean", "mismatch_kl/mean"),
        "grad_norm": ("optim/grad_norm",),
        "learning_rate": ("optim/lr",),
        "loss": ("loss/mean",),
    },
}

# Names that only one engine logs; first match wins.
MARKS: Sequence[tuple[str, re.Pattern[str]]] = (
    ("verl", re.compile(r"(actor/pg_|critic/(score|rewards)/|timing_s/|global_seqlen/|response_length/)")),
    ("slime", re.compile(r"(rollout/raw_reward|train/train_rollout_logprob|train/pg_clipfrac|rollout/step$)")),
    ("prime-rl", re.compile(r"(mismatch_kl/|is_masked(_\w+)?/|optim/)")),
    ("ms-swift", re.compile(r"(global_step/max_steps|train_speed\(|entropy/mean$)")),
    ("isentrope", re.compile(r"(entropy/current_exact|controller/)")),
    ("trl", re.compile(r"(completions/mean_length|clip_ratio/|frac_reward_zero_std|reward_std)")),
)
STEP_NAMES = (
    "step",
    "global_step",
    "train/global_step",
    "training/global_step",
    "trainer/global_step",
    "_step",
    "Step",
    "rollout/step",
    "train/step",
    "iteration",
)
PREFIXES = ("train/", "diagnostics/", "isentrope/")
ENGINES = tuple(KEYS)
_BY_TASK = re.compile(r"(?:entropy/current_exact|(?P<reward>reward))/(?P<task>[^/]+)$")
_QUADRANT = re.compile(r"change_share/(PA|NA)&(HP|LP)$")
_NO_TASKS = {"mean", "std", "max", "min", "all", "threshold"}


def engine_of(names: Collection[str]) -> str:
    """The engine that logs under such names, "" where none is recognised.

    >>> engine_of(["step", "actor/pg_clipfrac"]), engine_of(["loss"])
    ('verl', '')
    """
    for engine, pattern in MARKS:
        if any(pattern.search(name) for name in names):
            return engine
    return ""


def plan(names: Collection[str], engine: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Which of a file's names becomes which curve: {theirs: ours}; `given` {ours: theirs} goes first.

    Without an engine every table is tried, so a curve logged under any known name is found.

    >>> plan(["train/reward", "mine"], "trl", {"entropy": "mine"})
    {'mine': 'entropy', 'train/reward': 'reward'}
    """
    chosen = {theirs: ours for ours, theirs in (given or {}).items()}
    taken = set(chosen.values())
    for table in [KEYS[engine]] if engine else KEYS.values():
        for ours, candidates in table.items():
            theirs = next((n for n in candidates for n in _spellings(n) if n in names), None)
            if theirs is not None and ours not in taken and theirs not in chosen:
                chosen[theirs] = ours
                taken.add(ours)
    return _same_names(names, taken) | chosen | _patterned(names)


def _spellings(name: str) -> list[str]:
    return [name, *(prefix + name for prefix in PREFIXES)]


def _same_names(names: Collection[str], taken: Collection[str]) -> dict[str, str]:
    """Curves that already carry our name, as in a table that somebody made for this."""
    ours = {name for table in KEYS.values() for name in table} | {"distinct", "mismatch_p"}
    return {name: name for name in names if name in ours - set(taken)}


def _patterned(names: Collection[str]) -> dict[str, str]:
    """Curves of single tasks, controllers and quadrants."""
    found = {}
    for name in names:
        bare = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), name)
        if bare.startswith("controller/"):
            found[name] = bare
        elif match := _QUADRANT.search(bare):
            found[name] = match[0]
        elif (match := _BY_TASK.match(bare)) and match["task"] not in _NO_TASKS:
            found[name] = f"{'reward' if match['reward'] else 'entropy'}/{match['task']}"
    return found


def entropy_kind(engine: str, theirs: str | None) -> str | None:
    """Whether the number under an engine's own name is exact; None where the name does not say.

    TRL, verl, ms-swift, slime and prime-rl compute the softmax entropy of the logits; a column of a user's own table
    may be anything.
    """
    if theirs is None or not engine:
        return None
    return "exact" if theirs in {s for n in KEYS[engine].get("entropy", ()) for s in _spellings(n)} else None
