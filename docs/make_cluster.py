"""Prints the sizing table of docs/cluster.md: python docs/make_cluster.py

Every number is arithmetic of `isentrope.sizing` on the numbers of the models' config.json; nothing is run or fetched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from isentrope.sizing import GIB, KNOWN, Step, rollout_memory

PAGE = Path(__file__).with_name("cluster.md")
TOKENS = 1024 + 16_384  # of the longest row: prompt and response
HEAD = (
    "| model | parameters | GPUs | weights, gradients, moments | one layer gathered | activations | logits, if kept "
    "| training | sampler's weights (over GPUs) | cache of a row | rows side by side |"
)


@dataclass(frozen=True)
class Row:
    """A model on so many GPUs of 80 GB; tensor_parallel: GPUs that share one copy of the sampler."""

    name: str
    gpus: int
    tensor_parallel: int


ROWS = (
    Row("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 8, 1),
    Row("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 8, 1),
    Row("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 32, 1),
    Row("Qwen/Qwen3-8B", 16, 1),
    Row("Qwen/Qwen3-14B", 32, 2),
    Row("Qwen/Qwen2.5-32B", 64, 4),
    Row("Qwen/Qwen3-32B", 64, 4),
)
SAMPLER_SHARE = 0.5 * 80e9  # bytes: verl's default gpu_memory_utilization, of an 80 GB card


def line(row: Row) -> str:
    """One line of the table; GiB on each GPU.

    >>> line(ROWS[1]).split(" | ")[1:4]
    ['7.62 B', '8', '14.19']
    """
    shape = KNOWN[row.name].architecture
    step = Step(shape, rows=1, tokens=TOKENS, gpus=row.gpus)
    held, kept = step.memory(), replace(step, full_logits=True).memory()["logits"]
    states = held["weights"] + held["gradients"] + held["optimizer"]
    training = states + held["gathered"] + held["activations"]
    sampler = rollout_memory(shape, rows=1, tokens=TOKENS, weights_over=row.tensor_parallel)
    rows = int((SAMPLER_SHARE - sampler["weights"]) / sampler["cache"])
    numbers = [states, held["gathered"], held["activations"], kept, training]
    cells = [f"{x / GIB:.2f}" for x in numbers]
    weights = f"{sampler['weights'] / GIB:.2f} ({row.tensor_parallel})"
    name = row.name.rpartition("/")[2]
    first = [name, f"{shape.parameters / 1e9:.2f} B", str(row.gpus)]
    return "| " + " | ".join([*first, *cells, weights, f"{sampler['cache'] / GIB:.2f}", str(rows)]) + " |"


def table() -> list[str]:
    """The lines of the table, head included."""
    return [HEAD, "| --- " * HEAD.count(" | ") + "| --- |", *(line(row) for row in ROWS)]


if __name__ == "__main__":
    print("\n".join(table()))
