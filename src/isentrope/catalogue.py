"""What is known of each preset besides its code: the paper, what it changes, what that does to entropy, its numbers and
where the paper prints them. `isentrope list` and `isentrope show` read it; a test holds docs/papers.md to it.

Values are read from the preset, formulas from the docstrings of its rules: neither is written a second time.
"""

from dataclasses import dataclass, fields
from typing import Any

from isentrope import masked, presets, spec
from isentrope.objective import Objective

OURS = "ours"  # in the place of a number that the paper leaves open, or of a paper where there is none
RAISES, LOWERS = "raises", "lowers"  # what more of a knob does to entropy

_PAPERS = {
    "1707.06347": "Proximal Policy Optimization Algorithms",
    "2402.03300": "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
    "2402.14740": "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
    "2501.03262": "REINFORCE++",
    "2503.14476": "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    "2503.20783": "Understanding R1-Zero-Like Training: A Critical Perspective",
    "2505.22312": "Skywork Open Reasoner 1 Technical Report",
    "2505.22617": "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models",
    "2506.01347": "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    "2506.01939": "Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM "
    "Reasoning",
    "2506.13585": "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
    "2507.18071": "Group Sequence Policy Optimization",
    "2507.20673": "Geometric-Mean Policy Optimization",
    "2508.07629": "Klear-Reasoner: Advancing Reasoning Capability via Gradient-Preserving Clipping Policy Optimization",
    "2509.20712": "CE-GPPO: Coordinating Entropy via Gradient-Preserving Clipping Policy Optimization in Reinforcement "
    "Learning",
    "2509.22611": "Quantile Advantage Estimation for Entropy-Safe Reasoning",
    "2510.08141": "Arbitrary Entropy Policy Optimization Breaks The Exploration Bottleneck of Reinforcement Learning",
    "2511.20347": "Soft Adaptive Policy Optimization",
    "2512.05591": "Entropy Ratio Clipping as a Soft Global Constraint for Stable Reinforcement Learning",
    "2512.12967": "Post-Training Recipe for Long-Context Reasoning and Memory Management",
    "2603.11682": "Entropy-Preserving Reinforcement Learning",
    "2607.16850": "Group-entropy control",
    OURS: "Beyond the papers: accuracy against entropy kept",
}


@dataclass(frozen=True)
class Figure:
    """One number, or one formula, of a paper.

    name: as docs/papers.md has it.  place: section, equation, or what else is known; OURS, or "" where nothing is.
    paths: where the preset holds it, such as "surrogate.low"; none for a formula.
    constant: a number that the library holds elsewhere, or fixes by leaving a slot empty.
    """

    name: str
    place: str = ""
    paths: tuple[str, ...] = ()
    constant: float | None = None

    def values(self, objective: Objective) -> tuple[Any, ...]:
        """The numbers that the objective holds; None for a bound that is off."""
        held = tuple(at(objective, path) for path in self.paths)
        return held if self.constant is None else (*held, self.constant)


@dataclass(frozen=True)
class Entry:
    """A preset's row in the index.

    arxiv: id, or OURS.  changes: what the preset does that GRPO does not.  entropy: what becomes of entropy.
    knobs: path of a number -> what more of it does to entropy, RAISES or LOWERS.
    """

    arxiv: str
    changes: str
    entropy: str
    figures: tuple[Figure, ...] = ()
    knobs: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The paper's title."""
        return _PAPERS[self.arxiv]


def _clip(place: str = "") -> Figure:
    return Figure("clip, low and high", place, ("surrogate.low", "surrogate.high"))


_CLIP_KNOBS = (("surrogate.low", LOWERS), ("surrogate.high", RAISES))
_ZETA_KNOB = (("shaping.0.zeta", RAISES),)
_DAPO_FIGURES = (
    Figure("clip, low", "sec. 4.1", ("surrogate.low",)),
    Figure("clip, high", "sec. 4.1", ("surrogate.high",)),
    Figure("aggregation", "sec. 3.3"),
    Figure("filter", "sec. 3.2"),
)
_COVARIANCE = ("2505.22617", "holds back the tokens of highest covariance", "falls less")
_REPO = ("2603.11682", "takes the correlation with log-probability out of the advantage", "steered to a target")


def _signed(name: str, place: str, entropy: str) -> Entry:
    weights = Figure(name, place, ("advantage.lambda_pos", "advantage.lambda_neg"))
    threshold = Figure("threshold", OURS, ("advantage.threshold",))
    changes = "learns from failures, from successes, from both"
    return Entry("2506.01347", changes, entropy, (weights, threshold), (("advantage.lambda_pos", LOWERS),))


def _repo(name: str) -> Entry:
    zeta = "shaping.0.zeta"
    start = Figure(f"`{name}`: zeta start, bounds", "", (f"{zeta}.start", f"{zeta}.low", f"{zeta}.high"))
    return Entry(*_REPO, (start, Figure("zeta's rule")), _ZETA_KNOB)


