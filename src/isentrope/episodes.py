"""Episodes of several turns: a policy and an environment write lines in turn, each continuing all that stands before.

    found = play(model, tokenizer, task, examples, max_new_tokens=64)

A turn of the policy ends with a line break or its end-of-sequence token; the environment's answer and a line break are
appended, and the policy goes on. Only the policy's tokens count in any statistic: `Episode.mask` tells them apart.
Sampling is exact, from softmax(logits / temperature).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from isentrope.errors import IsentropeError
from isentrope.sampling import Completion, continue_ids, encode_prompt, sample
from isentrope.tasks.base import Example, Task, generator
from isentrope.tasks.turns import TURN, Environment, Interactive, is_interactive

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass
class Episode:
    """One episode.

    prompt: token ids. tokens: ids of all that follows, the environment's included; mask: True at the policy's.
    entropies: exact, of the distribution that each of the policy's tokens was drawn from, in nats.
    text: of all that follows the prompt, without special tokens. is_truncated: the length limit ended it, in which case
    the last token is still the policy's.
    """

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    text: str = ""
    is_truncated: bool = False

    def completion(self) -> Completion:
        """The episode as an evaluation takes it: the whole text, and of the tokens those of the policy."""
        own = tuple(token for token, is_own in zip(self.tokens, self.mask, strict=True) if is_own)
        return Completion(self.text, own, tuple(self.entropies), self.is_truncated)


def play(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    task: Interactive,
    examples: Sequence[Example],
    max_new_tokens: int,
    temperature: float = 1.0,
    seeds: Sequence[int] | None = None,
    batch_size: int = 256,
) -> list[Episode]:
    """An episode for each example; give an example several times for several episodes of it.

    max_new_tokens: of an episode, the environment's included. seeds: one a row, which fixes its random numbers whatever
    the other rows are; None counts the rows.
    Raises IsentropeError for a tokenizer in which a line break is not a token by itself, and what `sample` raises.
    """
    end = line_break(tokenizer)
    numbers = list(range(len(examples)) if seeds is None else seeds)
    rows = [
        _Row(Episode(encode_prompt(tokenizer, example.prompt)), task.begin(example), seed)
        for example, seed in zip(examples, numbers, strict=True)
    ]
    turn, live = 0, rows
    while live:
        room = max(max_new_tokens - len(row.episode.tokens) for row in live)
        drawn = continue_ids(
            model,
            tokenizer,
            [row.episode.prompt + row.episode.tokens for row in live],
            1,
            room,
            temperature=temperature,
            seed=[generator("turn", row.seed, turn).getrandbits(62) for row in live],
            batch_size=batch_size,
            ends=[end],
        )
        for row, (completion,) in zip(live, drawn, strict=True):
            row.take(completion, tokenizer, max_new_tokens)
        live, turn = [row for row in live if not row.is_over], turn + 1
    return [row.episode for row in rows]


def sample_task(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    task: Task,
    examples: Sequence[Example],
    num_samples: int = 8,
    max_new_tokens: int = 64,
    temperature: float = 1.0,
    seed: int | Sequence[int] = 0,
    batch_size: int = 256,
) -> list[list[Completion]]:
    """`num_samples` completions of each example: `sampling.sample`, or whole episodes of a task of several turns."""
    if not is_interactive(task):
        prompts = [example.prompt for example in examples]
        return sample(model, tokenizer, prompts, num_samples, max_new_tokens, temperature, seed, batch_size)
    bases = [f"{seed}|{i}" for i in range(len(examples))] if isinstance(seed, int) else list(map(str, seed))
    rows = [example for example in examples for _ in range(num_samples)]
    seeds = [generator("episode", base, i).getrandbits(62) for base in bases for i in range(num_samples)]
    found = [
        episode.completion()
        for start in range(0, len(rows), batch_size)
        for episode in play(
            model,
            tokenizer,
            task,
            rows[start : start + batch_size],
            max_new_tokens,
            temperature,
            seeds[start : start + batch_size],
            batch_size,
        )
    ]
    return [found[i * num_samples : (i + 1) * num_samples] for i in range(len(examples))]


@dataclass
class _Row:
    """An episode under way."""

    episode: Episode
    environment: Environment
    seed: int
    is_over: bool = False

    def take(self, drawn: Completion, tokenizer: Any, limit: int) -> None:
        """Add a turn of the policy, let the environment act, and add its answer."""
        episode, room = self.episode, limit - len(self.episode.tokens)
        tokens = list(drawn.tokens[:room])
        episode.tokens += tokens
        episode.mask += [True] * len(tokens)
        episode.entropies += drawn.entropies[:room]
        text = str(tokenizer.decode(tokens, skip_special_tokens=True))
        episode.text += text
        if drawn.is_truncated or len(drawn.tokens) > room:
            self.is_over = episode.is_truncated = True
            return
        answer = self.environment.step(text.removesuffix(TURN))
        if answer is None:
            self.is_over = True
            return
        self._append(f"{'' if text.endswith(TURN) else TURN}{answer}{TURN}", tokenizer, limit)

    def _append(self, text: str, tokenizer: Any, limit: int) -> None:
        """Add the environment's text, or end the episode where no token of the policy would fit behind it."""
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
        if len(self.episode.tokens) + len(ids) >= limit:
            self.is_over = self.episode.is_truncated = True
            return
        self.episode.tokens += ids
        self.episode.mask += [False] * len(ids)
        self.episode.text += text


@lru_cache(maxsize=8)
def line_break(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The token that is a line break; IsentropeError where a line break is none, or part of other tokens, too."""
    holding = [token for token in range(len(tokenizer)) if TURN in str(tokenizer.decode([token]))]
    if len(holding) != 1 or str(tokenizer.decode(holding)) != TURN:
        raise IsentropeError(
            f"tasks of several turns end them with a line break, and {len(holding)} tokens of this tokenizer hold one: "
            "exactly one must, and hold nothing else. For such a model give TRL an environment_factory"
        )
    return holding[0]
