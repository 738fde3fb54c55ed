"""A training step in TRL, stock against ours: time and peak memory, on the embedded model and on SmolLM2-135M.

Run: `python bench/trl_step.py [--model embedded|smollm2] [--steps N]`.

Stock `GRPOTrainer` (loss_type "dapo"), ours with TRL's head and ours with our own take the same prompts, seeds and
options, `--rounds` times in turn, each in a process of its own. Seconds are CPU seconds of a step's forward and
backward passes alone and of the whole step.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any

SIDES = ("stock", "trl head", "our head")
SIZES = {"embedded": {"rows": 256, "group": 8, "tokens": 24}, "smollm2": {"rows": 16, "group": 8, "tokens": 24}}


def measure(side: str, name: str, steps: int, threads: int) -> dict[str, float]:
    """Train `steps` updates on one rollout batch each, and say what a step cost."""
    import datasets
    import torch
    import transformers
    from trl import GRPOConfig, GRPOTrainer

    from isentrope import models, presets, tasks
    from isentrope.advantage import GroupRelative
    from isentrope.engines.trl import ObjectiveTrainer

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    size = SIZES[name]
    task = tasks.get("countdown" if name == "embedded" else "arithmetic_words")
    model, tokenizer = models.load(name)
    arguments: dict[str, Any] = {
        "model": model,
        "reward_funcs": tasks.reward_function(task),
        "train_dataset": datasets.Dataset.from_list(tasks.dataset_rows(task, "train", 256, seed=0)),
        "processing_class": tokenizer,
    }
    with tempfile.TemporaryDirectory() as folder:
        arguments["args"] = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=size["rows"],
            num_generations=size["group"],
            max_completion_length=size["tokens"],
            learning_rate=1e-6,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            dataloader_pin_memory=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        trainer, spent = _timed(side, arguments, presets, GroupRelative, GRPOTrainer, ObjectiveTrainer)
        before = _peak()
        start = time.process_time()
        trainer.train()
        whole = (time.process_time() - start) / steps
    return {"loss": statistics.median(spent), "step": whole, "peak": _peak(), "before": before}


def _timed(side: str, arguments: dict[str, Any], presets: Any, advantage: Any, stock: Any, ours: Any) -> Any:
    """A trainer that notes the CPU seconds of each training step's loss, forward and backward."""
    spent: list[float] = []
    base = stock if side == "stock" else ours

    class Timed(base):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            prepared = self._prepare_inputs(inputs)
            self._prepare_inputs, kept = lambda _: prepared, self._prepare_inputs
            start = time.process_time()
            loss = super().training_step(model, inputs, num_items_in_batch)
            spent.append(time.process_time() - start)
            self._prepare_inputs = kept
            return loss

    if side == "stock":
        return Timed(**arguments), spent
    objective = replace(presets.dapo, select=(), advantage=advantage(eps=1e-4))
    return Timed(**arguments, objective=objective, head="trl" if side == "trl head" else "isentrope"), spent


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Print medians over the rounds, and ratios to stock TRL."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(SIZES), default="embedded")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", choices=SIDES, help="measure one side in this process and print JSON")
    args = parser.parse_args()
    if args.side:
        print(json.dumps(measure(args.side, args.model, args.steps, args.threads)))
        return
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for number in range(args.rounds):
        for side in SIDES if number % 2 == 0 else reversed(SIDES):
            found[side].append(_in_a_process(side, args))
    _print(found)


def _in_a_process(side: str, args: argparse.Namespace) -> dict[str, float]:
    options = ["--model", args.model, "--steps", str(args.steps), "--threads", str(args.threads), "--side", side]
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, __file__, *options], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _print(found: dict[str, list[dict[str, float]]]) -> None:
    medians = {
        side: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for side, runs in found.items()
    }
    print(f"{'':10} {'loss, CPU s':>12} {'ratio':>6} {'step, CPU s':>12} {'ratio':>6} {'added MiB':>10} {'ratio':>6}")
    stock = medians["stock"]
    for side, row in medians.items():
        added, base = row["peak"] - row["before"], stock["peak"] - stock["before"]
        print(
            f"{side:10} {row['loss']:12.3f} {row['loss'] / stock['loss']:6.2f} {row['step']:12.3f}"
            f" {row['step'] / stock['step']:6.2f} {added:10.0f} {added / base:6.2f}"
        )


if __name__ == "__main__":
    main()
