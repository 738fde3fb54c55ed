"""Trains the embedded model: `python -m isentrope.pretrain --out DIR --seed 0`.

A small Llama over characters, supervised on the tasks with written-out steps until it solves a part of them. Runs on
a CPU in minutes. The same seed, machine and number of threads give the same bytes; on another machine the rounding of
matrix products differs, and with it the last digits of the weights.
"""

import argparse
import math
import os
import random
import shutil
import string
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from isentrope import tasks
from isentrope.errors import IsentropeError
from isentrope.models import without_progress_bars

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
CHARACTERS = string.printable[:95] + "\n"  # printable ASCII, and a line break for chat prompts
IGNORED = -100  # cross_entropy leaves out labels of this value
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] + '\n' }}{% endfor %}"


@dataclass(frozen=True)
class Pretraining:
    """The numbers of the run.

    mix: share of each task in a batch. learning_rate: the peak, reached after `warmup` updates and lowered to 0 along a
    cosine. steps: more of them raise pass@1 and lower the entropy of the model that reinforcement learning starts from.
    """

    mix: Mapping[str, float] = field(default_factory=lambda: {"countdown": 0.9, "digitsum": 0.07, "addition": 0.03})
    steps: int = 1100
    batch: int = 192
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.01
    hidden: int = 96
    layers: int = 3
    heads: int = 4
    intermediate: int = 256
    context: int = 512
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "hidden", "layers", "heads", "intermediate", "context", "threads"):
            if getattr(self, name) < 1:
                raise IsentropeError(f"Pretraining.{name} is {getattr(self, name)}; it must be at least 1")
        if not self.mix or min(self.mix.values()) <= 0:
            raise IsentropeError(f"Pretraining.mix is {dict(self.mix)}; name a task or more, each with a share above 0")


def build_tokenizer(context: int = 512) -> "PreTrainedTokenizerFast":
    """A tokenizer of one token a character: printable ASCII, a line break, <pad>, <end>, <unk>."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate([PAD, END, UNKNOWN, *CHARACTERS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=context,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def build_model(settings: Pretraining, tokenizer: "PreTrainedTokenizerFast") -> "LlamaForCausalLM":
    """A randomly initialised Llama with the embedding tied to the head. Draws from torch's global generator."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def draw_pairs(settings: Pretraining, step: int) -> list[tuple[str, str]]:
    """The batch of one step: training problems of the mix, each with one of its right answers chosen uniformly."""
    rng = random.Random(f"pretrain|{settings.seed}|{step}")
    names = rng.choices(list(settings.mix), weights=list(settings.mix.values()), k=settings.batch)
    pairs = []
    for name in settings.mix:
        count = names.count(name)
        drawn = tasks.get(name).examples("train", count, seed=rng.getrandbits(32)) if count else []
        pairs += [(str(example.prompt), rng.choice(example.references)) for example in drawn]
    return pairs


def pad_pairs(pairs: Sequence[tuple[str, str]], tokenizer: "PreTrainedTokenizerFast") -> tuple[Tensor, Tensor]:
    """(ids, labels), both [B, T], padded on the right; labels are IGNORED at the prompt and at padding."""
    prompts = [tokenizer.encode(prompt) for prompt, _ in pairs]
    answers = [[*tokenizer.encode(answer), tokenizer.eos_token_id] for _, answer in pairs]
    length = max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True))
    ids = torch.full((len(pairs), length), int(tokenizer.pad_token_id))
    labels = torch.full((len(pairs), length), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def learning_rate(step: int, settings: Pretraining) -> float:
    """Linear warm-up from 0 to the peak, then a cosine down to 0 at the last step."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    progress = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
    return settings.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))


def update(
    model: "LlamaForCausalLM", optimizer: torch.optim.Optimizer, ids: Tensor, labels: Tensor, rate: float
) -> float:
    """One AdamW update on the mean cross-entropy of the answers' tokens; returns that mean, in nats a token."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits  # padding on the right never reaches a label
    loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def train(settings: Pretraining) -> tuple["LlamaForCausalLM", "PreTrainedTokenizerFast"]:
    """Train from scratch and return (model, tokenizer). Sets torch's thread count and global seed."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    tokenizer = build_tokenizer(settings.context)
    model = build_model(settings, tokenizer).train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=settings.weight_decay)
    figures = TextColumn("{task.completed}/{task.total} loss {task.fields[loss]:.3f}")
    with Progress(TextColumn("supervised"), BarColumn(), figures, TimeRemainingColumn()) as progress:
        bar = progress.add_task("", total=settings.steps, loss=float("nan"))
        for step in range(settings.steps):
            ids, labels = pad_pairs(draw_pairs(settings, step), tokenizer)
            loss = update(model, optimizer, ids, labels, learning_rate(step, settings))
            progress.update(bar, advance=1, loss=loss)
    return model.eval(), tokenizer


def save(model: "LlamaForCausalLM", tokenizer: "PreTrainedTokenizerFast", out: Path) -> None:
    """Write the model's files into `out`, creating it; each file appears whole or not at all."""
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with without_progress_bars():
            model.save_pretrained(part)
            tokenizer.save_pretrained(part)
        out.mkdir(parents=True, exist_ok=True)
        for file in sorted(part.iterdir()):
            file.replace(out / file.name)
    except OSError as error:
        raise IsentropeError(f"cannot write the model to {out}: {error}; choose another --out") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Nothing is written when it is interrupted."""
    parser = argparse.ArgumentParser(prog="python -m isentrope.pretrain", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the model's files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=Pretraining.steps)
    parser.add_argument("--threads", type=int, default=Pretraining.threads, help="part of what makes the bytes equal")
    chosen = parser.parse_args(arguments)
    start = time.process_time()
    try:
        settings = Pretraining(steps=chosen.steps, seed=chosen.seed, threads=chosen.threads)
        model, tokenizer = train(settings)
        save(model, tokenizer, chosen.out)
    except IsentropeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    seconds = time.process_time() - start
    print(f"{chosen.out}: {model.num_parameters():,} parameters, {seconds:.0f} CPU seconds, {asdict(settings)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
