"""Fair comparison of callables on a busy machine: interleaved repetitions, and exact peaks of allocation."""

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]
LARGE_BLOCK = 31 * 2**20  # bytes; glibc adapts its thresholds to released blocks of up to 32 MiB


def settle_allocator() -> None:
    """Bring malloc to the state it has in training, where large activations come and go.

    glibc raises its thresholds with the largest block released so far; below them every repetition would return its
    memory to the system and pay page faults for it again, which drowns the arithmetic.
    """
    torch.empty(LARGE_BLOCK, dtype=torch.uint8)


@dataclass(frozen=True)
class Timing:
    """Seconds of every repetition: wall clock, and CPU time of all threads of the process."""

    wall: list[float]
    cpu: list[float]


def interleaved(steps: dict[str, Step], repeats: int, warm_up: int = 2) -> dict[str, Timing]:
    """Each step once a repetition, in turns ABBA, so that what else runs on the machine meets all of them alike."""
    for step in list(steps.values()) * warm_up:
        step()
    found = {name: Timing([], []) for name in steps}
    gc.collect()
    gc.disable()
    try:
        for repetition in range(repeats):
            for name in list(steps) if repetition % 2 == 0 else list(steps)[::-1]:
                wall, cpu = time.perf_counter(), time.process_time()
                steps[name]()
                found[name].cpu.append(time.process_time() - cpu)
                found[name].wall.append(time.perf_counter() - wall)
    finally:
        gc.enable()
    return found


def ratio(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Median and quartiles of ours / theirs, paired by repetition."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, _, high = quantiles(pairs, n=4)
    return median(pairs), low, high


def peak_bytes(step: Step) -> int:
    """The most bytes that torch's CPU allocator held at once during the step, beyond what it held before.

    The profiler reports every allocation and release of the allocator, so the number is exact and repeats; resident
    memory would depend on what malloc gives back. Temporaries inside a kernel that bypass the allocator are unseen.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # its own chatter on stderr
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
