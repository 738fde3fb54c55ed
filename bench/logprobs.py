"""What log-probabilities and entropies cost at the head: time and peak memory, forward and backward, against others.

Every candidate computes, from the same hidden states and weight, the log-probability of the target with its gradient to
both, and the entropy without one (where it knows entropies). Times: interleaved in one process, CPU time of all its
threads and wall clock. Memory: a process for each candidate, the growth of its peak resident size (VmHWM) over one call
after a small one. Errors: log-probability and entropy against float64 on the first rows.

Candidates that are not installed are named and left out. Host packages of another environment can be added:

    python bench/logprobs.py --rows 1024 4096 --dtype bfloat16 float32 --also /path/to/site-packages
"""

import argparse
import gc
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

import torch
from _paired import Timing, interleaved, ratio
from torch import Tensor

from isentrope.logprobs import backend_in_use, logprobs, policy_gradient

CHECKED = 64  # rows that are compared with float64


@dataclass(frozen=True)
class Problem:
    """Leaves that ask for gradients, targets, and a weight for each token's log-probability."""

    hidden: Tensor
    weight: Tensor
    target: Tensor
    weights: Tensor

    @staticmethod
    def draw(rows: int, vocab: int, width: int, dtype: torch.dtype, seed: int, frozen: bool) -> "Problem":
        """Logits of standard deviation 2: entropies of 9 nats for 49,152 tokens; targets are drawn uniformly."""
        torch.manual_seed(seed)
        hidden = torch.randn(rows, width).to(dtype).requires_grad_()
        weight = (torch.randn(vocab, width) * 2 / width**0.5).to(dtype).requires_grad_(not frozen)
        return Problem(hidden, weight, torch.randint(vocab, (rows,)), torch.randn(rows))

    def first(self, rows: int) -> "Problem":
        hidden = self.hidden.detach()[:rows].clone().requires_grad_()
        return Problem(hidden, self.weight, self.target[:rows], self.weights[:rows])


Values = tuple[Tensor, Tensor | None]
Candidate = Callable[[Problem], Values]


