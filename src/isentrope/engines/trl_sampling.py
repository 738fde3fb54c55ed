"""The temperature at which rollouts are sampled and scored, and which rows are sampled at another one.

TRL reads its option `temperature` once, at construction: into the generation configuration (or vLLM's parameters) and
into the fused head that turns hidden states into log-probabilities. Here both can move.

* `Rollout(temperature=...)`, share 1: a whole rollout batch is sampled and scored at the temperature in force when it
  begins, and keeps it through all updates on it. Evaluation stays at the option's.
* share < 1: the first ceil(share * groups) groups of the rollout batch, in the order of the gathered rows, are sampled
  at that temperature and the others at the option's; all are scored at the option's.

A rollout function of the user's samples by itself and reads `trainer.temperature`; with share < 1 it is called once
for each part.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

from trl.trainer import grpo_trainer

from isentrope import masked
from isentrope.rollout import Rollout

Generated = tuple[list[list[int]], list[list[float]] | None]


class Head:
    """A model's fused head whose temperature can be changed at any time.

    The forward that stays installed passes on to TRL's fused forward for the temperature in force, so that whatever
    accelerate, FSDP, DeepSpeed or PEFT wrap around the model later stays around it.
    """

    def __init__(self, add: Callable[..., None], model: Any, temperature: float, options: Mapping[str, Any]) -> None:
        self._add, self._model, self._options = add, model, options
        self._plain = model.forward
        self._temperature, self._fused = temperature, self._make(temperature)

        @functools.wraps(type(model).forward)  # `generate` checks its arguments against this signature
        def forward(_: Any, *args: Any, **kwargs: Any) -> Any:
            return self._fused(*args, **kwargs)

        model.forward = MethodType(forward, model)

    def set(self, temperature: float) -> None:
        """Take log-probabilities and entropies of softmax(logits / temperature) from now on."""
        if temperature != self._temperature:
            installed = self._model.forward
            self._temperature, self._fused = temperature, self._make(temperature)
            self._model.forward = installed

    def _make(self, temperature: float) -> Callable[..., Any]:
        self._model.forward = self._plain
        self._add(self._model, temperature=temperature, **self._options)
        fused: Callable[..., Any] = self._model.forward
        return fused


@dataclass(frozen=True)
class Part:
    """Rows of this rank that one call samples. sent: those that take part in it; kept: how many count, the first of
    them where tempered, else the last.
    """

    tempered: bool
    sent: slice
    kept: int


def parts(num_tempered: int, num_rows: int, rank: int, world: int, lockstep: bool) -> list[Part]:
    """The calls that sample a rank's rows, of which those before row `num_tempered` of all ranks' are tempered.

    num_tempered: over all ranks, whole groups. num_rows: of each rank. lockstep: every rank must make the same calls
    with the same number of rows (a server takes the prompts of all ranks in one call; sharded weights are gathered in
    step); some then sample rows that do not count.

    >>> [(part.tempered, part.sent, part.kept) for part in parts(4, 8, rank=0, world=1, lockstep=False)]
    [(True, slice(0, 4, None), 4), (False, slice(4, 8, None), 4)]
    """
    each = [min(max(num_tempered - r * num_rows, 0), num_rows) for r in range(world)]
    own = each[rank]
    first, last = (max(each), max(num_rows - k for k in each)) if lockstep else (own, num_rows - own)
    calls = [Part(True, slice(0, first), own), Part(False, slice(num_rows - last, num_rows), num_rows - own)]
    return [part for part in calls if part.sent.stop > part.sent.start]


def joined(pieces: list[tuple[Part, list[Any]]]) -> list[Any]:
    """The rows that count of all parts, in order."""
    rows: list[Any] = []
    for part, found in pieces:
        rows += found[: part.kept] if part.tempered else found[len(found) - part.kept :]
    return rows


class Sampling:
    """What the objective's slot `rollout` makes of a trainer's temperature.

    rollout: the slot, controllers and all. engine: the option `temperature`.
    temperature: of the current rollout batch, or of its tempered rows.
    """

    def __init__(self, rollout: Rollout, engine: float) -> None:
        self.temperature: float = engine
        self._engine = engine
        self._moves = rollout.temperature is not None
        self._share = rollout.share
        self._heads: list[Head] = []
        self._num_tempered = 0

    @property
    def whole(self) -> bool:
        """Whether the tempered policy is the policy: all rows are sampled and scored at `temperature`."""
        return self._moves and self._share == 1

    @property
    def partial(self) -> bool:
        """Whether some rows are sampled at another temperature than all are scored at."""
        return self._share < 1

    @contextmanager
    def taking_heads(self) -> Iterator[None]:
        """Within this TRL makes its trainer, whose fused heads will then follow `temperature`."""
        add = grpo_trainer.add_fused_lm_head

        def add_head(model: Any, temperature: float, **options: Any) -> None:
            self._heads.append(Head(add, model, temperature, options))

        grpo_trainer.add_fused_lm_head = add_head if self.whole else add
        try:
            yield
        finally:
            grpo_trainer.add_fused_lm_head = add

    def begin(self, trainer: Any, temperature: float | None) -> None:
        """Before a rollout batch: temperature is the slot's number now, None in evaluation and where it has none."""
        if temperature is not None:
            self.temperature = float(temperature)
        if self.whole:
            use(trainer, self._engine if temperature is None else self.temperature)
            self.score(temperature is not None)

    def score(self, training: bool) -> None:
        """Score at the temperature of the current rollout batch, or in evaluation at the option's."""
        for head in self._heads:
            head.set(self.temperature if training else self._engine)

    def logged(self) -> dict[str, float]:
        """What a log line says of it: `rollout/temperature`, where the objective sets one."""
        return {"rollout/temperature": self.temperature} if self._moves else {}

    def num_tempered_groups(self, num_groups: int) -> int:
        """Of a rollout batch, ceil(share * groups); 0 with share 1, where no row is off the policy."""
        return masked.share_up(self._share, num_groups) if self.partial else 0

    @contextmanager
    def tempering(self, num_rows: int) -> Iterator[None]:
        """Within this the first num_rows of what is sampled, over all ranks, are sampled at `temperature`."""
        self._num_tempered = num_rows
        try:
            yield
        finally:
            self._num_tempered = 0

    def in_parts(self, trainer: Any, num_rows: int, call: Callable[[Part], Any]) -> list[tuple[Part, Any]] | None:
        """What call(part) returns for each part of this rank's rows, at its temperature; None where one call will do
        for all, at the temperature that is in force.
        """
        if not self._num_tempered:
            return None
        rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
        found = []
        try:
            for part in parts(self._num_tempered, num_rows, rank, world, in_lockstep(trainer)):
                use(trainer, self.temperature if part.tempered else self._engine)
                found.append((part, call(part)))
        finally:
            use(trainer, self._engine)
        return found

    def generate(
        self, trainer: Any, call: Callable[..., Generated], prompts: Any, images: Any, fields: Any
    ) -> Generated:
        """What TRL's single turn, call(prompts, images, fields), returns for all rows, in parts if need be."""

        def of(part: Part) -> Generated:
            return call(prompts[part.sent], images, {name: x[part.sent] for name, x in fields.items()})

        found = self.in_parts(trainer, len(prompts), of)
        if found is None:
            return call(prompts, images, fields)
        completions = joined([(part, ids) for part, (ids, _) in found])
        logprobs = [(part, logps) for part, (_, logps) in found if logps is not None]
        return completions, joined(logprobs) if logprobs else None

    def roll_out(self, trainer: Any, call: Callable[..., dict[str, Any]], prompts: Any) -> dict[str, Any]:
        """A user's rollout function, call(prompts, trainer), in parts: every list in its answer has a value a row."""
        found = self.in_parts(trainer, len(prompts), lambda part: call(prompts[part.sent], trainer))
        if found is None:
            return call(prompts, trainer)
        return {
            key: joined([(part, _a_row(answer[key], len(prompts[part.sent]))) for part, answer in found])
            if value is not None
            else None
            for key, value in found[0][1].items()
        }


def _a_row(value: Any, num_rows: int) -> list[Any]:
    return value if isinstance(value, list) else [value] * num_rows


def use(trainer: Any, temperature: float) -> None:
    """Let every way of sampling that a trainer has sample at a temperature."""
    trainer.temperature = temperature
    if trainer.use_vllm:
        trainer.vllm_generation.temperature = temperature  # read at each call, in server and colocate mode
    else:
        trainer.generation_config.temperature = temperature
        trainer.generation_kwargs["temperature"] = temperature


def in_lockstep(trainer: Any) -> bool:
    """Whether all ranks must sample in step; see `parts`."""
    if trainer.use_vllm:
        return bool(trainer.args.vllm_mode == "server" or trainer.args.vllm_tensor_parallel_size > 1)
    return bool(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled)
