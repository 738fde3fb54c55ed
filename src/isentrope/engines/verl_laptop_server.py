"""A rollout server on transformers alone: requests in, completions with exact log-probabilities out.

Requests that wait are sampled together. Each row draws from its own generator, so that a completion depends on its
request and on the weights, not on what it was batched with.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

GATHER = 0.02  # seconds in which the requests of a rollout batch arrive
MAX_ROWS = 512  # sampled at a time
KNOWN = {"temperature", "top_p", "top_k", "repetition_penalty", "logprobs", "max_tokens", "max_new_tokens", "seed"}


@dataclass(frozen=True)
class Request:
    """A prompt and how to sample it. temperature 0 takes the most likely token; top_k 0 and top_p 1 cut nothing."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int

    @property
    def way(self) -> tuple[float, float, int]:
        """Requests that agree in this can be sampled together."""
        return self.temperature, self.top_p, self.top_k


@dataclass
class Completion:
    """The fields of verl's TokenOutput. log_probs: of each token under the distribution it was drawn from, nats."""

    token_ids: list[int]
    log_probs: list[float]
    stop_reason: str = "completed"
    routed_experts: Any = None
    num_preempted: int | None = None
    extra_fields: dict[str, Any] = field(default_factory=dict)


class InverseTransform(LogitsProcessor):
    """Draws each row's token by inverting its distribution function at a uniform number from the row's generator.

    Unlike those of multinomial sampling over a batch, a row's draws do not depend on the other rows. Leaves the drawn
    token as the only possible one and keeps its log-probability.
    """

    def __init__(self, seeds: Sequence[int], greedy: bool) -> None:
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._greedy = greedy
        self.log_probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        log_p = torch.log_softmax(scores.double(), dim=-1)
        token = (log_p.argmax(-1) if self._greedy else self._draw(log_p))[:, None]
        self.log_probs.append(log_p.gather(-1, token)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(-1, token, 0.0)

    def _draw(self, log_p: Tensor) -> Tensor:
        uniform = torch.stack([torch.rand((), generator=g, dtype=torch.float64) for g in self._generators])
        total = log_p.exp().cumsum(-1)
        # below the last step of the distribution function, which rounding may leave short of 1 and which ends at
        # the last token with a probability, not at the last of the vocabulary
        return torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)[:, 0]


