"""What number formats do to log-probabilities and ratios, in closed form and on a model.

A log-probability l that is stored in a format with m bits after the leading one lies on a grid of spacing u =
2^(floor(log2 |l|) - m): .03 nats at l = -5 in bfloat16. New and old log-probabilities are rounded each for itself, so
a ratio that should be 1 is exp of the difference of two rounding errors: a triangular distribution on [-u, u]. It
inflates E[r] by about u^2 / 12, most for rare tokens, and moves tokens over the upper bound of a clip (log 1.2 =
.182) more often than under the lower one (|log .8| = .223). Rare tokens of good rows then lose the gradient that
raises entropy: entropy falls.
"""

import copy
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from isentrope import masked
from isentrope.diagnostics import NUM_TENTHS, probability_bin
from isentrope.errors import IsentropeError
from isentrope.surrogate import beyond
from isentrope.tally import Tally, tally

MANTISSA_BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23, torch.float64: 52}

# -- closed form ------------------------------------------------------------------------------------


def spacing(logp: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """u = 2^(floor(log2 |l|) - m), the distance of neighbouring numbers of a format at l, in nats; 0 at l = 0.

    >>> spacing(torch.tensor([-5.0, -0.6, 0.0])).tolist()
    [0.03125, 0.00390625, 0.0]
    """
    exponent = torch.frexp(logp.double()).exponent - 1
    return masked.fill(torch.exp2((exponent - MANTISSA_BITS[dtype]).double()), logp != 0)


def expected_ratio(logp: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """E[r] of two evaluations of the same weights rounded independently: (sinh(u/2) / (u/2))^2, about 1 + u^2/12."""
    half = spacing(logp, dtype) / 2
    return torch.where(half > 0, (half.sinh() / half.clamp(min=1e-300)).square(), torch.ones_like(half))


def clip_probability(
    logp: Tensor, low: float = 0.2, high: float = 0.2, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """Probabilities that rounding alone moves a ratio of 1 under 1 - low and over 1 + high: (u - t)^2 / (2 u^2), u > t.

    t is the distance of the bound from 0 in nats: -log(1 - low) or log(1 + high).
    """
    u = spacing(logp, dtype)

    def beyond_distance(t: float) -> Tensor:
        return ((u - t).clamp(min=0) / u.clamp(min=1e-300)).square() / 2

    return beyond_distance(-math.log1p(-low)), beyond_distance(math.log1p(high))


def on_grid(logp: Tensor, dtype: torch.dtype = torch.bfloat16) -> float:
    """Share of the values below -.01 nats that a narrow format represents exactly; NaN without any.

    Values that were never rounded are on bfloat16's grid about once in 65,536; near 1 they have been. Values closer
    to 0 are left out: many are exact zeros in any format.
    """
    x = logp.detach().flatten()
    x = x[torch.isfinite(x) & (x < -0.01)]
    return float((x == x.to(dtype).to(x.dtype)).double().mean()) if len(x) else math.nan


# -- on a model -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """One way of computing log-probabilities: weights, autocast, the head's type, and what the result is rounded to."""

    name: str
    weights: torch.dtype = torch.float32
    autocast: torch.dtype | None = None
    head: torch.dtype | None = None
    output: torch.dtype | None = None


FORMATS = (
    Format("float32"),
    Format("bfloat16 autocast", autocast=torch.bfloat16),
    Format("bfloat16", weights=torch.bfloat16),
    Format("bfloat16, float32 head", weights=torch.bfloat16, head=torch.float32),
    Format("bfloat16, log-probabilities rounded", weights=torch.bfloat16, output=torch.bfloat16),
    Format("float16", weights=torch.float16),
)


@dataclass(frozen=True)
class FormatReport:
    """What one format does on the sampled tokens; shares and means over all of them.

    error: mean and largest |logp - exact|, nats; error_by_tenth: its mean by tenth of the exact probability (NaN
    where no token is). ratio_bias, ratio_spread: mean - 1 and standard deviation of the ratio between two evaluations
    of the same weights (alone against in a padded batch). clipped_low, clipped_high: share of tokens outside the band
    at learning rate 0. pull: predicted first-order entropy change per unit step and token that these ratios add to
    PPO's, over advantages +1 and -1; below 0 they lower entropy. on_bfloat16_grid: see `on_grid`.
    """

    name: str
    error: float
    largest_error: float
    error_by_tenth: tuple[float, ...]
    ratio_bias: float
    ratio_spread: float
    clipped_low: float
    clipped_high: float
    pull: float
    on_bfloat16_grid: float
    num_not_finite: int


@dataclass(frozen=True)
class ProbeReport:
    """The reports of all formats on the same tokens, the tokens in each tenth of probability, a sentence of advice."""

    num_tokens: int
    tokens_by_tenth: tuple[int, ...]
    formats: tuple[FormatReport, ...]
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Sample:
    """One prompt with its completion, as token ids."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


def probe(
    model: Any,
    sequences: Sequence[Sample],
    formats: Sequence[Format] = FORMATS,
    temperature: float = 1.0,
    batch_size: int = 8,
    low: float = 0.2,
    high: float = 0.2,
    pad: int = 0,
    progress: Callable[[str], None] | None = None,
) -> ProbeReport:
    """Compare formats on a model's own completions.

    model: a causal language model of transformers in float32; formats with narrower weights work on a copy.
    sequences: prompts with completions sampled from it. Each format evaluates every sequence twice with the same
    weights: alone, and in padded batches of `batch_size`; exact values are float32, alone. progress: called with the
    name of the format that begins. Raises IsentropeError where there is no token to score.
    """
    if not sum(len(s.completion) for s in sequences):
        raise IsentropeError("probe: the completions hold no tokens; give prompts that the model continues")
    exact = _score(model, sequences, Format("float32"), temperature, 1, pad)
    found = []
    for form in formats:
        if progress is not None:
            progress(form.name)
        cast = model if form.weights == torch.float32 else copy.deepcopy(model).to(form.weights)
        alone = _score(cast, sequences, form, temperature, 1, pad)
        together = _score(cast, sequences, form, temperature, batch_size, pad)
        found.append(_report(form.name, exact, alone, together, low, high))
    counts = torch.bincount(probability_bin(exact), minlength=NUM_TENTHS)
    return ProbeReport(len(exact), tuple(counts.tolist()), tuple(found), advice(found))


def _report(name: str, exact: Tensor, alone: Tensor, together: Tensor, low: float, high: float) -> FormatReport:
    usable = torch.isfinite(alone) & torch.isfinite(together) & torch.isfinite(exact)
    l, old, new = exact[usable].double(), alone[usable].double(), together[usable].double()
    error = (old - l).abs()
    r = masked.ratio(new - old)
    tenths = tally({"error": error}, probability_bin(l), NUM_TENTHS).means("error")
    return FormatReport(
        name=name,
        error=float(error.mean()),
        largest_error=float(error.max()) if len(error) else math.nan,
        error_by_tenth=tuple(tenths.tolist()),
        ratio_bias=float(r.mean()) - 1,
        ratio_spread=float(r.std(correction=0)),
        clipped_low=float((r < 1 - low).double().mean()),
        clipped_high=float((r > 1 + high).double().mean()),
        pull=entropy_pull(l, r, low, high),
        on_bfloat16_grid=on_grid(together),
        num_not_finite=int((~usable).sum()),
    )


def entropy_pull(logp: Tensor, ratio: Tensor, low: float = 0.2, high: float = 0.2) -> float:
    """Predicted first-order entropy change per unit step and token that wrong ratios add to PPO's clipped surrogate.

    Mean over advantages +1 and -1 of -(w(r) - w(1)) p L, w(r) = r A where PPO's clip keeps the token, else 0; L =
    logp minus its mean. logp: [N] nats. ratio: [N], between two evaluations of the same weights. Below 0: entropy is
    pulled down.
    """
    centred = logp - logp.mean()
    total = torch.zeros_like(logp)
    for sign in (1.0, -1.0):
        advantage = torch.full_like(ratio, sign)
        dropped_low, dropped_high = beyond(ratio, advantage, low, high)
        weight = masked.fill(ratio * advantage, ~(dropped_low | dropped_high))
        total = total - (weight - advantage) * logp.exp() * centred / 2
    return float(total.mean())


@dataclass(frozen=True)
class SamplerReport:
    """A sampler's log-probabilities against the trainer's, on the same tokens and weights.

    num_tokens: those with both. missing: share without the sampler's. mismatch, bias: mean |log rho| and mean log rho,
    rho = trainer / sampler, nats; mismatch_by_tenth by tenth of the trainer's probability (NaN where no token is).
    below, above: share of tokens with rho < 1 - low and rho > 1 + high.
    """

    num_tokens: int
    missing: float
    mismatch: float
    bias: float
    mismatch_by_tenth: tuple[float, ...]
    below: float
    above: float


def compare_sampler(old_logp: Tensor, rollout_logp: Tensor, low: float = 0.2, high: float = 0.2) -> SamplerReport:
    """Log-probabilities [N] of tokens as the trainer recomputed them against those the sampler reported (NaN: none).

    Raises IsentropeError where no token has both.
    """
    return sampler_report(sampler_tally(old_logp, rollout_logp, low, high))


def sampler_tally(old_logp: Tensor, rollout_logp: Tensor, low: float = 0.2, high: float = 0.2) -> Tally:
    """What `sampler_report` needs of some tokens; the tallies of parts of a dump add up to that of the whole."""
    known = torch.isfinite(rollout_logp) & torch.isfinite(old_logp)
    logp, gap = old_logp[known].double(), (old_logp - rollout_logp)[known].double()
    rho = masked.ratio(gap)
    whole = {"gap": gap, "mismatch": gap.abs(), "below": (rho < 1 - low).double(), "above": (rho > 1 + high).double()}
    by_tenth = tally({"mismatch/tenth": gap.abs()}, probability_bin(logp), NUM_TENTHS)
    return tally(whole | {"known": known.double()}) + by_tenth


def sampler_report(found: Tally) -> SamplerReport:
    """The sampler against the trainer, of `sampler_tally`. Raises IsentropeError where no token has both."""
    if "known" not in found or not found.total("known"):
        raise IsentropeError(
            "no token has the sampler's log-probability: sample with vLLM, or a rollout function that returns it"
        )
    return SamplerReport(
        num_tokens=int(found.total("known")),
        missing=1 - found.mean("known"),
        mismatch=found.mean("mismatch"),
        bias=found.mean("gap"),
        mismatch_by_tenth=tuple(found.means("mismatch/tenth").tolist()),
        below=found.mean("below"),
        above=found.mean("above"),
    )


def advice(reports: Sequence[FormatReport]) -> str:
    """One sentence: which of the formats computes ratios that a clip can be trusted with."""
    outside = {r.name: r.clipped_low + r.clipped_high for r in reports if not r.num_not_finite}
    if not outside:
        return "No format gave finite log-probabilities: use float32."
    bad = {name: share for name, share in outside.items() if share > 1e-3}
    good = [name for name in outside if name not in bad and name != "float32"]
    if not bad:
        return "Every format keeps at least 99.9% of the ratios inside the clip band at learning rate 0."
    worst = max(bad, key=lambda name: bad[name])
    instead = f"use {', or '.join(good)}" if good else "use float32"
    return f"{worst} puts {bad[worst]:.1%} of the tokens outside the clip band although nothing was learned: {instead}."


def _score(
    model: Any, sequences: Sequence[Sample], form: Format, temperature: float, batch_size: int, pad: int
) -> Tensor:
    """log pi of every completion token in the order of the sequences, [N] float32; the model's mode is restored."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), _autocast(model, form):
            parts = [
                _score_batch(model, sequences[i : i + batch_size], form, temperature, pad)
                for i in range(0, len(sequences), batch_size)
            ]
    finally:
        model.train(was_training)
    return torch.cat(parts)


def _autocast(model: Any, form: Format) -> Any:
    if form.autocast is None:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, form.autocast)


def _score_batch(model: Any, rows: Sequence[Sample], form: Format, temperature: float, pad: int) -> Tensor:
    width = max(len(s.prompt) + len(s.completion) for s in rows)
    device = next(model.parameters()).device
    ids = torch.full((len(rows), width), pad, device=device)
    mask = torch.zeros_like(ids)
    for i, s in enumerate(rows):  # padded on the left, as trainers do with prompts
        whole = torch.tensor(s.prompt + s.completion, device=device)
        ids[i, width - len(whole) :], mask[i, width - len(whole) :] = whole, 1
    places = (mask.cumsum(1) - 1).clamp(min=0)
    logits = _logits(model, form, input_ids=ids, attention_mask=mask, position_ids=places)
    logp = torch.log_softmax(logits[:, :-1].float() / temperature, -1)
    chosen = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    kept = torch.cat([chosen[i, width - 1 - len(s.completion) :] for i, s in enumerate(rows)])
    return (kept.to(form.output) if form.output else kept).float()


def _logits(model: Any, form: Format, **inputs: Tensor) -> Tensor:
    if form.head is None:
        logits: Tensor = model(**inputs).logits
        return logits
    head = model.get_output_embeddings()
    hidden = model.base_model(**inputs).last_hidden_state.to(form.head)
    bias = None if head.bias is None else head.bias.to(form.head)
    logits = torch.nn.functional.linear(hidden, head.weight.to(form.head), bias)
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return logits if softcap is None else softcap * torch.tanh(logits / softcap)