ENTRIES: dict[str, Entry] = {
    "ppo": Entry(
        "1707.06347",
        "a critic's advantage (GAE)",
        "tends to fall",
        (_clip("sec. 6.1"), Figure("gamma, lambda", OURS, ("advantage.gamma", "advantage.lam"))),
        _CLIP_KNOBS,
    ),
    "grpo": Entry(
        "2402.03300",
        "mean over rows of token means",
        "tends to fall",
        (Figure("advantage", "sec. 4.1.2"), _clip(OURS), Figure("KL coefficient", OURS, constant=0.0)),
        _CLIP_KNOBS,
    ),
    "dr_grpo": Entry(
        "2503.20783",
        "no division by the std, constant length",
        "tends to fall",
        (Figure("advantage", "the paper's own proposal"), Figure("divisor", "L_max is the length limit")),
        _CLIP_KNOBS,
    ),
    "dapo": Entry(
        "2503.14476",
        "upper bound .28, groups of equal reward left out",
        "falls less; may climb",
        _DAPO_FIGURES,
        _CLIP_KNOBS,
    ),
    "dapo_full": Entry(
        "2503.14476",
        "dapo with resampling, overlong penalty and overlong filter",
        "falls less; may climb",
        (
            *_DAPO_FIGURES,
            Figure("overlong buffer", "sec. 4.1", ("advantage.buffer",)),
            Figure("rounds of resampling", "the public scripts", ("rollout.rounds",)),
        ),
        _CLIP_KNOBS,
    ),
    "qae": Entry(
        "2509.22611",
        "a quantile of the group's rewards as baseline",
        "bounded on both sides",
        (Figure("quantile K", OURS, ("advantage.quantile",)),),
        (*_CLIP_KNOBS, ("advantage.quantile", RAISES)),
    ),
    "gspo": Entry(
        "2507.18071",
        "ratio and clip of the whole sequence",
        "follows the clip bounds",
        (_clip("sec. 5.1 (v2)"), Figure("ratio", "the paper's definition of s")),
        _CLIP_KNOBS,
    ),
    "cispo": Entry(
        "2506.13585",
        "clips the weight, keeps the gradient",
        "rare tokens keep their gradient",
        (
            Figure("lower bound", "the paper sets it so low that it never acts", ("surrogate.low",)),
            Figure("upper bound", OURS, ("surrogate.high",)),
        ),
        (("surrogate.high", RAISES),),
    ),
    "rloo": Entry(
        "2402.14740",
        "leave-one-out baseline, plain policy gradient",
        "tends to fall",
        (Figure("advantage", "the leave-one-out baseline"),),
    ),
    "reinforce_pp": Entry(
        "2501.03262",
        "advantage whitened over the batch",
        "tends to fall",
        (
            Figure("advantage", "the variant with baseline"),
            Figure("under the root", "common in public implementations", constant=masked.VARIANCE_EPS),
        ),
        _CLIP_KNOBS,
    ),
    "nsr": _signed("`nsr`: weight of successes, of failures", "the paper's negative sample reinforcement", "kept"),
    "psr": _signed("`psr`", "positive counterpart", "falls fast"),
    "w_reinforce": _signed("`w_reinforce`", "the paper's weighted mix", "kept (nsr), falls fast (psr)"),
    "gppo": Entry(
        "2508.07629",
        "clipped tokens keep a bounded gradient",
        "both sides at once",
        (
            _clip(),
            Figure(
                "keep, low and high", "CE-GPPO with both factors at 1", ("surrogate.keep_low", "surrogate.keep_high")
            ),
        ),
        (("surrogate.keep_low", LOWERS), ("surrogate.keep_high", RAISES)),
    ),
    "ce_gppo": Entry(
        "2509.20712",
        "clipped tokens keep a bounded gradient, with a knob a side",
        "steered by two knobs",
        (
            Figure("the loss", "Eq. 8"),
            _clip(),
            Figure(
                "`keep_low` (beta1), `keep_high` (beta2)",
                "the setting for 1.5B models",
                ("surrogate.keep_low", "surrogate.keep_high"),
            ),
        ),
        (("surrogate.keep_low", LOWERS), ("surrogate.keep_high", RAISES)),
    ),
    "repo_d": _repo("repo_d"),
    "repo_r": _repo("repo_r"),
    "adapo": Entry(
        "2603.11682",
        "upper clip bound moves with entropy",
        "steered to a target",
        (
            Figure("clip, low", "", ("surrogate.low",)),
            Figure("clip, high: start", OURS, ("surrogate.high.start",)),
            Figure("rate, bounds", OURS, tuple(f"surrogate.high.{name}" for name in ("rate", "low", "high"))),
            Figure("target", OURS, ("surrogate.high.target",)),
        ),
        (("surrogate.high", RAISES),),
    ),
    "gepo": Entry(
        "2607.16850",
        "scales advantages of groups whose entropy is unusual",
        "kept in a band",
        (
            Figure("alpha_low, alpha_high", "", ("shaping.0.alpha_low", "shaping.0.alpha_high")),
            Figure("beta_low, beta_high", "", ("shaping.0.low.offset", "shaping.0.high.offset")),
            Figure("gamma", "", ("shaping.0.low.gamma", "shaping.0.high.gamma")),
        ),
        (("shaping.0.alpha_low", LOWERS), ("shaping.0.alpha_high", RAISES)),
    ),
    "aepo": Entry(
        "2512.12967",
        "failures wait while entropy is high",
        "bounded from above",
        (Figure("upper and lower threshold", OURS, ("select.0.on.high", "select.0.on.low")),),
    ),
    "arbitrary_entropy": Entry(
        "2510.08141",
        "successes sampled at a temperature that follows entropy pull the policy",
        "steered to a target",
        (
            Figure(
                "temperature under, over the target",
                "the public code",
                ("rollout.temperature.below", "rollout.temperature.above"),
            ),
            Figure("target", "one of several that the paper holds", ("rollout.temperature.target",)),
            Figure("share of prompts", "", ("rollout.share",)),
            Figure("coefficient", "", ("surrogate.coef",)),
        ),
        (("rollout.temperature", RAISES),),
    ),
    "clip_cov": Entry(
        *_COVARIANCE,
        (
            Figure("`clip_cov`: ratio", "", ("surrogate.ratio",)),
            Figure("covariance band", "", ("surrogate.cov_low", "surrogate.cov_high")),
        ),
        (("surrogate.ratio", RAISES),),
    ),
    "kl_cov": Entry(
        *_COVARIANCE,
        (
            Figure("`kl_cov`: k", "the setting for 7B models", ("surrogate.k",)),
            Figure("coefficient", "", ("surrogate.coef",)),
        ),
        (("surrogate.k", RAISES), ("surrogate.coef", RAISES)),
    ),
    "high_entropy": Entry(
        "2506.01939",
        "trains the fifth of tokens with the highest entropy",
        "kept higher",
        (Figure("rho", "the paper's title", ("select.0.rho",)),),
    ),
    "gmpo": Entry(
        "2507.20673",
        "geometric mean over the tokens of a row",
        "falls less",
        (Figure("bound on log r", "", ("surrogate.clip",)),),
    ),
    "sapo": Entry(
        "2511.20347",
        "a sigmoid in place of the clip",
        "follows the temperatures",
        (
            Figure(
                "tau for positive, other advantages",
                "the paper's recommended values",
                ("surrogate.tau_pos", "surrogate.tau_neg"),
            ),
        ),
    ),
    "erc": Entry(
        "2512.05591",
        "no gradient where entropy itself moved too far",
        "bounded step by step",
        (Figure("band of the entropy ratio", "", ("surrogate.low", "surrogate.high")),),
    ),
    "entropy_bonus": Entry(
        "1707.06347",
        "adds coef · entropy",
        "raised, easily too far",
        (Figure("coefficient", OURS, ("penalties.0.coef",)),),
        (("penalties.0.coef", RAISES),),
    ),
    "adaptive_entropy": Entry(
        "2505.22312",
        "the bonus acts only below a target",
        "lifted to a target",
        (
            Figure("target", "", ("penalties.0.target", "penalties.0.coef.target")),
            Figure(
                "coefficient: start, step, bounds",
                "",
                tuple(f"penalties.0.coef.{name}" for name in ("start", "step", "low", "high")),
            ),
        ),
        (("penalties.0.coef", RAISES),),
    ),
    "half_drift_bonus": Entry(
        OURS,
        "experimental: takes out half of the first-order entropy change, adds coef · entropy",
        "falls less, held off 0",
        (
            Figure("share of the drift taken out", OURS, ("shaping.0.zeta",)),
            Figure("coefficient", OURS, ("penalties.0.coef",)),
        ),
        (("shaping.0.zeta", RAISES), ("penalties.0.coef", RAISES)),
    ),
}


def at(node: Any, path: str) -> Any:
    """What an objective holds at a path such as "shaping.0.zeta"."""
    for name in path.split("."):
        node = node[int(name)] if name.isdigit() else getattr(node, name)
    return node


def title_of(arxiv: str) -> str:
    """The title of a paper by its arXiv id; "" for one that is not in the index."""
    return _PAPERS.get(arxiv, "")


def closest_preset(objective: Objective) -> tuple[str, tuple[str, ...]]:
    """The preset that differs from the objective in the fewest places, and these places; none for a preset itself."""
    found = {name: tuple(spec.difference(getattr(presets, name), objective)) for name in presets.names()}
    return min(found.items(), key=lambda item: len(item[1]))


def slots_changed(objective: Objective, base: Objective = presets.grpo) -> tuple[str, ...]:
    """The slots in which an objective differs from a base."""
    changed = {path.split(".")[0] for path in spec.difference(base, objective)}
    return tuple(f.name for f in fields(Objective) if f.name in changed)
