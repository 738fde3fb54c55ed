"""A token ratio in a narrow number format, as a framework has it whose log-probabilities arrive in that format.

For the study alone: this library keeps log-probabilities in float32 (`isentrope.engines.trl_guards`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
MAX_LOG_RATIO = 9.0  # nats; float16 ends at exp(11.09), and below exp(-9.7) it has subnormal numbers alone


@dataclass(frozen=True)
class RoundedRatio:
    """log R(exp(R(logp) - R(old_logp))), R: rounding to `format`; the gradient is that of logp, unrounded.

    logp, old_logp: [B,T], nats. Differences beyond 9 nats count as 9. Returns log-ratios [B,T] in logp's dtype. Raises
    ValueError for a format other than "bf16" and "fp16".

    Near 1 a bfloat16 ratio lies on a grid of 1/128 above and 1/256 below:

    >>> x = torch.tensor([-1.0, -1.0, -5.0])
    >>> RoundedRatio("bf16")(logp=x + 0.004, old_logp=x).exp().tolist()
    [1.0078125, 1.0078125, 1.0]
    """

    format: str = "bf16"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ValueError(f"RoundedRatio.format must be one of {', '.join(FORMATS)}; found {self.format!r}")

    def __call__(self, *, logp: Tensor, old_logp: Tensor) -> Tensor:
        narrow = FORMATS[self.format]
        difference = (logp.detach().to(narrow) - old_logp.to(narrow)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        return difference.exp().to(logp.dtype).log() + (logp - logp.detach())
