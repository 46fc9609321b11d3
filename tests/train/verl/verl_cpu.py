# SPDX-License-Identifier: Apache-2.0
"""The CPU as a platform of verl, which has none: FSDP2 in one process, over gloo.

VERL_USE_EXTERNAL_MODULES names this module, and VERL_PLATFORM=cpu selects the platform.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry


def device_module() -> ModuleType:
    """`torch.cpu` with the functions of `torch.cuda` that verl calls; verl's figures of device memory are 0."""
    module = ModuleType("torch.cpu for verl")
    module.__dict__.update({name: getattr(torch.cpu, name) for name in torch.cpu.__all__})
    figures = "memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"
    module.__dict__.update({name: lambda *_: 0 for name in figures})
    module.__dict__.update(
        mem_get_info=lambda *_: (0, 0), empty_cache=lambda: None, get_device_name=lambda *_: "CPU", device=torch.device
    )
    return module


MODULE = device_module()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One device without streams, memory figures and profiling.

    verl's trainers count ray's resource GPU, so ray starts with a logical one: `ray_kwargs.ray_init.num_gpus=1`.
    """

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        return MODULE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        # verl passes it to Tensor.to, which takes a number for the index of an accelerator
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        """Also makes the process group: verl calls this before it makes one of `cpu:gloo,{device}:{this}` unless there
        is one, and torch refuses a device that is named twice."""
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
