"""Number formats: the closed form against emulated rounding, and the probe on a real model."""

import math
from typing import Any

import pytest
import torch

from isentrope import precision
from isentrope.errors import IsentropeError
from isentrope.precision import FORMATS, Format, FormatReport, Sample

N = 2_000_000


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x.to(dtype).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logp", [-0.3, -1.7, -5.0, -12.0])
def test_spacing_is_the_distance_of_neighbouring_numbers(dtype: torch.dtype, logp: float) -> None:
    here = torch.tensor(logp).to(dtype)
    away = torch.nextafter(here, torch.tensor(-torch.inf).to(dtype))
    assert precision.spacing(torch.tensor([logp]), dtype).item() == pytest.approx(float(here) - float(away))


@pytest.mark.parametrize(("low", "high"), [(-8.0, -4.0), (-16.0, -8.0), (-32.0, -16.0)])
def test_independent_rounding_inflates_the_ratio_as_predicted(low: float, high: float) -> None:
    """Trap 7: E[r] grows by about u^2 / 12, most for rare tokens."""
    g = torch.Generator().manual_seed(0)
    new, old = (low + (high - low) * torch.rand(N, generator=g, dtype=torch.float64) for _ in range(2))
    error = (rounded(new, torch.bfloat16) - new) - (rounded(old, torch.bfloat16) - old)
    middle = torch.tensor([(low + high) / 2])
    predicted = precision.expected_ratio(middle).item()
    u = precision.spacing(middle).item()
    assert predicted == pytest.approx(1 + u * u / 12, rel=1e-5)
    noise = 4 * u / math.sqrt(6 * N)
    assert error.exp().mean().item() == pytest.approx(predicted, abs=noise)
    assert predicted - 1 > noise / 10


@pytest.mark.parametrize("logp", [-40.0, -50.0, -100.0])
def test_rounding_moves_tokens_over_the_upper_bound_more_often_than_under_the_lower(logp: float) -> None:
    g = torch.Generator().manual_seed(1)
    u = precision.spacing(torch.tensor([logp])).item()
    difference = u * (torch.rand(N, generator=g, dtype=torch.float64) - torch.rand(N, generator=g, dtype=torch.float64))
    low, high = (p.item() for p in precision.clip_probability(torch.tensor([logp])))
    assert (difference.exp() < 0.8).double().mean().item() == pytest.approx(low, abs=2e-3)
    assert (difference.exp() > 1.2).double().mean().item() == pytest.approx(high, abs=2e-3)
    assert high > low > 0 or u < 0.2


def test_nothing_is_clipped_by_rounding_where_the_grid_is_finer_than_the_band() -> None:
    low, high = precision.clip_probability(torch.tensor([-5.0, -0.1]))
    assert low.tolist() == high.tolist() == [0.0, 0.0]


def test_rounded_values_are_recognised_and_unrounded_ones_are_not() -> None:
    logp = -torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 5
    assert precision.on_grid(logp) < 0.001
    assert precision.on_grid(logp.bfloat16().float()) == 1.0
    assert math.isnan(precision.on_grid(torch.zeros(3)))


def test_ratios_beyond_the_upper_bound_pull_entropy_down() -> None:
    """PA&LP tokens over the upper bound lose a gradient that raises entropy, NA&LP ones under the lower the other."""
    logp = torch.tensor([-6.0] * 50 + [-0.1] * 50, dtype=torch.float64)
    over, under = torch.ones(100, dtype=torch.float64), torch.ones(100, dtype=torch.float64)
    over[:10], under[:10] = 1.25, 0.75
    assert precision.entropy_pull(logp, torch.ones(100, dtype=torch.float64)) == 0
    assert precision.entropy_pull(logp, over) < 0 < precision.entropy_pull(logp, under)


def report(name: str, clipped: float = 0.0, not_finite: int = 0) -> FormatReport:
    return FormatReport(name, 0.0, 0.0, (), 0.0, 0.0, clipped / 3, 2 * clipped / 3, 0.0, 0.0, not_finite)


def test_advice_names_the_worst_format_and_those_that_hold() -> None:
    found = precision.advice([report("float32"), report("a", 0.08), report("b", 0.02), report("c")])
    assert "a puts 8.0%" in found
    assert "use c" in found
    assert "at least 99.9%" in precision.advice([report("float32"), report("a")])
    assert "use float32" in precision.advice([report("float32", not_finite=3)])


@pytest.fixture(scope="module")
def embedded() -> tuple[Any, list[Sample]]:
    from isentrope import models, tasks
    from isentrope.sampling import encode_prompt, sample

    model, tokenizer = models.load("embedded")
    prompts = [example.prompt for example in tasks.get("countdown").examples("test", 12, 0)]
    drawn = sample(model, tokenizer, prompts, num_samples=1, max_new_tokens=24)
    return model, [
        Sample(tuple(encode_prompt(tokenizer, p)), rows[0].tokens) for p, rows in zip(prompts, drawn, strict=True)
    ]


def test_probe_finds_float32_exact_and_bfloat16_coarser_than_float16(embedded: tuple[Any, list[Sample]]) -> None:
    model, samples = embedded
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = precision.probe(model, samples)
    by_name = {form.name: form for form in found.formats}
    assert [form.name for form in found.formats] == [form.name for form in FORMATS]
    assert by_name["float32"].error == 0
    assert by_name["float32"].ratio_spread < 1e-5
    assert by_name["bfloat16"].error > 2 * by_name["float16"].error > 0
    assert by_name["bfloat16, log-probabilities rounded"].on_bfloat16_grid == 1.0
    assert by_name["bfloat16"].on_bfloat16_grid < 0.1
    assert found.num_tokens == sum(len(s.completion) for s in samples) == sum(found.tokens_by_tenth)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_float32_head_is_nearer_to_the_exact_values_than_a_bfloat16_one(embedded: tuple[Any, list[Sample]]) -> None:
    model, samples = embedded
    plain, wide = precision.probe(model, samples, [FORMATS[2], FORMATS[3]]).formats
    assert wide.error < plain.error


def test_a_head_in_float32_without_narrow_weights_changes_nothing(embedded: tuple[Any, list[Sample]]) -> None:
    """The hidden states, bias and cap of the model's own forward pass."""
    model, samples = embedded
    (same,) = precision.probe(model, samples, [Format("same", head=torch.float32)]).formats
    assert same.largest_error < 1e-5


def test_probe_without_tokens_says_so(embedded: tuple[Any, list[Sample]]) -> None:
    with pytest.raises(IsentropeError, match="hold no tokens"):
        precision.probe(embedded[0], [Sample((1, 2), ())])


def test_a_sampler_is_compared_by_probability_and_by_bound() -> None:
    old = torch.tensor([-0.1, -0.1, -3.0, -3.0, -3.0])
    rollout = torch.tensor([-0.1, -0.1, -3.5, -2.5, math.nan])
    found = precision.compare_sampler(old, rollout)
    assert (found.num_tokens, found.missing) == (4, pytest.approx(0.2))
    assert found.mismatch == pytest.approx(0.25)
    assert found.bias == pytest.approx(0.0)
    assert found.mismatch_by_tenth[0] == pytest.approx(0.5)
    assert found.mismatch_by_tenth[9] == 0
    assert (found.below, found.above) == (0.25, 0.25)
    with pytest.raises(IsentropeError, match="no token has the sampler's"):
        precision.compare_sampler(old, torch.full((5,), math.nan))
