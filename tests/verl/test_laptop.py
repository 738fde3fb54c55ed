"""The rehearsal's pieces in verl's registries: platform, rollout, order of rows; and what they leave alone."""

import asyncio
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="needs verl 0.9 (make verl)")

from isentrope.engines import verl_laptop
from isentrope.errors import IsentropeError

pytestmark = pytest.mark.engine

ASK = """
import verl, json
from verl.plugin.platform import PlatformRegistry, get_platform
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.base import get_rollout_class
from verl.utils import distributed, fsdp_utils
found = {"platforms": list(PlatformRegistry.registered_names()), "rollouts": list(RolloutReplicaRegistry._registry)}
if get_platform().device_name == "cpu":
    found["device"] = str(get_platform().current_device())
    found["module"] = get_platform().device_module.is_available()
    found["replica"] = RolloutReplicaRegistry.get("hf").__name__
    found["rollout"] = get_rollout_class("hf", "async").__name__
    found["backend"] = distributed.initialize_global_process_group_ray.keywords["backend"]
    found["pinned"] = fsdp_utils.CPUOffloadPolicy(pin_memory=True).pin_memory
print("ANSWER", json.dumps(found))
"""


def _ask(**environment):
    import json

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ASK],
        env={k: v for k, v in os.environ.items() if not k.startswith("VERL_")} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith("ANSWER"))[7:])


@pytest.mark.slow
def test_verl_finds_the_rehearsal_where_the_environment_asks_for_it():
    found = _ask(**{k: v for k, v in verl_laptop.environment().items() if k.startswith("VERL_")})
    assert "cpu" in found["platforms"]
    assert (found["device"], found["module"]) == ("cpu", False)
    assert (found["replica"], found["rollout"]) == ("Replica", "Rollout")
    assert found["backend"] == "cpu:gloo"
    assert found["pinned"] is False


@pytest.mark.slow
def test_on_a_cluster_nothing_of_the_rehearsal_is_registered():
    found = _ask()
    assert "cpu" not in found["platforms"]
    assert "hf" not in found["rollouts"]


@pytest.fixture
def platform():
    from isentrope.engines.verl_laptop_platform import CpuPlatform

    return CpuPlatform()


def test_the_platform_answers_what_verl_asks_of_a_device(platform):
    module = platform.device_module
    assert torch.zeros(2).to(platform.current_device()).device.type == "cpu"
    assert platform.communication_backend_name() == "gloo"
    assert platform.ray_resource_options(2) == {"num_gpus": 2}
    assert module.memory_allocated() == module.max_memory_reserved() == 0
    assert module.mem_get_info() == (0, 0)
    module.empty_cache()
    module.synchronize()
    with platform.nvtx_range("x"):
        pass


def test_seeding_the_platform_seeds_torch(platform):
    draws = []
    for _ in range(2):
        platform.manual_seed(3)
        draws.append(torch.rand(2))
    torch.testing.assert_close(*draws, rtol=0, atol=0)


# -- seeds and order


def test_a_completions_seed_tells_run_step_problem_and_sample_apart():
    from isentrope.engines.verl_laptop_order import seed_of

    seeds = {
        seed_of(*parts) for parts in ((0, 1, 2, 3), (1, 1, 2, 3), (0, 2, 2, 3), (0, 1, 3, 3), (0, 1, 2, 4), (0, 12, 3))
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_agent_loop_asks_with_the_samples_own_seed(monkeypatch):
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    from isentrope.engines.verl_laptop_order import SeededAgentLoop, seed_of

    asked = []

    async def run(self, sampling_params, **kwargs):
        asked.append(sampling_params)

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)
    loop = object.__new__(SeededAgentLoop)
    loop.rollout_config = SimpleNamespace(seed=7)
    given = {"temperature": 0.5}
    asyncio.run(loop.run(given, global_steps=3, index=11, session_id=2, uid="x"))
    assert asked == [{"temperature": 0.5, "seed": seed_of(7, 3, 11, 2)}]
    assert given == {"temperature": 0.5}, "verl shares this dict among all samples"


def test_a_rollout_batch_is_sorted_by_problem_and_sample(monkeypatch):
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from isentrope.engines import verl_laptop_order
    from isentrope.engines.verl_laptop_order import OrderedReplayBuffer

    problems = {"b": 5, "a": 9, "c-1": 2}
    keys = ["a_1_0", "b_10_0", "c-1_0_0", "a_0_0", "b_2_1", "b_2_0"]
    batch = KVBatchMeta(partition_id="train", keys=list(keys), tags=[{"n": i} for i in range(len(keys))])
    monkeypatch.setattr(ReplayBuffer, "sample", lambda *_: (batch, {"m": 1.0}))
    monkeypatch.setattr(
        verl_laptop_order.transfer_queue,
        "kv_batch_get",
        lambda keys, **_: {"index": [problems[key.partition("_")[0]] for key in keys]},
    )
    found, metrics = object.__new__(OrderedReplayBuffer).sample(1, "train", 3)
    assert found.keys == ["c-1_0_0", "b_2_0", "b_2_1", "b_10_0", "a_0_0", "a_1_0"]
    assert [tag["n"] for tag in found.tags] == [2, 5, 4, 1, 3, 0], "tags go with their keys"
    assert metrics == {"m": 1.0}


# -- the rollout