class Sampler:
    """A model, its end tokens, and `complete`, which samples requests that agree in their way of sampling."""

    def __init__(self, path: str, dtype: str = "float32", ignore_eos: bool = False) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
        found = self.model.generation_config.eos_token_id
        found = self.model.config.eos_token_id if found is None else found
        ends = [] if found is None or ignore_eos else found if isinstance(found, list) else [found]
        self.ends = [int(end) for end in ends]
        self.pad = self.model.config.pad_token_id or 0

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take new weights by name. Raises RuntimeError for a name that is missing or unknown; a tied head may be."""
        missing, unknown = self.model.load_state_dict(dict(weights), strict=False)
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if set(missing) - tied or unknown:
            raise RuntimeError(f"weights do not fit the rollout's model: missing {missing}, unknown {unknown}")

    @torch.no_grad()
    def complete(self, requests: Sequence[Request]) -> list[Completion]:
        """A completion for each request, in order; all agree in `Request.way`."""
        temperature, top_p, top_k = requests[0].way
        draw = InverseTransform([request.seed for request in requests], greedy=temperature == 0)
        prompts, mask = self._padded([request.prompt for request in requests])
        output = self.model.generate(
            input_ids=prompts,
            attention_mask=mask,
            max_new_tokens=max(request.max_tokens for request in requests),
            do_sample=False,
            num_beams=1,
            logits_processor=LogitsProcessorList([*_warpers(temperature, top_p, top_k), draw]),
            eos_token_id=self.ends or None,
            pad_token_id=self.pad,
        )
        tokens, log_probs = output[:, prompts.shape[1] :].tolist(), torch.stack(draw.log_probs, dim=1).tolist()
        return [self._completion(*row) for row in zip(requests, tokens, log_probs, strict=True)]

    def _padded(self, prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Token ids and mask, both [B, longest], padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self.pad)
        for row, prompt in zip(ids, prompts, strict=True):
            row[longest - len(prompt) :] = torch.tensor(prompt)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        return ids, (torch.arange(longest) >= longest - lengths[:, None]).long()

    def _completion(self, request: Request, tokens: list[int], log_probs: list[float]) -> Completion:
        """Up to the first end token, itself included, or the length limit."""
        length = next((i + 1 for i, token in enumerate(tokens) if token in self.ends), len(tokens))
        length = min(length, request.max_tokens)
        return Completion(tokens[:length], log_probs[:length])


def _warpers(temperature: float, top_p: float, top_k: int) -> list[LogitsProcessor]:
    found: list[LogitsProcessor] = []
    if temperature not in (0.0, 1.0):
        found.append(TemperatureLogitsWarper(temperature))
    if top_k > 0:
        found.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        found.append(TopPLogitsWarper(top_p))
    return found


class Server:
    """What verl asks of a rollout server. Weights change between two batches of requests, never within one."""

    def __init__(self, path: str, dtype: str, response_length: int, ignore_eos: bool, seed: int) -> None:
        self._sampler = Sampler(path, dtype, ignore_eos)
        self._response_length = response_length
        self._global_steps: int | None = None
        self._counter = count(seed)
        self._waiting: list[tuple[Request, asyncio.Future[Completion]]] = []
        self._serving: asyncio.Task[None] | None = None
        self._model = asyncio.Lock()
        self._open = asyncio.Event()
        self._open.set()

    async def generate(
        self, prompt_ids: list[int], sampling_params: dict[str, Any], request_id: str, **media: Any
    ) -> Completion:
        """One completion. ValueError for a way of sampling or an input that this server does not know."""
        given = sorted(name for name, value in media.items() if value is not None)
        if given:
            raise ValueError(f"the laptop's rollout samples text alone; found {given}")
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._request(prompt_ids, sampling_params), future))
        if self._serving is None or self._serving.done():
            self._serving = asyncio.create_task(self._serve())
        return await future

    def _request(self, prompt_ids: list[int], params: Mapping[str, Any]) -> Request:
        unknown = sorted(set(params) - KNOWN)
        if unknown or params.get("repetition_penalty", 1.0) != 1.0:
            raise ValueError(f"the laptop's rollout has no {unknown or ['repetition_penalty']}; it has {sorted(KNOWN)}")
        limit = params.get("max_tokens", params.get("max_new_tokens"))
        seed = params.get("seed")
        return Request(
            prompt=tuple(prompt_ids),
            max_tokens=self._response_length if limit is None else int(limit),
            temperature=float(params.get("temperature", 1.0)),
            top_p=float(params.get("top_p", 1.0)),
            top_k=max(int(params.get("top_k", -1)), 0),
            seed=next(self._counter) if seed is None else int(seed),
        )

    async def _serve(self) -> None:
        await asyncio.sleep(GATHER)
        while self._waiting:
            await self._open.wait()
            async with self._model:
                await self._answer(self._take())

    def _take(self) -> list[tuple[Request, asyncio.Future[Completion]]]:
        """The requests that agree with the one that has waited longest, at most MAX_ROWS."""
        way = self._waiting[0][0].way
        taken = [pair for pair in self._waiting if pair[0].way == way][:MAX_ROWS]
        self._waiting = [pair for pair in self._waiting if pair not in taken]
        return taken

    async def _answer(self, pairs: list[tuple[Request, asyncio.Future[Completion]]]) -> None:
        try:
            found = await asyncio.to_thread(self._sampler.complete, [request for request, _ in pairs])
        except Exception as error:
            for _, future in pairs:
                future.set_exception(error)
            return
        for (_, future), completion in zip(pairs, found, strict=True):
            completion.extra_fields = {"global_steps": self._global_steps}
            future.set_result(completion)

    async def load_weights(self, weights: Mapping[str, Tensor], global_steps: int | None) -> None:
        """Take the weights of the trainer after `global_steps` rollout steps, when no request is being answered."""
        async with self._model:
            self._sampler.load(weights)
            self._global_steps = global_steps if global_steps is not None else self._global_steps

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """Hold back what waits until `resume_generation`; what is being answered ends first."""
        self._open.clear()
        async with self._model:
            return {"aborted_count": 0, "request_ids": []}

    async def resume_generation(self) -> None:
        self._open.set()

    # A CPU server keeps weights and cache where they are.
    async def wake_up(self, tags: list[str] | None = None) -> None: ...
    async def sleep(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **kwargs: Any) -> None: ...
    async def stop_profile(self) -> None: ...
