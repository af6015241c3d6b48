"""The settings that the user left open, resolved by what the model and the machine have."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.kernels.vectors import processor_has
from radixlm.models.model_config import ModelConfig

_logger = logging.getLogger("radixlm.assembly")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def resolve_device(name: str) -> torch.device:
    """Raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is not a device: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r}: only cpu and cuda are supported")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name!r}: torch sees no CUDA device on this machine")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices, from cuda:0"
        )
    return device


def resolve_dtype(config: EngineConfig, model: ModelConfig, device: torch.device) -> torch.dtype:
    """The type in which weights and KV are kept: float16 only on request, where there are products
    of it.
    """
    given: torch.dtype | None = getattr(torch, config.dtype, None)
    wanted = given or model.dtype
    if wanted != torch.float16:
        return wanted
    if config.dtype == "float16" and (device.type == "cuda" or processor_has("avx512fp16")):
        return wanted
    _logger.info("float16 is converted to bfloat16, which this engine computes with here")
    return torch.bfloat16


def resolve_threads(config: EngineConfig, torch_threads: int) -> int:
    """How many compute, in each rank. torch_threads: torch's own choice, by affinity and
    OMP_NUM_THREADS.
    """
    there = min(torch_threads, threads_for(processors_allowed()))
    return config.threads or max(there // config.tp_size, 1)


def resolve_context(config: EngineConfig, model: ModelConfig) -> int:
    """Most tokens of prompt and answer. Raises ConfigError."""
    wanted = config.context_length
    if wanted is None:
        return model.context_length
    if wanted > model.context_length:
        raise ConfigError(
            f"--context-length {wanted} is more than the model's {model.context_length}"
        )
    return wanted


def processors_seen() -> int:
    """The processors that the system may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processors_allowed(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> float:
    """The same, or less where a container's quota is less: 1.5 is one and a half's time."""
    return min([float(processors_seen()), *_quotas(cgroups, own)])


def threads_for(allowed: float) -> int:
    """How many threads compute: one and a half processors keep two threads busy in turns."""
    return max(math.ceil(allowed), 1)


def _quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """The quotas of the process's cgroup and those that it lies in, of both versions.

    A container often sees its own cgroup as the root, whatever its path is called outside: then
    the places on the way to the root do not exist.
    """
    for line in _read(own).splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0":
            mounts, limit = [cgroups], _limit_v2
        elif "cpu" in names.split(","):
            mounts, limit = [cgroups / "cpu", cgroups / names], _limit_v1
        else:
            continue
        inner = Path(path.lstrip("/"))
        for mount in mounts:
            for place in {mount / inner, *(mount / outer for outer in inner.parents), mount}:
                yield limit(place)


def _limit_v2(place: Path) -> float:
    """cpu.max is "max 100000" or "150000 100000", microseconds of time in a period of others."""
    return _share(*_read(place / "cpu.max").split())


def _limit_v1(place: Path) -> float:
    return _share(_read(place / "cpu.cfs_quota_us"), _read(place / "cpu.cfs_period_us"))


def _share(quota: str = "", period: str = "", *_: str) -> float:
    """Infinite without a quota: "max", -1, or nothing that could be read."""
    try:
        limit = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return math.inf
    return limit if limit > 0 else math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
