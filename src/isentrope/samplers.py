"""What an evaluation samples with: transformers, or vLLM where it is installed. Both draw from softmax(logits / T)."""

from collections.abc import Sequence
from importlib import util
from typing import Any, Protocol

import torch

from isentrope import models
from isentrope.episodes import sample_task
from isentrope.errors import IsentropeError
from isentrope.evaluate import ESTIMATE, EXACT
from isentrope.sampling import Completion, encode_prompt
from isentrope.tasks.base import Example, Prompt, Task
from isentrope.tasks.turns import is_interactive

BACKENDS = ("auto", "transformers", "vllm")


class Sampler(Protocol):
    """Draws completions of the problems of a task, of each with a seed of its own.

    entropy_kind: what the entropies of its completions are. context: tokens that prompt and completion may have
    together, None where nobody knows. name: of the backend.
    """

    name: str
    entropy_kind: str
    context: int | None

    def encode(self, prompt: Prompt) -> list[int]: ...

    def draw(
        self,
        task: Task,
        examples: Sequence[Example],
        num_samples: int,
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> list[list[Completion]]: ...


class TransformersSampler:
    """A model in this process, on the GPU if there is one; entropies are exact."""

    name = "transformers"
    entropy_kind = EXACT

    def __init__(self, model: str, dtype: str = "auto", batch_size: int = 64) -> None:
        """dtype: of the weights; "auto" is float32 on a CPU and bfloat16 on a GPU. batch_size: rows at a time."""
        has_gpu = torch.cuda.is_available()
        chosen = ("bfloat16" if has_gpu else "float32") if dtype == "auto" else dtype
        self._model, self._tokenizer = models.load(model, getattr(torch, chosen))
        if has_gpu:
            self._model.to("cuda")
        self._batch_size = batch_size
        self.context: int | None = getattr(self._model.config, "max_position_embeddings", None)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids, see `sampling.encode_prompt`."""
        return encode_prompt(self._tokenizer, prompt)

    def draw(
        self,
        task: Task,
        examples: Sequence[Example],
        num_samples: int,
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> list[list[Completion]]:
        """See `episodes.sample_task`."""
        settings = (num_samples, max_new_tokens, temperature, seeds, self._batch_size)
        return sample_task(self._model, self._tokenizer, task, examples, *settings)


class VllmSampler:
    """A model in vLLM. It reports the drawn tokens' log-probabilities only, whose mean estimates the entropy.

    The expected value of -log p of a drawn token is the entropy. Each prompt has a seed of its own; how vLLM batches
    the requests changes rounding.
    """

    name = "vllm"
    entropy_kind = ESTIMATE

    def __init__(self, model: str, dtype: str = "auto", batch_size: int = 64) -> None:
        """model: a folder or a hub id. batch_size: rows that vLLM runs side by side."""
        if util.find_spec("vllm") is None:
            raise IsentropeError("--backend vllm needs vLLM, which is not installed: pip install vllm")
        if model in models.NAMES:
            raise IsentropeError(f"model {model!r} has no folder that vLLM could read; use --backend transformers")
        import vllm

        self._params = vllm.SamplingParams
        self._engine = vllm.LLM(
            model=model,
            dtype=dtype,
            max_num_seqs=batch_size,
            logprobs_mode="processed_logprobs",  # after the temperature, like the draw
        )
        self._tokenizer = self._engine.get_tokenizer()
        self.context: int | None = self._engine.llm_engine.model_config.max_model_len

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids, see `sampling.encode_prompt`."""
        return encode_prompt(self._tokenizer, prompt)

    def draw(
        self,
        task: Task,
        examples: Sequence[Example],
        num_samples: int,
        max_new_tokens: int,
        temperature: float,
        seeds: Sequence[int],
    ) -> list[list[Completion]]:
        """All prompts at once; vLLM schedules them. `entropies` of a completion hold -log p of its tokens.

        Raises IsentropeError for a task of several turns.
        """
        if is_interactive(task):
            raise IsentropeError(
                f"task {task.name} has several turns, which --backend vllm cannot play: transformers can"
            )
        settings = {"n": num_samples, "max_tokens": max_new_tokens, "temperature": temperature, "logprobs": 0}
        params = [self._params(**settings, seed=seed % 2**31) for seed in seeds]
        prompts = [{"prompt_token_ids": self.encode(example.prompt)} for example in examples]
        answers = self._engine.generate(prompts, params, use_tqdm=False)
        return [[_completion(one) for one in answer.outputs] for answer in answers]


def _completion(output: Any) -> Completion:
    tokens = tuple(output.token_ids)
    surprisals = tuple(-found[token].logprob for token, found in zip(tokens, output.logprobs, strict=True))
    return Completion(output.text, tokens, surprisals, is_truncated=output.finish_reason == "length")


def load(backend: str, model: str, dtype: str = "auto", batch_size: int = 64) -> Sampler:
    """The sampler of that name. "auto": vLLM where it is installed, a GPU is there and it can read the model.

    Raises IsentropeError for a backend that does not exist or is not installed, and what `models.load` raises.
    """
    if backend not in BACKENDS:
        raise IsentropeError(f"there is no backend {backend!r}; use {', '.join(BACKENDS)}")
    served = util.find_spec("vllm") is not None and torch.cuda.is_available() and model not in models.NAMES
    made = VllmSampler if backend == "vllm" or (backend == "auto" and served) else TransformersSampler
    return made(model, dtype, batch_size)
