"""A tiny model, a character tokenizer and a cheap reward, so that a training run takes a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig

from isentrope.engines.trl import ObjectiveTrainer

from .harness import Run, train

CHARACTERS = list("0123456789+-*/=>;,. abcdefghijkl")


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, and pad, end and unknown."""
    vocabulary = {c: i for i, c in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


@pytest.fixture(scope="session")
def tiny_path(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama of about 10k parameters, saved with its tokenizer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture
def tiny(tiny_path: str) -> Callable[[], LlamaForCausalLM]:
    """Makes copies of the tiny model, all with the same weights, in float32."""

    def load() -> LlamaForCausalLM:
        model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(tiny_path, dtype=torch.float32)
        return model

    return load


@pytest.fixture(scope="session")
def prompts() -> Dataset:
    """32 prompts of different lengths, with two tasks."""
    return Dataset.from_dict({"prompt": [f"{i}+{i * i}=" for i in range(32)], "task": ["even", "odd"] * 16})


def length_reward(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    """Varies within almost every group: odd token ids are good, long answers are bad."""
    return [sum(i % 2 for i in ids) / 4 - 0.05 * len(ids) for ids in completion_ids]


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., GRPOConfig]:
    """A GRPOConfig for seconds on one core; keyword arguments override."""

    def make(**options: Any) -> GRPOConfig:
        settings: dict[str, Any] = {
            "output_dir": str(tmp_path / "out"),
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 6,
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "max_steps": 3,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "activation_checkpointing": False,
            "dataloader_pin_memory": False,
            "disable_tqdm": True,
            "seed": 1,
        }
        return GRPOConfig(**settings | options)

    return make


@pytest.fixture
def run(tiny: Callable[[], Any], config: Callable[..., Any], prompts: Dataset, tokenizer: Any) -> Callable[..., Run]:
    """run(objective, options, **trainer arguments): train the tiny model."""

    def go(objective: Any, options: dict[str, Any] | None = None, trainer: Any = ObjectiveTrainer, **more: Any) -> Run:
        arguments = {"model": tiny(), "args": config(**options or {}), "train_dataset": prompts}
        arguments |= {"processing_class": tokenizer, "reward_funcs": length_reward}
        if objective is not None:
            arguments["objective"] = objective
        return train(trainer, **arguments | more)

    return go