def test_a_rollout_on_several_ranks_is_refused():
    from isentrope.engines.verl_laptop_rollout import Replica

    replica = object.__new__(Replica)
    replica.world_size, replica.is_reward_model, replica.is_teacher_model = 2, False, False
    with pytest.raises(IsentropeError, match="runs on one rank each, not on 2"):
        asyncio.run(replica.launch_servers())
    replica.world_size, replica.is_reward_model = 1, True
    with pytest.raises(IsentropeError, match="no reward or teacher model"):
        asyncio.run(replica.launch_servers())


def test_weights_are_handed_over_whole_and_as_copies():
    from isentrope.engines.verl_laptop_rollout import Rollout

    taken = {}

    class Server:
        class load_weights:
            @staticmethod
            async def remote(weights, steps):
                taken.update(weights=weights, steps=steps)

    rollout = object.__new__(Rollout)
    rollout._server, rollout.replica_rank = Server, 0
    weight = torch.ones(2, requires_grad=True)
    asyncio.run(rollout.update_weights(iter([("a", weight), ("b", torch.zeros(1))]), global_steps=4))
    with torch.no_grad():
        weight += 1
    assert taken["steps"] == 4
    assert taken["weights"]["a"].tolist() == [1.0, 1.0]
    assert not taken["weights"]["a"].requires_grad
    with pytest.raises(IsentropeError, match="whole tensors"):
        asyncio.run(rollout.update_weights(iter([]), wire_format="delta_flush"))


def test_the_agents_file_names_a_class_that_exists():
    import importlib

    from omegaconf import OmegaConf

    (entry,) = OmegaConf.load(verl_laptop.settings(1)["actor_rollout_ref.rollout.agent.agent_loop_config_path"])
    module, _, name = entry["_target_"].rpartition(".")
    assert hasattr(importlib.import_module(module), name)
    assert entry["name"] == verl_laptop.settings(1)["actor_rollout_ref.rollout.agent.default_agent_loop"]


def test_weights_that_are_kept_aside_do_not_follow_the_training():
    from isentrope.engines.verl_laptop_platform import _keep_copies_of_weights

    weight = torch.zeros(2)
    utils = SimpleNamespace(fsdp2_sharded_save_to_cpu=lambda model: ({"w": (weight.cpu(), "spec")}, "mesh"))
    assert utils.fsdp2_sharded_save_to_cpu(None)[0]["w"][0] is weight  # what verl does on a CPU
    _keep_copies_of_weights(utils)
    kept, spec = utils.fsdp2_sharded_save_to_cpu(None)
    weight += 1
    assert kept["w"][0].tolist() == [0.0, 0.0]
    assert (kept["w"][1], spec) == ("spec", "mesh")


# -- weights through a file


def _engines():
    from isentrope.engines.verl_laptop_files import FileEngine

    master, other, server = FileEngine(1, is_master=True), FileEngine(1), FileEngine(1)
    metadata = [engine.prepare() for engine in (master, other, server)]
    actor, rollout = FileEngine.build_topology(2, 1, metadata)
    for engine, path in zip((master, other, server), actor["path"] + rollout["path"], strict=True):
        engine.init_process_group(path=path)
    return master, other, server


def test_weights_arrive_whole_whoever_is_first():
    async def main():
        master, other, server = _engines()
        gathered = []

        def weights(rank):
            for name in ("a", "b"):
                gathered.append((rank, name))
                yield name, torch.full((2,), float(ord(name)))

        async def receive():
            return {name: tensor async for name, tensor in server.receive_weights(3)}

        waiting = asyncio.create_task(receive())
        await asyncio.sleep(0.2)
        was_done, path = waiting.done(), master._file()
        await asyncio.gather(master.send_weights(weights(0), 3), other.send_weights(weights(1), 3))
        found = await asyncio.wait_for(waiting, 30)
        for engine in (master, other, server):
            engine.finalize()
        return was_done, found, gathered, path

    was_done, found, gathered, path = asyncio.run(main())
    assert not was_done
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"a": [97.0, 97.0], "b": [98.0, 98.0]}
    assert len(gathered) == 4, "every rank goes through all weights, which is how they are gathered"
    assert not path.parent.exists(), "nothing is left on the disk"


def test_each_transfer_has_a_file_of_its_own():
    assert _engines()[0]._file() != _engines()[0]._file()


def test_weights_that_never_come_are_given_up(monkeypatch):
    from isentrope.engines import verl_laptop_files

    monkeypatch.setattr(verl_laptop_files, "PATIENCE", 0.1)

    async def main():
        return [pair async for pair in _engines()[2].receive_weights(1)]

    with pytest.raises(IsentropeError, match="the trainer wrote no weights to"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("mode", "servers", "gpus", "ordered", "backend"),
    [
        ("isentrope", 0, 2, True, None),
        ("isentrope_colocate_async", 0, 2, False, None),
        ("isentrope_separate_async", 1, 3, False, "file"),
    ],
)
def test_the_asynchronous_trainers_get_their_gpus_and_their_own_buffer(
    monkeypatch, mode, servers, gpus, ordered, backend
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    found = verl_laptop.settings(2, mode, servers)
    assert found["ray_kwargs.ray_init.num_gpus"] == gpus
    assert ("trainer.v1.sampler.custom_sampler.name" in found) == ordered
    assert found.get("actor_rollout_ref.rollout.checkpoint_engine.backend") == backend


def test_a_job_that_joins_a_cluster_declares_nothing_and_tells_its_workers(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "host:6379")
    found = verl_laptop.settings(2)
    assert not any("num_gpus" in key or "num_cpus" in key for key in found)
    assert found["ray_kwargs.ray_init.runtime_env.env_vars"]["VERL_PLATFORM"] == "cpu"
