"""Colours that lie side by side differ for every kind of colour vision, and stand out from the card behind them."""

import itertools
import re
from importlib import resources

import pytest
import torch

CSS = resources.files("isentrope.report").joinpath("assets/page.css").read_text("utf-8")

# Machado, Oliveira and Fernandes (2009): what linear RGB looks like with one kind of cone missing.
VISION = {
    "usual": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
# Ottosson (2020): linear RGB to cones to Oklab.
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
THEMES = ("light", "dark")
APART = 0.08  # in Oklab, where about 0.02 is the least that is seen side by side


def colours(prefix, theme):
    found = re.findall(rf"--{prefix}\d: light-dark\((#\w+), (#\w+)\)", CSS)
    return [linear(pair[THEMES.index(theme)]) for pair in found]


def card(theme):
    return linear(re.search(r"--card: light-dark\((#\w+), (#\w+)\)", CSS)[1 + THEMES.index(theme)])


def linear(code):
    parts = torch.tensor([int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)], dtype=torch.float64)
    return torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb, vision):
    seen = (torch.tensor(VISION[vision], dtype=torch.float64) @ rgb).clamp(0, 1)
    cones = torch.tensor(TO_CONES, dtype=torch.float64) @ seen
    return torch.tensor(TO_LAB, dtype=torch.float64) @ cones.pow(1 / 3)


def luminance(rgb):
    return float(rgb @ torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64))


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize(("prefix", "count"), [("r", 8), ("t", 4)])
def test_colours_differ(theme, vision, prefix, count):
    seen = [oklab(rgb, vision) for rgb in colours(prefix, theme)]
    assert len(seen) == count
    distances = {(i, j): float((seen[i] - seen[j]).norm()) for i, j in itertools.combinations(range(count), 2)}
    assert min(distances.values()) >= APART, min(distances.items(), key=lambda pair: pair[1])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("prefix", ["r", "t"])
def test_lines_and_areas_stand_out_from_the_card(theme, prefix):
    behind = luminance(card(theme))
    for i, rgb in enumerate(colours(prefix, theme)):
        low, high = sorted((behind, luminance(rgb)))
        assert (high + 0.05) / (low + 0.05) >= 3, i
