"""What an objective costs: prepare + loss + backward of our presets against the loss code of TRL and of verl.

    python bench/objectives.py                      # 256 x 2048 tokens, float32, 1 and 2 threads
    python bench/objectives.py --rows 64 --tokens 512 --repeats 30 --only grpo gspo

Each pair runs on the same tensors in one process, in turns. First loss and gradient must agree; then come wall clock,
CPU time and the peak of allocations. Rows of a host that is not installed are skipped, and the output says so.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

import torch
from _hosts import TRL_EPS, trl_advantages, trl_loss, verl_advantages, verl_loss
from _paired import Step, interleaved, peak_bytes, ratio, settle_allocator
from torch import Tensor

from isentrope import Objective, presets
from isentrope.advantage import GroupRelative
from isentrope.engines.metrics import step_metrics
from isentrope.surrogate import ClipCov, KLCov, PPOClip

GROUP_SIZE = 8
TOLERANCE = 2e-5  # relative; both sides sum half a million float32 terms in their own order
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Host:
    """The other side of a pair: logp -> loss of one update, and of a whole rollout batch, advantages included."""

    update: Callable[[Tensor], Tensor]
    whole: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """Our objective and the host's code for the same formula; `check`, where set, is compared in its place."""

    preset: str
    host: str
    ours: Objective
    build: Callable[[Batch], Host]
    check: "Pair | None" = None

    def __str__(self) -> str:
        return f"{self.host} {self.preset}"


