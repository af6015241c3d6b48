"""Processors, as the kernel and containers hand them out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from radixlm.assembly import resolve
from radixlm.assembly.resolve import processors_allowed, threads_for


@pytest.fixture(autouse=True)
def _four_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve, "processors_seen", lambda: 4)


def allowed(folder: Path, own: str, **files: str) -> float:
    """files: by path below the mount, with __ for /."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        place = folder / "cgroup" / name.replace("__", "/").replace("_dot_", ".")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return processors_allowed(folder / "cgroup", folder / "own")


@pytest.mark.parametrize(
    ("own", "files", "wanted"),
    [
        ("0::/\n", {"cpu_dot_max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu_dot_max": "max 100000\n"}, 4),
        ("0::/\n", {"cpu_dot_max": "900000 100000\n"}, 4),
        ("0::/a/b\n", {"a__cpu_dot_max": "50000 100000", "a__b__cpu_dot_max": "max 100000"}, 0.5),
        ("0::/outside/only\n", {"cpu_dot_max": "300000 100000"}, 3),
        (
            "9:name=systemd:/\n3:cpu,cpuacct:/a\n",
            {
                "cpu,cpuacct__a__cpu_dot_cfs_quota_us": "250000\n",
                "cpu,cpuacct__a__cpu_dot_cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (
            "3:cpu:/outside\n0::/\n",
            {"cpu__cpu_dot_cfs_quota_us": "20000", "cpu__cpu_dot_cfs_period_us": "10000"},
            2,
        ),
        ("3:cpu:/\n", {"cpu__cpu_dot_cfs_quota_us": "-1", "cpu__cpu_dot_cfs_period_us": "9"}, 4),
        ("2:cpuset:/\n", {"cpu__cpu_dot_cfs_quota_us": "1", "cpu__cpu_dot_cfs_period_us": "1"}, 4),
        ("0::/\n", {"cpu_dot_max": "what 1"}, 4),
        ("0::/\n", {"cpu_dot_max": "1 0"}, 4),
        ("no such line", {}, 4),
        ("", {}, 4),
    ],
)
def test_a_quota_is_found_wherever_it_is(
    tmp_path: Path, own: str, files: dict[str, str], wanted: float
) -> None:
    assert allowed(tmp_path, own, **files) == wanted


def test_without_cgroups_it_is_affinity(tmp_path: Path) -> None:
    assert processors_allowed(tmp_path / "none", tmp_path / "neither") == 4


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity here")
def test_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert resolve.processors_seen() == 3


@pytest.mark.parametrize(("share", "threads"), [(0.2, 1), (1, 1), (1.5, 2), (4, 4)])
def test_threads_take_the_whole_share(share: float, threads: int) -> None:
    assert threads_for(share) == threads
