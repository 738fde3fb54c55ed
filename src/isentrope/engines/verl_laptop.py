"""A rehearsal of a verl job on the CPUs of one machine: everything of the job is verl's own but what needs a GPU.

verl imports this module in every process (entry point `isentrope_laptop` of the group `verl.plugins`). Where
VERL_PLATFORM is "cpu", which `isentrope train --engine verl --laptop` sets, it registers

* a platform "cpu" (`verl_laptop_platform`), on which FSDP2, gloo and Ray's logical GPUs work;
* a rollout "hf" (`verl_laptop_rollout`): a server that samples with transformers, one for each rank, each request
  with its own seed, so that the number of servers and the order of requests change nothing;
* a checkpoint engine "file" (`verl_laptop_files`) for the asynchronous trainers' weights.

Elsewhere the import does nothing. `environment` and `settings` are what a job needs in addition to its own
configuration.
"""

import importlib
import os
from types import ModuleType
from typing import Any

ROLLOUT = "hf"
PLATFORM = "cpu"
FILES = "file"
RANKS = "trainer.n_gpus_per_node"
CPUS = 7  # Ray's logical ones: what verl's driver, agent, reward and TransferQueue processes ask for
CPUS_A_RANK = 3
OBJECT_STORE = 256 * 2**20  # bytes


def environment() -> dict[str, str]:
    """Environment variables of a rehearsed job, of its driver and of all of Ray's processes."""
    return {
        "VERL_PLATFORM": PLATFORM,
        "VERL_ENGINE_DEVICE": "cuda",  # under this name verl keeps the FSDP engines
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def settings(ranks: int, mode: str = "isentrope", servers: int = 0) -> dict[str, Any]:
    """verl's configuration for a rehearsal on `ranks` processes that take the place of GPUs, by dotted keys.

    mode: of the trainer; the asynchronous ones take rows as they come, and separate_async needs `servers` rollout
    servers of its own, each in the place of a GPU too.

    With RAY_ADDRESS in the environment the job joins that cluster, which must have as many (logical) GPUs:
    `ray start --head --num-gpus N --num-cpus M`.
    """
    exact = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engines = [f"actor_rollout_ref.{role}" for role in ("actor", "ref")]
    model, rollout = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
    return {
        "trainer.device": "cpu",
        RANKS: ranks,
        "trainer.nnodes": 1,
        **_cluster(ranks + servers),
        **{f"{engine}.strategy": "fsdp2" for engine in engines},  # FSDP1 needs an accelerator
        **{f"{engine}.use_torch_compile": False for engine in engines},
        **{f"{engine}.fsdp_config.use_torch_compile": False for engine in engines},
        **{f"{engine}.fsdp_config.mixed_precision": exact for engine in engines},
        **{f"{engine}.fsdp_config.model_dtype": "fp32" for engine in engines},
        f"{model}.override_config.attn_implementation": "sdpa",
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"{rollout}.name": ROLLOUT,
        f"{rollout}.dtype": "float32",
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.free_cache_engine": False,
        f"{rollout}.load_format": "auto",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes": 16,
        **({f"{rollout}.checkpoint_engine.backend": FILES} if servers else {}),
        f"{rollout}.agent.num_workers": 1,
        f"{rollout}.agent.default_agent_loop": "isentrope_seeded",
        f"{rollout}.agent.agent_loop_config_path": os.path.join(os.path.dirname(__file__), "verl_laptop_agents.yaml"),
        "reward.num_workers": 1,
        "data.dataloader_num_workers": 0,
        **({} if "async" in mode else _order()),
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }


def _order() -> dict[str, Any]:
    sampler = "trainer.v1.sampler.custom_sampler"
    return {f"{sampler}.path": "pkg://isentrope.engines.verl_laptop_order", f"{sampler}.name": "OrderedReplayBuffer"}


def _cluster(ranks: int) -> dict[str, Any]:
    """Ray's part: a cluster of our own with logical GPUs, or what the workers of one that runs already must know."""
    ray = "ray_kwargs.ray_init"
    if os.environ.get("RAY_ADDRESS"):
        return {f"{ray}.runtime_env.env_vars": environment()}
    return {
        f"{ray}.num_cpus": CPUS + CPUS_A_RANK * ranks,
        f"{ray}.num_gpus": ranks,
        f"{ray}.object_store_memory": OBJECT_STORE,
        f"{ray}.include_dashboard": False,
    }


def register() -> None:
    """Make platform, rollout and checkpoint engine known to verl in this process.

    The platform at once; the others when verl imports the module that holds the registry, so that a process that needs
    neither pays nothing.
    """
    from wrapt import register_post_import_hook

    from isentrope.engines import verl_laptop_platform

    verl_laptop_platform.register()
    register_post_import_hook(_register_rollout, "verl.workers.rollout.replica")
    register_post_import_hook(_register_files, "verl.checkpoint_engine.base")


def _register_rollout(replica: ModuleType) -> None:
    base = importlib.import_module("verl.workers.rollout.base")
    rollout = "isentrope.engines.verl_laptop_rollout"
    replica.RolloutReplicaRegistry.register(ROLLOUT, lambda: importlib.import_module(rollout).Replica)
    base._ROLLOUT_REGISTRY[(ROLLOUT, "async")] = f"{rollout}.Rollout"


def _register_files(_: ModuleType) -> None:
    importlib.import_module("isentrope.engines.verl_laptop_files")


if os.environ.get("VERL_PLATFORM", "").strip().lower() == PLATFORM:
    register()
