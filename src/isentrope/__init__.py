"""Isentrope: entropy control for reinforcement-learning post-training of language models.

from dataclasses import replace
from isentrope import presets
from isentrope.surrogate import GradientPreservingClip

mine = replace(presets.gepo, surrogate=GradientPreservingClip(keep_low=.5, keep_high=1.))   # papers compose

state = mine.init()
prepared, state = mine.prepare(batch, state)     # once per rollout batch, on all its rows
now = mine.at(state)                             # numbers in place of controllers
totals = now.count(prepared)
loss = now.loss(rows | {"logp": logp}, totals)   # any slice of the prepared rows
"""

from importlib.metadata import version

from isentrope import presets
from isentrope.aggregate import Totals
from isentrope.errors import ColumnError, IsentropeError, IsentropeWarning
from isentrope.objective import Objective

__version__ = version("isentrope")

__all__ = ["ColumnError", "IsentropeError", "IsentropeWarning", "Objective", "Totals", "__version__", "presets"]