def plain(p: Problem) -> Values:
    """The whole matrix of logits, as it is usually written."""
    logits = p.hidden @ p.weight.t()
    log_p = logits.float().log_softmax(-1)
    logp = log_p.gather(-1, p.target[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(log_p.exp() * log_p).sum(-1)
    (p.weights * logp).sum().backward()
    return logp.detach(), entropy


def ours(backend: str) -> Candidate:
    def run(p: Problem) -> Values:
        out = logprobs(p.hidden, p.weight, p.target, backend=backend)
        (p.weights * out.logp).sum().backward()
        return out.logp.detach(), out.entropy

    return run


def ours_at_once(p: Problem) -> Values:
    value, out = policy_gradient(p.hidden, p.weight, p.target, lambda logp, entropy, rows: p.weights[rows])
    value.backward()
    return out.logp, out.entropy


def trl() -> Candidate:
    """The function behind TRL's fused head."""
    from trl.trainer import utils

    def run(p: Problem) -> Values:
        logp, entropy, *_ = utils._ChunkedLogProbFunction.apply(
            *(p.hidden, p.weight, None, p.target, 1.0, utils._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0),
            ("log_probs", "entropy"),
        )
        (p.weights * logp).sum().backward()
        return logp.detach(), entropy.detach()

    return run


def verl() -> Candidate:
    from verl.utils.experimental.torch_functional import FusedLinearForPPO

    def run(p: Problem) -> Values:
        logp, entropy = FusedLinearForPPO()(p.hidden, p.weight, p.target)
        (p.weights * logp).sum().backward()
        return logp.detach(), entropy.detach()

    return run


def liger() -> Candidate:
    from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction

    def run(p: Problem) -> Values:
        nll, entropy = LigerFusedLinearScaledCrossEntropyFunction.apply(
            p.hidden, p.weight, p.target, 1.0, -100, 1, True
        )
        (p.weights * -nll).sum().backward()
        return -nll.detach(), entropy.detach()

    return run


def cut_cross_entropy() -> Candidate:
    """Its implementation for machines without a GPU; it knows no entropies."""
    from cut_cross_entropy import linear_cross_entropy

    def run(p: Problem) -> Values:
        nll = linear_cross_entropy(p.hidden, p.weight, p.target, reduction="none", impl="torch_compile")
        (p.weights * -nll).sum().backward()
        return -nll.detach(), None

    return run


CANDIDATES: dict[str, Callable[[], Candidate]] = {
    "plain": lambda: plain,
    "policy_gradient": lambda: ours_at_once,
    "logprobs": lambda: ours("auto"),
    "logprobs eager": lambda: ours("eager"),
    "trl": trl,
    "verl": verl,
    "liger": liger,
    "cut_cross_entropy": cut_cross_entropy,
}


def available(names: list[str], problem: Problem) -> dict[str, Candidate]:
    """The candidates that import and run on a few rows here; of the hosts' the others are named with the reason."""
    found: dict[str, Candidate] = {}
    for name in names:
        try:
            candidate = CANDIDATES[name]()
            candidate(problem.first(16))
        except Exception as error:
            if name.split()[0] in ("plain", "policy_gradient", "logprobs"):
                raise
            print(f"{name}: left out ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]})")
        else:
            found[name] = candidate
    return found


def errors(candidate: Candidate, problem: Problem) -> str:
    """Largest error of logp and entropy in the first rows, nats."""
    p = problem.first(CHECKED)
    logp, entropy = candidate(p)
    exact = (p.hidden.detach().double() @ p.weight.detach().double().t()).log_softmax(-1)
    worst = [float((logp.double() - exact.gather(1, p.target[:, None])[:, 0]).abs().max())]
    if entropy is not None:
        worst.append(float((entropy.double() + (exact.exp() * exact).sum(-1)).abs().max()))
    return " / ".join(f"{x:.1e}" for x in worst)


def peak_mib(name: str, arguments: argparse.Namespace, rows: int, dtype: str) -> int:
    """Growth of a fresh process by one call."""
    words = [sys.executable, __file__, "--peak", name, "--rows", str(rows), "--dtype", dtype]
    for option in ("vocab", "width", "seed", "threads"):
        words += [f"--{option}", str(getattr(arguments, option))]
    words += ["--frozen"] if arguments.frozen else []
    words += [x for folder in arguments.also for x in ("--also", folder)]
    return int(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1])


def resident(field: str) -> int:
    """VmRSS (now) or VmHWM (the most since the last reset) of this process, KiB."""
    line = next(x for x in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if x.startswith(field))
    return int(line.split()[1])


def print_peak(arguments: argparse.Namespace) -> None:
    """What one call adds to the resident memory, MiB; a small call before it has loaded and compiled all there is."""
    problem = draw(arguments, arguments.rows[0], arguments.dtype[0])
    candidate = CANDIDATES[arguments.peak]()
    candidate(problem.first(16))
    problem.weight.grad = None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    before = resident("VmRSS")
    candidate(problem)
    print((resident("VmHWM") - before) // 1024)


def draw(arguments: argparse.Namespace, rows: int, dtype: str) -> Problem:
    return Problem.draw(rows, arguments.vocab, arguments.width, getattr(torch, dtype), arguments.seed, arguments.frozen)


def step(candidate: Candidate, problem: Problem) -> Callable[[], object]:
    def run() -> None:
        problem.hidden.grad = problem.weight.grad = None
        candidate(problem)

    return run


def measure(arguments: argparse.Namespace, rows: int, dtype: str) -> None:
    """One table."""
    problem = draw(arguments, rows, dtype)
    found = available(arguments.only, problem)
    wrong = {name: errors(candidate, problem) for name, candidate in found.items()}
    steps = {name: step(candidate, problem) for name, candidate in found.items()}
    times = interleaved(steps, arguments.repeats, warm_up=arguments.warm_up)
    peaks = {} if arguments.no_peaks else {name: peak_mib(name, arguments, rows, dtype) for name in found}
    print(f"\n{rows} rows, vocabulary {arguments.vocab}, {dtype}{', frozen weight' if arguments.frozen else ''}")
    print("| candidate | CPU s | CPU / plain (quartiles) | wall / plain | peak MiB | errors logp / entropy |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in found:
        print(row(name, times, peaks.get(name), wrong[name]), flush=True)


def row(name: str, times: dict[str, Timing], peak: int | None, wrong: str) -> str:
    plain_times = times["plain"]
    cpu, low, high = ratio(times[name].cpu, plain_times.cpu)
    wall, _, _ = ratio(times[name].wall, plain_times.wall)
    seconds = median(times[name].cpu)
    return f"| {name} | {seconds:.2f} | {cpu:.2f} ({low:.2f}-{high:.2f}) | {wall:.2f} | {peak or '-'} | {wrong} |"


def versions() -> str:
    names = ("torch", "trl", "transformers", "verl", "liger-kernel", "cut-cross-entropy", "triton")
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1024])
    parser.add_argument(
        "--dtype", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32", "float16"]
    )
    parser.add_argument("--vocab", type=int, default=49_152)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=0, help="whole calls of each candidate before the timed ones")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--frozen", action="store_true", help="no gradient for the weight")
    parser.add_argument("--only", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES), metavar="NAME")
    parser.add_argument("--no-peaks", action="store_true", help="times only")
    parser.add_argument("--also", action="append", default=[], metavar="FOLDER", help="site-packages to add at the end")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    sys.path.extend(arguments.also)
    torch.set_num_threads(arguments.threads)
    if arguments.peak:
        print_peak(arguments)
        return
    if "plain" not in arguments.only:
        arguments.only.insert(0, "plain")
    problem = draw(arguments, 1, arguments.dtype[0])
    print(f"{versions()}; {platform.platform()}, {torch.backends.cpu.get_cpu_capability()}")
    print(
        f"threads {arguments.threads}, seed {arguments.seed}, {arguments.repeats} repetitions; width {arguments.width}"
    )
    print(f"backend {backend_in_use(problem.hidden, problem.weight)}")
    for dtype in arguments.dtype:
        for rows in arguments.rows:
            measure(arguments, rows, dtype)


if __name__ == "__main__":
    main()
