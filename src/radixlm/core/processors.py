"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


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
    """Of the process's cgroup and those that it lies in, of both versions.

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
    quota, _, period = _read(place / "cpu.max").strip().partition(" ")
    return _share(quota, period)


def _limit_v1(place: Path) -> float:
    return _share(_read(place / "cpu.cfs_quota_us"), _read(place / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> float:
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
