"""How many tokens the KV pool may hold when the user does not say."""

from __future__ import annotations

import os
from pathlib import Path

import torch

# Of what is free once the weights are loaded. On a CPU the rest of the machine lives there too.
CPU_SHARE = 0.4
CUDA_SHARE = 0.85
MOST_TOKENS = 1_048_576
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def default_kv_tokens(bytes_per_token: int, device: torch.device) -> int:
    """Tokens that fit a fair share of the free memory, at most MOST_TOKENS."""
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        share = CUDA_SHARE
    else:
        free, share = free_host_memory(), CPU_SHARE
    return min(MOST_TOKENS, int(free * share) // bytes_per_token)


def free_host_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process could still take, by the system and by its control group.

    What files occupy in the page cache counts as free, since the kernel gives it back: the
    checkpoint that was just read lies there too.
    """
    free = _field(meminfo, "MemAvailable:")
    if free is None:  # not Linux
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free *= 1024
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    cached = _field(cgroup / "memory.stat", "inactive_file") or 0
    return max(0, min(free, limit - used + cached))


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of lines `name number ...`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return int(values[0]) if values else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
