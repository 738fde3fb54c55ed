"""Curves that help to read the others; each is drawn where a run has it."""

from isentrope.report.chart import Axis

SHARE = Axis("share of tokens", share=True, low=0.0)

# id, title, about, axis, names of the curve in order of preference
EXTRAS: tuple[tuple[str, str, str, Axis, tuple[str, ...]], ...] = (
    (
        "length",
        "Completion length",
        "Mean over completions.",
        Axis("tokens", low=0.0),
        ("completions/mean_length", "length"),
    ),
    (
        "truncated",
        "Cut by the length limit",
        "Completions that ended at the limit, not by themselves.",
        Axis("share of completions", share=True, low=0.0),
        ("completions/clipped_ratio", "truncated"),
    ),
    ("clip", "Clipped at either bound", "Where the sides are not told apart.", SHARE, ("clip",)),
    ("kl-old", "Distance from the rollout's policy", "KL divergence, k3 estimate.", Axis("nats"), ("kl_old",)),
    ("grad-norm", "Gradient norm", "Before clipping.", Axis("norm", low=0.0), ("grad_norm",)),
    (
        "changed",
        "Tokens that the rules changed",
        "Share of tokens whose weight differs from plain PPO's at .2/.2.",
        SHARE,
        ("diagnostics/changed",),
    ),
    (
        "sample-size",
        "Effective sample size",
        "(sum r)\u00b2 / (N sum r\u00b2): 100% on-policy, less where few tokens carry the weight.",
        Axis("share of tokens", share=True, high=1.0),
        ("diagnostics/effective_sample_size",),
    ),
    (
        "covariance",
        "Covariance of advantage and log-probability",
        "Above zero, a natural-gradient step lowers the entropy.",
        Axis("nats times advantage"),
        ("diagnostics/covariance",),
    ),
    (
        "heterogeneity",
        "Differences between tasks",
        "Share of the variance of the prompts' entropies that lies between tasks.",
        Axis("share of variance", share=True, low=0.0, high=1.0),
        ("diagnostics/heterogeneity",),
    ),
    (
        "in-band",
        "Problems within the curriculum's band",
        "Of the problems sampled so far, those whose running pass rate is neither too low nor too high.",
        Axis("share of problems", share=True, low=0.0, high=1.0),
        ("curriculum/in_band",),
    ),
    (
        "drawn-pass-rate",
        "Pass rate of the problems that the curriculum draws",
        "Running rate before the rollout, mean over its problems that were sampled before.",
        Axis("pass rate", share=True, low=0.0, high=1.0),
        ("curriculum/pass_rate",),
    ),
    (
        "gradient-noise",
        "Gradient noise scale",
        "About the batch size at which noise and signal are equal.",
        Axis("completions", low=0.0),
        ("diagnostics/gradient_noise",),
    ),
    (
        "kl-rollout",
        "Sampler against trainer",
        "KL divergence, k3 estimate.",
        Axis("nats"),
        ("kl_rollout", "diagnostics/kl_rollout"),
    ),
)
