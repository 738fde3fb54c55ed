"""Run by torchrun (or alone): trains the tiny model once an objective under one layout, and saves what happened.

    torchrun --nproc-per-node 2 rank_processes.py MODEL OUT LAYOUT OBJECTIVE...

LAYOUT: "ddp", or "fsdp2" in float32. The batches are those of two_processes.py, the same on any number of ranks.
"""

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from fsdp2_processes import Sharded
from two_processes import leave, train_once

from isentrope.engines.trl import ObjectiveTrainer


def main(model: str, out: str, layout: str, *objectives: str) -> None:
    """One result file a rank, a list with what `two_processes.train_once` found of every objective."""
    make = Sharded if layout == "fsdp2" else ObjectiveTrainer
    found = [train_once(model, out, objective, make=make, save_strategy="no") for objective in objectives]
    Path(out).mkdir(parents=True, exist_ok=True)
    torch.save(found, Path(out) / f"result{os.environ.get('RANK', '0')}.pt")
    leave(found[0]["world"])


if __name__ == "__main__":
    main(*sys.argv[1:])
