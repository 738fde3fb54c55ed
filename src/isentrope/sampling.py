"""Completions of a language model, drawn exactly: from the full softmax of logits / temperature, no top-k, no top-p.

It reads no global random state and writes none.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from isentrope.errors import IsentropeError
from isentrope.tasks.base import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Completion:
    """One sampled completion.

    text: decoded without special tokens. tokens: ids, the end token included. entropies: exact entropy of the
    distribution each token was drawn from, in nats. is_truncated: the length limit came before an end token.
    """

    text: str
    tokens: tuple[int, ...]
    entropies: tuple[float, ...]
    is_truncated: bool


def sample(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompts: Sequence[Prompt],
    num_samples: int = 8,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    batch_size: int = 256,
) -> list[list[Completion]]:
    """`num_samples` completions of each prompt.

    temperature: divides the logits; 0 takes the likeliest token, and entropies are then those at temperature 1.
    seed: fixes the random number of each (prompt, sample, position), so that batch_size, the number of rows decoded
    together, changes nothing but rounding. A sequence has a seed for each prompt: the completions of a prompt then do
    not depend on which others are sampled in the same call.
    Every module's train/eval mode is restored, and the global random state is not touched.
    Raises IsentropeError for a prompt without tokens or one that does not fit into the model's context.
    """
    encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    return continue_ids(
        model,
        tokenizer,
        encoded,
        num_samples,
        max_new_tokens,
        temperature=temperature,
        seed=seed,
        batch_size=batch_size,
    )


def continue_ids(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    encoded: Sequence[Sequence[int]],
    num_samples: int,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    batch_size: int = 256,
    ends: Sequence[int] = (),
) -> list[list[Completion]]:
    """`sample` for prompts that are token ids already: each is read once, and its cache serves all its samples.

    ends: tokens that end a completion besides the model's own.
    """
    _check_sampling(num_samples, max_new_tokens, temperature, batch_size)
    _check_context(model, encoded, max_new_tokens)
    uniforms = _uniforms(seed, (len(encoded), num_samples, max_new_tokens))
    copies = min(num_samples, batch_size)
    at_once = max(1, batch_size // copies)
    found: list[list[Completion]] = [[] for _ in encoded]
    decoder = _Decoder(model, tokenizer, temperature, ends)
    with _in_eval_mode(model), torch.inference_mode():
        for start in range(0, len(encoded), at_once):
            for first in range(0, num_samples, copies):
                numbers = uniforms[start : start + at_once, first : first + copies]
                for offset, rows in enumerate(decoder(encoded[start : start + at_once], numbers)):
                    found[start + offset] += rows
    return found


def _uniforms(seed: int | Sequence[int], shape: tuple[int, int, int]) -> Tensor:
    """Random numbers in [0, 1) of the given shape: prompts, samples, positions."""
    if isinstance(seed, int):
        return torch.rand(shape, generator=torch.Generator().manual_seed(seed))
    if len(seed) != shape[0]:
        raise ValueError(f"sample: {len(seed)} seeds for {shape[0]} prompts; give one for each")
    rows = [torch.rand(shape[1:], generator=torch.Generator().manual_seed(one)) for one in seed]
    return torch.stack(rows) if rows else torch.empty(shape)


def encode_prompt(tokenizer: "PreTrainedTokenizerBase", prompt: Prompt) -> list[int]:
    """Token ids of a text, or of chat messages in the tokenizer's chat template with the generation prompt added."""
    if isinstance(prompt, str):
        ids = list(tokenizer(prompt)["input_ids"])
    elif not tokenizer.chat_template:
        raise IsentropeError("the prompt is a list of chat messages and the tokenizer has no chat template; use a text")
    else:
        encoded: Any = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)
        ids = list(encoded["input_ids"])
    if not ids:
        raise IsentropeError(f"the prompt {prompt!r} has no tokens; a model needs at least one to continue")
    return ids


def _check_sampling(num_samples: int, max_new_tokens: int, temperature: float, batch_size: int) -> None:
    for name, value in {"num_samples": num_samples, "max_new_tokens": max_new_tokens, "batch_size": batch_size}.items():
        if value < 1:
            raise ValueError(f"sample: {name} is {value}; it must be at least 1")
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"sample: temperature is {temperature}; it must be finite and at least 0")


def _check_context(model: "PreTrainedModel", encoded: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(map(len, encoded), default=0)
    if limit is not None and longest + max_new_tokens > limit:
        raise IsentropeError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed the model's context of {limit}; "
            "lower max_new_tokens"
        )


