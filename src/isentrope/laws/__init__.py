"""The laws that every objective obeys; `isentrope.check` draws the batches and reports.

A law is a function `law(objective, batch) -> None` that raises LawBroken, or DoesNotApply where the objective does not
promise it or the batch cannot show it. LAWS is the table of all. A batch here holds every column of the glossary, the
current policy's included, in float64 with values that float32 holds exactly (`isentrope.check.draw`). Numbers are
compared at rtol 1e-9 in float64 (reordered sums of some hundred terms lose 1e-14), at 1e-4 between float32 and float64.

A new law is a function in the module of its subject with `@law` on it.
"""

from isentrope.laws import batch, columns, gradient, number, state
from isentrope.laws._trial import LAWS, DoesNotApply, Law, LawBroken

__all__ = ["LAWS", "DoesNotApply", "Law", "LawBroken", "batch", "columns", "gradient", "number", "state"]
