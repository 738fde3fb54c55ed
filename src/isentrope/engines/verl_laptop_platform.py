"""The CPU as one of verl's platforms, so that workers, FSDP2 and checkpoints run without an accelerator.

Ray's logical GPUs stand for ranks: `ray_resource_name` stays "GPU", and the job declares as many as it wants.
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry
from wrapt import register_post_import_hook


class CpuPlatform(PlatformBase):
    """verl's questions about the device, answered for a CPU.

    `is_available` is False: verl asks it where it would read an accelerator's memory or random state.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return _device()

    def is_available(self) -> bool:
        return False

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return os.environ.get("VERL_PLATFORM") == "cpu"

    def current_device(self) -> Any:
        return "cpu"  # verl passes it to Tensor.to and torch.device, which take a name as well as an index

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


@functools.cache
def _device() -> Any:
    """What verl asks a device module such as torch.cuda for. It has no memory of its own to report: zeros."""

    def nothing(*_: Any, **__: Any) -> None: ...

    zero = dict.fromkeys(("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), int)
    idle = dict.fromkeys(
        ("empty_cache", "synchronize", "set_device", "ipc_collect", "reset_peak_memory_stats"), nothing
    )
    return SimpleNamespace(
        **zero,
        **idle,
        is_available=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: "cpu",
        get_device_name=lambda *_: "CPU",
        mem_get_info=lambda *_: (0, 0),
        manual_seed=torch.manual_seed,
        manual_seed_all=torch.manual_seed,
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
        Stream=torch.cpu.Stream,
        stream=torch.cpu.stream,
        current_stream=torch.cpu.current_stream,
    )


def register() -> None:
    """Offer the platform, and step around three places where verl assumes an accelerator."""
    PlatformRegistry.register(platform="cpu")(CpuPlatform)
    register_post_import_hook(_one_backend_for_one_device, "verl.utils.distributed")
    register_post_import_hook(_offload_without_pinning, "verl.utils.fsdp_utils")
    register_post_import_hook(_keep_copies_of_weights, "verl.utils.fsdp_utils")


def _one_backend_for_one_device(distributed: Any) -> None:
    """verl joins "cpu:gloo" with the device's own backend: on a CPU that is one device twice, which torch refuses."""
    original = distributed.initialize_global_process_group_ray
    distributed.initialize_global_process_group_ray = functools.partial(original, backend="cpu:gloo")


def _offload_without_pinning(fsdp_utils: Any) -> None:
    """verl offloads the reference model with pinned memory, which only an accelerator's driver can pin."""
    original = fsdp_utils.CPUOffloadPolicy
    if original is not None:
        fsdp_utils.CPUOffloadPolicy = lambda **_: original(pin_memory=False)


def _keep_copies_of_weights(fsdp_utils: Any) -> None:
    """separate_async sets weights aside by `.cpu()`, which is no copy of what a CPU holds and would follow training."""
    original = fsdp_utils.fsdp2_sharded_save_to_cpu

    def save(model: Any) -> tuple[dict[str, tuple[torch.Tensor, Any]], Any]:
        shards, spec = original(model)
        return {name: (shard.clone(), own) for name, (shard, own) in shards.items()}, spec

    fsdp_utils.fsdp2_sharded_save_to_cpu = save
