"""Run by torchrun: trains the tiny model under FSDP2 in bfloat16 on CPUs and saves what reached the loss.

torchrun --nproc-per-node 2 fsdp2_processes.py MODEL OUT GUARD_TO_SWITCH_OFF...
"""

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from datasets import Dataset
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).parent))

from two_processes import leave, reward, rollout

from isentrope.engines.trl import GuardError, ObjectiveTrainer


class Sharded(ObjectiveTrainer):
    """Shards on CPUs, where accelerate would quietly take DDP."""

    precision = "no"  # of the layers: "bf16", or that of the weights

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
            cpu_ram_efficient_loading=False,
        )
        if self.precision != "no":
            plugin.set_mixed_precision(self.precision)
        for shared in (PartialState._shared_state, AcceleratorState._shared_state):
            shared["distributed_type"] = DistributedType.FSDP
        AcceleratorState._shared_state["fsdp_plugin"] = plugin
        self.is_fsdp_enabled = True


class Watched(Sharded):
    """Keeps what the forward passes return."""

    precision = "bf16"

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        self.seen: list[torch.Tensor] = []
        self.sharded: list[bool] = []

    def _roll_out(self, examples: Any) -> Any:
        if not self.sharded:  # a later rollout may find the root still gathered
            self.sharded = [isinstance(p, DTensor) for p in self.model.parameters()]
        return super()._roll_out(examples)

    def _score(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._score(*args, **kwargs)
        self.seen.append(found[0].detach().clone())
        return found


def policies(model: Any) -> dict[str, Any]:
    """output_dtype of every sharded module."""
    states = {name: module._get_fsdp_state() for name, module in model.named_modules() if hasattr(module, "unshard")}
    return {name: state._mp_policy.output_dtype for name, state in states.items()}


def main(model: str, out: str, *without: str) -> None:
    """Train 2 updates and save the log-probabilities, the policies of all modules and what stopped the run."""
    warnings.simplefilter("ignore")
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    args = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=8,
        num_generations=4,
        num_iterations=2,
        max_completion_length=8,
        max_steps=2,
        learning_rate=0.01,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        ddp_backend="gloo",
        bf16=True,
        activation_checkpointing=False,
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    arguments: dict[str, Any] = {
        "model": AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        "args": args,
        "train_dataset": Dataset.from_dict({"prompt": [f"{i}+{i}=" for i in range(32)]}),
        "processing_class": AutoTokenizer.from_pretrained(model),
        "reward_funcs": reward,
        "rollout_func": rollout,
        "objective": "ce_gppo",
        "without_guards": without,
    }
    trainer, error = Watched(**arguments), ""
    try:
        trainer.train()
    except GuardError as caught:
        error = str(caught)
    found = {
        "processes": dist.get_world_size(),
        "type": trainer.accelerator.distributed_type.value,
        "sharded": bool(trainer.sharded) and all(trainer.sharded),
        "policies": policies(trainer.model),
        "logp": trainer.seen,
        "losses": [line["loss"] for line in trainer.state.log_history if "loss" in line],
        "error": error,
    }
    torch.save(found, Path(out) / f"result{trainer.accelerator.process_index}.pt")
    leave(dist.get_world_size())


if __name__ == "__main__":
    main(*sys.argv[1:])