@contextmanager
def _in_eval_mode(model: torch.nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


class _Decoder:
    """Decodes the samples of a few prompts together, with a key-value cache that holds live rows only."""

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        temperature: float,
        ends: Sequence[int] = (),
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
        self.pad = next((token for token in (pad, end) if token is not None), 0)
        bare = model.get_base_model() if hasattr(model, "get_base_model") else model  # an adapter hides the signature
        parameters = inspect.signature(bare.forward).parameters
        self.cache_name = "cache" if "cache" in parameters else "past_key_values"  # renamed in transformers 5.2x
        self.ends = torch.tensor(sorted(_end_tokens(model, end) | set(ends)), device=model.device)

    def __call__(self, encoded: Sequence[Sequence[int]], uniforms: Tensor) -> list[list[Completion]]:
        """encoded: ids of P prompts. uniforms: [P, S, T] in [0, 1). Returns S completions for each prompt."""
        num_prompts, copies, length = uniforms.shape
        tokens, entropies = self._decode(encoded, copies, uniforms.flatten(0, 1).to(self.model.device))
        rows = [self._completion(ids, values, length) for ids, values in zip(tokens, entropies, strict=True)]
        return [rows[p * copies : (p + 1) * copies] for p in range(num_prompts)]

    def _decode(
        self, encoded: Sequence[Sequence[int]], copies: int, uniforms: Tensor
    ) -> tuple[list[list[int]], list[list[float]]]:
        from transformers import DynamicCache

        ids, mask = self._pad_left(encoded)
        places = (mask.cumsum(dim=1) - 1).clamp(min=0)  # padding may sit anywhere; it is masked
        cache = DynamicCache(config=self.model.config)
        logits = self._logits(ids, mask, places, cache).repeat_interleave(copies, dim=0)
        cache.batch_repeat_interleave(copies)
        mask, place = (x.repeat_interleave(copies, dim=0) for x in (mask, places[:, -1:]))
        live = torch.arange(len(logits), device=ids.device)
        tokens = torch.full(uniforms.shape, -1, device=ids.device)  # -1: the row had ended
        entropies = torch.zeros(uniforms.shape, device=ids.device)
        for step in range(uniforms.shape[1]):
            chosen, entropy = self._choose(logits, uniforms[live, step])
            tokens[live, step], entropies[live, step] = chosen, entropy
            going = ~torch.isin(chosen, self.ends)
            if step + 1 == uniforms.shape[1] or not going.any():
                break
            if not going.all():  # ended rows leave the cache
                kept = going.nonzero().flatten()
                cache.batch_select_indices(kept)
                live, mask, place, chosen = live[kept], mask[kept], place[kept], chosen[kept]
            mask, place = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1), place + 1
            logits = self._logits(chosen[:, None], mask, place, cache)
        lengths = (tokens >= 0).sum(dim=1).tolist()
        return _cut(tokens.tolist(), lengths), _cut(entropies.tolist(), lengths)

    def _logits(self, ids: Tensor, mask: Tensor, places: Tensor, cache: Any) -> Tensor:
        """[B, V] at the last position; the cache grows in place."""
        given = {self.cache_name: cache, "use_cache": True, "logits_to_keep": 1}
        return self.model(input_ids=ids, attention_mask=mask, position_ids=places, **given).logits[:, -1]

    def _pad_left(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, encoded))
        ids = [[self.pad] * (width - len(row)) + list(row) for row in encoded]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in encoded]
        return torch.tensor(ids, device=self.model.device), torch.tensor(mask, device=self.model.device)

    def _choose(self, logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """The token at which the cumulative distribution passes the random number, and the exact entropy."""
        scaled = logits.double() / (self.temperature or 1.0)
        probabilities = scaled.softmax(dim=-1)
        entropy = torch.special.entr(probabilities).sum(dim=-1)
        if self.temperature == 0:
            return logits.argmax(dim=-1), entropy.float()
        cumulative = probabilities.cumsum(dim=-1)
        if not torch.isfinite(cumulative[:, -1]).all():
            raise IsentropeError(
                "the model's logits hold NaN or inf: its weights have diverged; load an earlier checkpoint"
            )
        passed = uniform.double()[:, None] * cumulative[:, -1:]  # a float32 number: never rounds up to the total
        return torch.searchsorted(cumulative, passed, right=True).squeeze(-1), entropy.float()

    def _completion(self, tokens: list[int], entropies: list[float], limit: int) -> Completion:
        is_truncated = len(tokens) == limit and tokens[-1] not in self.ends.tolist()
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True))
        return Completion(text, tuple(tokens), tuple(entropies), is_truncated)


def _cut(rows: list[list[Number]], lengths: Sequence[int]) -> list[list[Number]]:
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def _end_tokens(model: "PreTrainedModel", end: int | None) -> set[int]:
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    several = configured if isinstance(configured, list) else [configured]
    return {token for token in [*several, end] if token is not None}
