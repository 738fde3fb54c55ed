"""The rollout "hf" of a rehearsed job: a server actor for each rank, and the worker's hand that gives it weights."""

import os
from collections.abc import Iterable
from typing import Any

import ray
from torch import Tensor
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from isentrope.engines.verl_laptop import ROLLOUT, environment
from isentrope.errors import IsentropeError


def _actor_name(replica: int) -> str:
    return f"{ROLLOUT}_server_{replica}_0"


class Replica(RolloutReplica):
    """One server on one rank; it runs in a process of its own, as an inference engine would."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise IsentropeError(
                f"the laptop's rollout runs on one rank each, not on {self.world_size}; set"
                " actor_rollout_ref.rollout.tensor_model_parallel_size and its siblings to 1"
            )
        if self.is_reward_model or self.is_teacher_model:
            raise IsentropeError("the laptop's rollout serves the policy alone, no reward or teacher model")
        # named by path: the actor then imports neither this module nor verl
        from isentrope.engines.verl_laptop_server import Server

        path = self.model_config.get("path") if hasattr(self.model_config, "get") else self.model_config.path
        server = (
            ray.remote(Server)
            .options(
                name=_actor_name(self.replica_rank),
                num_cpus=1,
                max_concurrency=self.max_concurrency,
                runtime_env={"env_vars": environment()},
            )
            .remote(
                path=os.path.expanduser(path),
                dtype=self.config.dtype,
                response_length=self.config.response_length,
                ignore_eos=self.config.ignore_eos,
                seed=self.config.seed + 1_000_003 * self.replica_rank,
            )
        )
        await server.wake_up.remote()  # an error of its construction surfaces here
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"ray:{_actor_name(self.replica_rank)}"


class Rollout(BaseRollout):
    """The part in the training worker: collects the weights and hands them to its server."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1, **_: Any) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.is_leader_rank = True
        self._server: Any = None

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]], wire_format: str = "named_tensors", **kwargs: Any
    ) -> None:
        """Hand over all tensors, gathered from the ranks: each rank has to go through the whole iterator."""
        if wire_format != "named_tensors":
            raise IsentropeError(f"the laptop's rollout takes whole tensors, not {wire_format!r}")
        found = {name: tensor.detach().cpu().clone() async for name, tensor in ensure_async_iterator(weights)}
        if self._server is None:
            self._server = ray.get_actor(_actor_name(self.replica_rank))
        await self._server.load_weights.remote(found, kwargs.get("global_steps"))

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...
