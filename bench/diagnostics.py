"""Time and memory of every measurement of an update on 10 million tokens.

Run: `python bench/diagnostics.py [--rows N] [--length T]`.

The batch is made chunk by chunk, as a reader of dumps would deliver it, and tallied; making it is not timed.
"""

import argparse
import resource
import time

import torch

from isentrope import diagnostics, presets
from isentrope.tally import Tally


def chunk(rows: int, length: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows of a rollout batch with off-policy ratios, a sampler's log-probabilities and four tasks."""
    old = -torch.rand(rows, length, generator=generator) * 3
    group = torch.arange(rows) // 8
    return {
        "mask": torch.rand(rows, length, generator=generator) < 0.9,
        "old_logp": old,
        "logp": old + 0.2 * torch.randn(rows, length, generator=generator),
        "rollout_logp": old + 0.02 * torch.randn(rows, length, generator=generator),
        "entropy": torch.rand(rows, length, generator=generator),
        "old_entropy": torch.rand(rows, length, generator=generator),
        "reward": (torch.rand(rows, generator=generator) > 0.5).float(),
        "group": group,
        "task": group % 4,
    }


def main() -> None:
    """Print seconds (wall and CPU) and the peak of memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5632, help="rows in all")
    parser.add_argument("--length", type=int, default=2048, help="tokens a row, a tenth of them masked")
    parser.add_argument("--chunk", type=int, default=256, help="rows at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--objective", default="ce_gppo")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(0)
    objective = getattr(presets, args.objective)
    found, wall, cpu = Tally(), 0.0, 0.0
    for start in range(0, args.rows, args.chunk):
        prepared, state = objective.prepare(chunk(min(args.chunk, args.rows - start), args.length, generator))
        now = objective.at(state)
        totals = now.count(prepared)
        before, before_cpu = time.perf_counter(), time.process_time()
        found = found + diagnostics.update(now, prepared, totals)
        wall, cpu = wall + time.perf_counter() - before, cpu + time.process_time() - before_cpu
    tokens = int(found.counts["entropy"].sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{tokens:,} tokens: {wall:.1f} s wall, {cpu:.1f} s CPU on {args.threads} threads, peak {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