def draw(rows: int, tokens: int, seed: int) -> Batch:
    """A rollout batch and the current policy's columns: lengths uniform from a quarter to full, every group mixed."""
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(tokens // 4, tokens + 1, (rows, 1), generator=g)
    reward = torch.randint(0, 2, (rows // GROUP_SIZE, GROUP_SIZE), generator=g).float()
    reward[:, 0], reward[:, 1] = 0.0, 1.0  # no group is constant, so that DAPO's filter drops none on our side alone
    old_logp = -torch.empty(rows, tokens).exponential_(generator=g)
    return {
        "reward": reward.flatten(),
        "group": torch.arange(rows) // GROUP_SIZE,
        "mask": torch.arange(tokens) < length,
        "length_limit": torch.full((rows,), float(tokens)),
        "old_logp": old_logp,
        "logp": old_logp + 0.15 * torch.randn(rows, tokens, generator=g),
        "entropy": torch.rand(rows, tokens, generator=g),
    }


def trl_pair(preset: str, ours: Objective, **options: Any) -> Pair:
    """TRL's `_compute_loss` under `options`; its advantages are given to it for nothing."""

    def build(batch: Batch) -> Host:
        loss = trl_loss(batch, trl_advantages(batch, GROUP_SIZE, scaled=preset != "dr_grpo"), **options)
        return Host(loss, loss)

    scaled = isinstance(ours.advantage, GroupRelative)
    return Pair(preset, "TRL", replace(ours, advantage=GroupRelative(eps=TRL_EPS)) if scaled else ours, build)


def verl_pair(preset: str, ours: Objective, estimator: str, mode: str, aggregation: str, **options: Any) -> Pair:
    """verl's estimator and policy loss; the estimators are its vectorised ones, faster than its defaults."""

    def build(batch: Batch) -> Host:
        advantages, loss = verl_advantages(estimator, batch), verl_loss(batch, mode, aggregation, **options)
        once = advantages()
        return Host(lambda logp: loss(logp, once), lambda logp: loss(logp, advantages()))

    return Pair(preset, "verl", ours, build)


def trl_pairs() -> list[Pair]:
    """The presets that TRL 1.16 has."""
    small = {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
    return [
        trl_pair("grpo", presets.grpo, loss_type="grpo"),
        trl_pair("dapo", presets.dapo, loss_type="dapo", epsilon_high=0.28),
        trl_pair("dr_grpo", presets.dr_grpo, loss_type="dr_grpo"),
        trl_pair("cispo", presets.cispo, loss_type="cispo", epsilon_high=1.2),  # TRL's bound is absolute
        trl_pair("gspo", presets.gspo, loss_type="grpo", importance_sampling_level="sequence", **small),
        trl_pair("sapo", presets.sapo, loss_type="sapo"),
    ]


def verl_pairs() -> list[Pair]:
    """The presets that verl 0.9 has. Its "vanilla" always applies the dual clip at 3, so ours does too."""
    grpo, token, row = "grpo_vectorized", "token-mean", "seq-mean-token-mean"

    def dual(preset: Objective, high: float = 0.2) -> Objective:
        return replace(preset, surrogate=PPOClip(0.2, high, dual=3.0))

    def kl_cov(k: float) -> Pair:
        ours = replace(presets.kl_cov, surrogate=KLCov(k=k, scope="micro_batch"))
        return verl_pair("kl_cov", ours, grpo, "kl_cov", token, kl_cov_ratio=k, ppo_kl_coef=1.0)

    def clip_cov(share: float) -> Pair:
        ours = replace(presets.clip_cov, surrogate=ClipCov(ratio=share, scope="micro_batch"))
        return verl_pair("clip_cov", ours, grpo, "clip_cov", token, clip_cov_ratio=share)

    small = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}
    wide = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    return [
        verl_pair("grpo", dual(presets.grpo), grpo, "vanilla", row),
        verl_pair("dapo", dual(presets.dapo, 0.28), grpo, "vanilla", token, clip_ratio_high=0.28),
        verl_pair("dr_grpo", dual(presets.dr_grpo), "dr_grpo_vectorized", "vanilla", "seq-mean-token-sum-norm"),
        verl_pair("gspo", presets.gspo, grpo, "gspo", row, **small),
        verl_pair("cispo", presets.cispo, grpo, "cispo", token, clip_ratio_low=1.0),  # its lower bound: 1 - 1 = off
        replace(clip_cov(2e-4), check=clip_cov(1.0)),  # verl draws at random: results are compared with all drawn
        kl_cov(2e-3),
        verl_pair("gmpo", presets.gmpo, grpo, "geo_mean", row, **wide),
        verl_pair("sapo", presets.sapo, grpo, "sapo", row),
        verl_pair("rloo", presets.rloo, "rloo_vectorized", "gpg", token),
    ]


PAIRS: dict[str, Callable[[], list[Pair]]] = {"trl": trl_pairs, "verl": verl_pairs}


# -- the two sides as steps -------------------------------------------------------------------------------------------


def backward(loss_of: Callable[[Tensor], Tensor], logp: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    """A step: the loss and its gradient with respect to a fresh leaf on logp's memory."""

    def step() -> tuple[Tensor, Tensor]:
        leaf = logp.detach().requires_grad_()
        loss = loss_of(leaf)
        loss.backward()
        assert leaf.grad is not None
        return loss.detach(), leaf.grad

    return step


def our_losses(pair: Pair, batch: Batch, metrics: bool = False) -> Host:
    """Our update and our whole rollout batch; with `metrics`, `step_metrics` on top, as the hosts compute theirs."""
    columns = {n: x for n, x in batch.items() if n not in ("logp", "entropy")}
    current = {"entropy": batch["entropy"]} if pair.host == "TRL" else {}  # TRL logs the entropy in its loss
    state = pair.ours.init()

    def update(prepared: Batch, logp: Tensor) -> Tensor:
        now = pair.ours.at(state)
        rows, totals = prepared | current | {"logp": logp}, now.count(prepared)
        if metrics:
            [x.item() for x in step_metrics(now, rows, totals).values()]
        return now.loss(rows, totals)

    once, _ = pair.ours.prepare(columns, state)
    return Host(
        lambda logp: update(once, logp),
        lambda logp: update(pair.ours.prepare(columns, state)[0], logp),
    )


def steps_of(pair: Pair, batch: Batch) -> dict[str, Step]:
    """Every step that is timed, by name."""
    theirs, ours, measured = pair.build(batch), our_losses(pair, batch), our_losses(pair, batch, metrics=True)
    sides = {"theirs": theirs, "ours": ours, "ours with metrics": measured}
    found = {name: backward(side.whole, batch["logp"]) for name, side in sides.items()}
    return found | {f"{name}, update": backward(side.update, batch["logp"]) for name, side in sides.items()}


def disagreement(pair: Pair, batch: Batch) -> float:
    """The larger of the relative differences of loss and gradient (by the largest entry), from rewards on."""
    pair = pair.check or pair
    (our_loss, ours), (their_loss, theirs) = (
        backward(side.whole, batch["logp"])() for side in (our_losses(pair, batch), pair.build(batch))
    )
    scale = max(float(theirs.abs().max()), 1e-30)
    # a policy loss may cancel to almost 0: it is compared on the scale of its terms, not of its sum
    terms = float((theirs * batch["logp"]).abs().sum())
    return max(float((ours - theirs).abs().max()) / scale, float((our_loss - their_loss).abs()) / terms)


def require_equal(pair: Pair, batch: Batch) -> float:
    """The disagreement; SystemExit where it exceeds the tolerance, since unequal work must not be timed."""
    found = disagreement(pair, batch)
    if not found <= TOLERANCE:
        raise SystemExit(f"{pair}: loss or gradient differ by {found:.1e} (allowed {TOLERANCE:.0e}): not timed")
    return found


# -- the table --------------------------------------------------------------------------------------------------------

HEADER = (
    "| threads | host | preset | theirs, ms | ours, ms | wall: ours / theirs (quartiles) | CPU time: ours / theirs"
    " | with our metrics | update alone | peak, MB: theirs | ours |\n" + "| --- " * 11 + "|"
)


def line(pair: Pair, batch: Batch, threads: int, repeats: int, peaks: tuple[int, int]) -> str:
    """One line of the table: medians over the repetitions, ratios paired by repetition; the last ones of CPU time."""
    torch.set_num_threads(threads)
    timed = interleaved(steps_of(pair, batch), repeats)

    def cpu(name: str, base: str) -> str:
        return f"{ratio(timed[name].cpu, timed[base].cpu)[0]:.2f}"

    middle, low, high = ratio(timed["ours"].wall, timed["theirs"].wall)
    cells: Sequence[str] = (
        str(threads),
        pair.host,
        pair.preset,
        f"{1e3 * median(timed['theirs'].wall):.2f}",
        f"{1e3 * median(timed['ours'].wall):.2f}",
        f"{middle:.2f} ({low:.2f}-{high:.2f})",
        cpu("ours", "theirs"),
        cpu("ours with metrics", "theirs"),
        cpu("ours, update", "theirs, update"),
        *(f"{peak / 1e6:.1f}" for peak in peaks),
    )
    return f"| {' | '.join(cells)} |"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help=f"a multiple of {GROUP_SIZE}")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=15, help="at least 2")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", metavar="PRESET", help="these presets alone")
    found = parser.parse_args(argv)
    if found.rows < GROUP_SIZE or found.rows % GROUP_SIZE or found.tokens < 4 or found.repeats < 2:
        parser.error(f"--rows must be a multiple of {GROUP_SIZE}, --tokens at least 4, --repeats at least 2")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Compare with every host that is installed; 0 where at least one is."""
    args = parse(argv)
    batch = draw(args.rows, args.tokens, args.seed)
    here = [host for host in PAIRS if installed(host)]
    print(f"torch {torch.__version__}, {args.rows} x {args.tokens} tokens, float32, seed {args.seed}", end="")
    print(f", medians of {args.repeats}")
    for host in PAIRS:
        print(f"{host} {installed(host)}" if host in here else f"{host} is not installed here: its rows are skipped")
    pairs = [p for host in here for p in PAIRS[host]() if args.only is None or p.preset in args.only]
    for pair in pairs:
        print(f"equal to {require_equal(pair, batch):.0e}: {pair}")
    settle_allocator()
    print(HEADER)
    for pair in pairs:
        whole = steps_of(pair, batch)
        peaks = peak_bytes(whole["theirs"]), peak_bytes(whole["ours"])
        for threads in args.threads:
            print(line(pair, batch, threads, args.repeats, peaks), flush=True)
    return 0 if pairs else 1


if __name__ == "__main__":
    sys.exit(main())
