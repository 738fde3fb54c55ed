"""Masked arithmetic: what stands behind the mask reaches neither value nor gradient."""

import math

import pytest
import torch

from isentrope import masked

X = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, -math.inf], [math.nan] * 3], dtype=torch.float64)
MASK = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: masked.mean(x, MASK), 7 / 3),
        (lambda x: masked.row_mean(x, MASK), [1.5, 4.0, 0.0]),
        (lambda x: masked.variance(x, MASK), 14 / 9),
        (lambda x: masked.fill(x, MASK, -1.0), [[1, 2, -1], [4, -1, -1], [-1, -1, -1]]),
    ],
)
def test_values_by_hand_and_gradients_that_stop_at_the_mask(function, expected):
    x = X.clone().requires_grad_()
    found = function(x)
    torch.testing.assert_close(found.detach(), torch.tensor(expected, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert torch.isfinite(gradient).all()
    assert not gradient[~MASK].any()


@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 4)), ((3, 1), (3, 4)), ((3, 4), (3, 1)), ((1, 4), (3, 1)), ((4,), (3, 4))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_filling_broadcasts_as_a_selection_does(shapes, dtype):
    (shape, masks), g = shapes, torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=g, dtype=dtype).masked_fill(torch.rand(shape, generator=g) < 0.3, math.nan)
    mask = (
        (torch.rand(masks, generator=g) < 0.5) & ~x.isnan() if shape == masks else torch.rand(masks, generator=g) < 0.5
    )
    zero = torch.zeros((), dtype=dtype)
    for x_ in (x, x.clone().requires_grad_()):
        expected = torch.where(mask, x_, zero)
        found = masked.fill(x_, mask)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_filling_in_float32_stops_value_and_gradient_at_the_mask_twice_over():
    x = X.float().requires_grad_()
    (gradient,) = torch.autograd.grad((masked.fill(x, MASK) + 1).pow(3).sum(), x, create_graph=True)
    assert gradient.tolist() == [[12, 27, 0], [75, 0, 0], [0, 0, 0]]
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [[12, 18, 0], [30, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_finite_positions_within_the_mask_are_kept(bad):
    x, mask = torch.ones(2, 3), torch.tensor([[True, True, False], [True, False, False]])
    assert masked.finite_within(x, mask) is mask
    x[0, 1] = x[1, 2] = bad
    assert masked.finite_within(x, mask).tolist() == [[True, False, False], [True, False, False]]
    assert masked.finite_within(torch.full((2, 3), 3e38), mask).tolist() == mask.tolist()  # the sum overflows


@pytest.mark.parametrize("function", [masked.mean, masked.variance])
def test_statistics_of_nothing_are_zero(function):
    assert function(X, torch.zeros_like(MASK)).item() == 0


def test_whitening_by_hand():
    found = masked.whiten(X, MASK)
    deviation = math.sqrt(14 / 9 + 1e-8)
    assert found[MASK].tolist() == pytest.approx([(v - 7 / 3) / deviation for v in (1, 2, 4)])
    assert not found[~MASK].any()
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(masked.whiten(x, MASK).square().sum() + masked.whiten(x, MASK)[0, 0], x)
    assert torch.isfinite(gradient).all()
    assert not masked.whiten(torch.full((1, 3), 0.1), torch.ones(1, 3, dtype=torch.bool)).any()


@pytest.mark.parametrize("value", [0.1, 1 / 3, 123.4567, -1e-3])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_equal_values_are_centred_to_exactly_zero(value, count):
    x, mask = torch.full((count + 1,), value), torch.ones(count + 1, dtype=torch.bool)
    x[0], mask[0] = 9.0, False
    assert not masked.centred(x, mask).any()
    assert not masked.whiten(x, mask).any()


def test_centring_by_hand():
    assert masked.centred(X, MASK)[MASK].tolist() == pytest.approx([1 - 7 / 3, 2 - 7 / 3, 4 - 7 / 3])
    assert not masked.centred(X, MASK)[~MASK].any()
    assert masked.centred(X[:0], MASK[:0]).shape == (0, 3)


def test_a_variance_is_never_negative():
    """atropos 481: E[x^2] - E[x]^2 is, for large numbers close together."""
    x = torch.tensor([1e4, 1e4 + 1e-3, 1e4]).repeat(30)
    assert masked.variance(x, torch.ones_like(x, dtype=torch.bool)) >= 0


def test_half_precision_is_widened_and_nothing_else():
    kinds = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
    found = [masked.upcast(torch.ones(1, dtype=kind)).dtype for kind in kinds]
    assert found == [torch.float32, torch.float32, *kinds[2:]]


def test_dividing_by_zero_gives_zero_and_no_bad_gradient():
    a = torch.tensor([1.0, 0.0, 3.0], requires_grad=True)
    b = torch.tensor([0.0, 0.0, 2.0], requires_grad=True)
    found = masked.divide(a, b)
    assert found.tolist() == [0, 0, 1.5]
    found.sum().backward()
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(b.grad).all()
    assert masked.reciprocal(0.0) == 0
    assert masked.reciprocal(4.0) == 0.25


def test_a_ratio_is_bounded_and_has_no_gradient_beyond():
    x = torch.tensor([-300.0, -20.5, 0.0, 20.5, 300.0], requires_grad=True)
    r = masked.ratio(x)
    r.sum().backward()
    assert r.tolist() == pytest.approx([math.exp(-20)] * 2 + [1] + [math.exp(20)] * 2, rel=1e-6)
    assert x.grad.tolist() == [0, 0, 1, 0, 0]


def test_a_unit_is_one_with_the_gradient_of_its_argument():
    x = torch.tensor([-300.0, 0.0, 300.0], requires_grad=True)
    u = masked.unit(x)
    u.sum().backward()
    assert u.tolist() == [1, 1, 1]
    assert x.grad.tolist() == [1, 1, 1]


# -- groups -------------------------------------------------------------------------------------------

G = masked.groups(torch.tensor([9, -2, 9, 5, 9]))
Y = torch.tensor([1.0, 10.0, 2.0, 7.0, 6.0])


def test_groups_are_numbered_whatever_their_names():
    assert G.count == 3
    assert G.size.tolist() == [3, 1, 3, 1, 3]
    assert masked.group_sum(Y, G).sort().values.tolist() == [7, 9, 10]
    assert masked.group_mean(Y, G).tolist() == [3, 10, 3, 7, 3]


@pytest.mark.parametrize(("ddof", "deviation"), [(1, math.sqrt(7)), (0, math.sqrt(14 / 3))])
def test_the_deviation_of_a_group_of_one_is_zero(ddof, deviation):
    expected = [deviation, 0, deviation, 0, deviation]
    assert masked.group_std(Y, G, ddof).tolist() == pytest.approx(expected, rel=1e-6)


def test_constant_groups_are_told_exactly():
    x = torch.tensor([0.1, 5.0, 0.1, 0.0, 0.1])
    assert masked.group_constant(x, G).tolist() == [True] * 5
    x[4] = torch.nextafter(x[4], torch.tensor(1.0))
    assert masked.group_constant(x, G).tolist() == [False, True, False, True, False]


def test_a_groups_token_mean_pools_its_tokens():
    group = torch.tensor([0, 0, 1])
    found, g = masked.group_token_mean(X, MASK, group)
    assert found[0].item() == pytest.approx(7 / 3)
    assert found[1].isnan()
    assert g.count == 2


# -- choosing -----------------------------------------------------------------------------------------


def test_the_top_is_by_value_then_by_position_or_scrambled_tie():
    x = torch.tensor([[3.0, 1.0, 3.0], [2.0, 3.0, 99.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    assert masked.top(x, mask, 2).tolist() == [[True, False, True], [False, False, False]]
    tie = torch.tensor([[0.1, 0.9, 0.2], [0.9, 0.3, 0.9]])
    assert masked.top(x, mask, 2, tie).equal(masked.top(masked.scramble(tie, 0), x == 3, 2))
    assert masked.top(x, mask, 4).tolist() == [[True, False, True], [True, True, False]]
    assert masked.top(x, mask, 99).equal(mask)
    assert not masked.top(x, mask, 0).any()
    assert not masked.top(x, torch.zeros_like(mask), 3).any()


def test_the_top_agrees_with_sorting():
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        x = torch.randint(6, (4, 5), generator=g).float()
        mask = torch.rand(4, 5, generator=g) < 0.7
        count = int(torch.randint(12, (1,), generator=g))
        order = sorted(mask.flatten().nonzero().flatten().tolist(), key=lambda i: (-x.flatten()[i].item(), i))
        expected = sorted(order[:count])
        assert masked.top(x, mask, count).flatten().nonzero().flatten().tolist() == expected


@pytest.mark.parametrize(
    ("fraction", "count", "down", "up"),
    [(0.1, 30, 3, 3), (0.2, 5, 1, 1), (0.29, 100, 29, 29), (0.21, 5, 1, 2), (0.0, 7, 0, 0), (1.0, 7, 7, 7)],
)
def test_shares_do_not_trip_over_rounding(fraction, count, down, up):
    assert masked.share(fraction, count) == down
    assert masked.share_up(fraction, count) == up
    assert masked.share(fraction, count, minimum=1) == max(1, down)


def test_scrambled_numbers_follow_their_values_and_the_seed():
    x = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    found = masked.scramble(x, 3)
    assert torch.equal(masked.scramble(x.flip(0), 3).flip(0), found)
    assert torch.equal(masked.scramble(x.double(), 3), found)
    assert not torch.equal(masked.scramble(x, 4), found)
    assert 0 <= found.min() < found.max() < 1
    counts = torch.histc(found, bins=10, min=0, max=1)
    assert counts.min() > 140  # 200 expected, deviation 13
    assert abs(torch.corrcoef(torch.stack([found, x.double()]))[0, 1]) < 0.1


def test_a_limited_value_keeps_the_gradient_only_where_it_equals_the_limit():
    x = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    found = masked.limited(x, x.detach().clamp(max=1.5))
    assert found.tolist() == [0.5, 1.0, 1.5, 1.5]
    (gradient,) = torch.autograd.grad((found * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum(), x)
    assert gradient.tolist() == [1.0, 2.0, 3.0, 0.0]  # at the bound itself the gradient is kept


def test_what_is_drawn_is_eligible_counted_and_follows_the_values():
    g = torch.Generator().manual_seed(0)
    x, mask = torch.randn(6, 9, generator=g), torch.rand(6, 9, generator=g) < 0.5
    drawn = masked.draw(x, mask, 7, seed=2)
    assert drawn.sum() == 7
    assert not (drawn & ~mask).any()
    assert torch.equal(drawn, masked.top(masked.scramble(x, 2), mask, 7))
    assert torch.equal(masked.draw(x.flip(0), mask.flip(0), 7, seed=2), drawn.flip(0))
    assert torch.equal(masked.draw(x, mask, 999, seed=2), mask)
    assert not masked.draw(x, torch.zeros_like(mask), 7, seed=2).any()
