"""What our trainer adds to a step of verl's on the driver: bytes through the TransferQueue, peak of memory, seconds.

    python bench/verl_driver.py                                # up to 512 rows of 16384 tokens
    python bench/verl_driver.py --rows 128 256 --tokens 4096 --repeats 5 --only grpo adapo

verl's own `_compute_advantage` and ours run on the same rollout batch, each as it stands, with a dictionary in place of
the TransferQueue that counts what is read and written. A straight line through growing batches gives the price of a
token, and that the price of the batch asked for with --scale (512 prompts of 16 completions of 16384 tokens).
Needs verl 0.9; nothing of Ray is started.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from _paired import interleaved, peak_bytes, settle_allocator

try:
    import transfer_queue as tq
    from hydra import compose, initialize_config_module
    from tensordict import NonTensorStack, TensorDict
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.workers.utils.padding import response_to_nested

    from isentrope.engines.verl_trainer import ObjectiveSteps
except ImportError as error:
    print(f"skipped: needs verl 0.9 and what it forgets to name ({error})")
    sys.exit(0)

from isentrope import presets

GROUP_SIZE = 16
SCALE = (512 * GROUP_SIZE, 16_384)  # rows and tokens of the batch that is asked about
PRESETS = ("grpo", "ce_gppo", "adapo", "repo_d", "gepo", "clip_cov", "high_entropy")


@dataclass
class Queue:
    """In place of the TransferQueue: holds the fields of one rollout batch, and counts the bytes of each call."""

    fields: dict[str, Any]
    num_read: int = 0
    num_written: int = 0

    def get(self, select_fields: list[str], **call: Any) -> TensorDict:
        found = {name: self.fields[name] for name in select_fields if name in self.fields}
        self.num_read += sum(size(x) for x in found.values())
        found |= {name: NonTensorStack(*x) for name, x in found.items() if isinstance(x, list)}
        return TensorDict(found, batch_size=len(self.fields["uid"]))

    def put(self, fields: TensorDict, **call: Any) -> SimpleNamespace:
        self.num_written += sum(size(fields[name]) for name in fields.keys())  # noqa: SIM118  (a TensorDict's rows)
        return SimpleNamespace()


def size(x: Any) -> int:
    """Bytes of the values of a field, nested or not; 0 for what is no tensor."""
    if not isinstance(x, torch.Tensor):
        return 0
    values = x.values() if x.is_nested else x
    return values.numel() * values.element_size()


def draw(rows: int, tokens: int, seed: int) -> dict[str, Any]:
    """A rollout batch's fields as the TransferQueue holds them: lengths uniform from a quarter to full."""
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(tokens // 4, tokens + 1, (rows,), generator=g)
    length[0] = tokens
    shape = torch.nested.nested_tensor([torch.ones(int(n), dtype=torch.long) for n in length], layout=torch.jagged)
    reward = torch.zeros(rows, tokens)
    reward[torch.arange(rows), length - 1] = torch.randint(0, 2, (rows,), generator=g).float()
    logp = -torch.empty(rows, tokens).exponential_(generator=g)
    columns = {"rm_scores": reward, "old_log_probs": logp, "entropy": torch.rand(rows, tokens, generator=g)}
    fields = {name: response_to_nested(x, shape) for name, x in columns.items()}
    return fields | {"response_mask": shape, "uid": [f"prompt-{i // GROUP_SIZE}" for i in range(rows)]}


def configuration(preset: str | None, rows: int, tokens: int) -> Any:
    """verl's defaults, with two updates a rollout batch and our two keys for a preset."""
    keys = ["algorithm.adv_estimator=grpo", f"data.max_response_length={tokens}"]
    keys += [f"actor_rollout_ref.rollout.n={GROUP_SIZE}", f"data.train_batch_size={rows // GROUP_SIZE}"]
    keys += [f"actor_rollout_ref.actor.ppo_mini_batch_size={rows // GROUP_SIZE // 2}"]
    if preset is not None:
        keys += ["trainer.v1.trainer_mode=isentrope", f"+trainer.v1.isentrope.objective={preset}"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=keys)


class NoCluster:
    """In place of verl's trainer below ours: its constructor starts Ray."""

    def __init__(self, config: Any) -> None:
        self.config = config


class Ours(ObjectiveSteps, NoCluster):
    base_mode = "sync"


class Driver:
    """A trainer's `_compute_advantage` on one batch, verl's own (no preset) or ours."""

    def __init__(self, preset: str | None, fields: dict[str, Any], tokens: int) -> None:
        self.fields, self.rows = fields, len(fields["uid"])
        config = configuration(preset, self.rows, tokens)
        if preset is None:
            self.trainer = object.__new__(PPOTrainerSync)
            self.trainer.config = config
        else:
            self.trainer = Ours(config)

    def __call__(self) -> Queue:
        queue = Queue(self.fields)
        tq.kv_batch_get, tq.kv_batch_put = queue.get, queue.put
        keys = [f"{uid}_{i}_0" for i, uid in enumerate(self.fields["uid"])]
        self.trainer._compute_advantage(Batch(keys), {})
        return queue


class Batch(SimpleNamespace):
    """In place of verl's KVBatchMeta."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__(keys=keys, partition_id="train", extra_info={}, tags=[{} for _ in keys])

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Cost:
    """Of one batch. cells: rows times the longest row, which padded columns have; tokens: those under the mask; seconds
    of CPU time, which other work on the machine does not change.
    """

    cells: int
    tokens: int
    read: int
    written: int
    peak: int
    seconds: float


def measure(preset: str | None, fields: dict[str, Any], tokens: int, repeats: int) -> Cost:
    driver = Driver(preset, fields, tokens)
    queue = driver()
    timing = interleaved({"step": driver}, repeats, warm_up=1)["step"]
    held = int(fields["response_mask"].values().numel())
    return Cost(driver.rows * tokens, held, queue.num_read, queue.num_written, peak_bytes(driver), median(timing.cpu))


def slope(costs: list[Cost], what: str) -> tuple[float, float]:
    """(per cell, residual) of a least-squares line: the residual is the largest relative distance from it."""
    x = np.array([c.cells for c in costs], dtype=float)
    y = np.array([getattr(c, what) for c in costs], dtype=float)
    a, b = np.polyfit(x, y, 1) if len(costs) > 1 else (y[0] / x[0], 0.0)
    return float(a), float(np.max(np.abs(a * x + b - y) / y))


def line(name: str, costs: list[Cost], scale: tuple[int, int]) -> str:
    """One row of the table: prices of a cell, and the whole batch's."""
    cells = math.prod(scale)
    prices = {what: slope(costs, what) for what in ("read", "written", "peak", "seconds")}
    shown = [f"{prices[what][0]:.2f}" for what in ("read", "written", "peak")]
    whole = [f"{prices[what][0] * cells / 2**30:.2f}" for what in ("read", "written", "peak")]
    seconds = f"{prices['seconds'][0] * cells:.1f}"
    off = [max(prices[what][1] for what in ("read", "written", "peak")), prices["seconds"][1]]
    return " | ".join(["", name, *shown, *whole, seconds, *(f"{x:.0%}" for x in off), ""]).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--tokens", type=int, default=SCALE[1])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=list(PRESETS), choices=presets.names())
    parser.add_argument("--scale", type=int, nargs=2, default=list(SCALE), metavar=("ROWS", "TOKENS"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settle_allocator()
    costs: dict[str, list[Cost]] = {name: [] for name in ("verl's own", *options.only)}
    for rows in options.rows:
        fields = draw(rows, options.tokens, seed=0)
        for name, found in costs.items():
            found.append(measure(None if name == "verl's own" else name, fields, options.tokens, options.repeats))
    print(
        f"{options.rows} rows of up to {options.tokens} tokens, {options.threads} thread(s), torch {torch.__version__}"
    )
    print(f"extrapolated to {options.scale[0]} rows of {options.scale[1]} tokens")
    print(
        "| | read B/cell | written B/cell | peak B/cell | read GiB | written GiB | peak GiB | CPU s | off, B | off, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, found in costs.items():
        print(line(name, found, tuple(options.scale)))


if __name__ == "__main__":
    main()
