"""What makes a rehearsed job the same however many ranks it has: a seed for each completion, and an order of rows.

verl names prompts by random ids and takes completions in the order in which they end. Here a completion is drawn from a
seed of its own, and a rollout batch is sorted by problem and sample.
"""

import hashlib
from typing import Any

import transfer_queue
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

POLL = 0.1  # seconds between two looks at the queue; verl's own 2 would be most of a small step


def seed_of(*parts: int) -> int:
    """A seed in [0, 2^63) that depends on these numbers alone.

    >>> seed_of(0, 1, 2) == seed_of(0, 1, 2), seed_of(0, 1, 2) == seed_of(0, 2, 1)
    (True, False)
    """
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class SeededAgentLoop(SingleTurnAgentLoop):
    """verl's single turn, each completion with the seed (run, rollout step, problem, sample)."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        seed = seed_of(self.rollout_config.seed, kwargs["global_steps"], kwargs["index"], kwargs["session_id"])
        return await super().run({**sampling_params, "seed": seed}, **kwargs)


class OrderedReplayBuffer(ReplayBuffer):
    """verl's replay buffer of synchronous training, polled faster, its rows sorted by (problem, sample, turn)."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, poll_interval=POLL)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        problems = self._problems(batch)
        batch.reorder(sorted(range(len(batch.keys)), key=lambda row: (problems[row], *_sample(batch.keys[row]))))
        return batch, metrics

    def _problems(self, batch: Any) -> list[int]:
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["index"])
        return [int(getattr(index, "data", index)) for index in data["index"]]


def _sample(key: str) -> tuple[int, int]:
    """Sample and turn of a key "uid_sample_turn".

    >>> _sample("3f-2_4_0")
    (4, 0)
    """
    _, sample, turn = key.rsplit("_", 2)
    return int(sample), int(turn)
