"""What a token column costs on its way through a real TransferQueue: seconds to write and to read it, on this machine.

    python bench/verl_queue.py                       # 16 to 256 MiB, one storage unit
    python bench/verl_queue.py --mib 64 512 --units 2

A column as verl's driver writes it: nested, one row a completion, float32. Starts Ray on this machine, and ends it.
Needs verl 0.9 (its Ray and TransferQueue).
"""

import argparse
import os
import sys
import time
from statistics import median
from typing import Any

import torch

try:
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf
    from tensordict import TensorDict
except ImportError as error:
    print(f"skipped: needs what verl 0.9 runs on ({error})")
    sys.exit(0)

TOKENS = 16_384
MIB = 2**20


def column(mib: int) -> tuple[torch.Tensor, list[str]]:
    """A nested float32 column of so many MiB, and a key for each of its rows."""
    rows = mib * MIB // (4 * TOKENS)
    values = [torch.rand(TOKENS) for _ in range(rows)]
    return torch.nested.nested_tensor(values, layout=torch.jagged), [f"{mib}_{i}_0" for i in range(rows)]


def seconds(mib: int, repeats: int) -> tuple[float, float]:
    """Median seconds of a write and of a read."""
    held, keys = column(mib)
    writes, reads = [], []
    for _ in range(repeats):
        fields = TensorDict({"advantages": held}, batch_size=len(keys))
        start = time.perf_counter()
        tq.kv_batch_put(keys=keys, partition_id="train", fields=fields)
        middle = time.perf_counter()
        found = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["advantages"])
        writes.append(middle - start)
        reads.append(time.perf_counter() - middle)
        assert found["advantages"].values().numel() == held.values().numel()
    tq.kv_clear(keys=keys, partition_id="train")
    return median(writes), median(reads)


def start(units: int) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(num_cpus=2, object_store_memory=256 * MIB, include_dashboard=False, log_to_driver=False)
    return tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": units}}}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--units", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    start(options.units)
    try:
        print(f"{options.units} storage unit(s), {os.cpu_count()} logical CPUs, one machine")
        print("| MiB | write s | read s | write MiB/s | read MiB/s |")
        print("| --- | --- | --- | --- | --- |")
        for mib in options.mib:
            write, read = seconds(mib, options.repeats)
            print(f"| {mib} | {write:.2f} | {read:.2f} | {mib / write:.0f} | {mib / read:.0f} |")
    finally:
        tq.close()
        ray.shutdown()


if __name__ == "__main__":
    main()
