"""benchmarks/disk_cache.py: what it counts, and that it runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import disk_cache
from benchmarks.disk_restart import WINDOW, Seen
from benchmarks.disk_servers import Model, disk_over_kv, drop_pages, fill, hit_rate, plain_read
from benchmarks.peer_client import Reply
from radixlm.memory.store_care import contents


def _row(wall: float, gap: float, cached: int = 0) -> dict[str, float]:
    return {"wall_s": wall, "gap_ms_p99": gap, "cached_tokens": cached}


def test_ratios_are_of_the_two_in_one_round():
    rounds = [
        {"without": _row(1.0, 10.0, 5), "with": _row(2.0, 11.0, 6)},
        {"without": _row(4.0, 40.0, 5), "with": _row(4.0, 60.0, 7)},
        {"without": _row(8.0, 80.0, 5), "with": _row(4.0, 80.0, 8)},
    ]
    found = disk_cache.compared(rounds)
    assert (found["throughput"], found["gap_p99"]) == (1.0, 1.1)
    assert found["all_throughput"] == [0.5, 1.0, 2.0]
    assert (found["cached"], found["cached_without"]) == (21, 15)


def test_a_workload_that_failed_says_so():
    assert disk_cache.compared([{"without": _row(1.0, 1.0), "with": {"error": "gone"}}]) == {
        "error": "gone"
    }


def test_hit_rates():
    replies = [Reply([], prompt_tokens=100, cached=50), Reply([], prompt_tokens=300)]
    assert hit_rate(replies) == 50 / 400
    hits = [0.0] * WINDOW + [1.0] * WINDOW
    assert Seen([], hits).rates(0, len(hits))[WINDOW] == 1 / WINDOW
    assert Seen([], hits).rates(WINDOW, len(hits)) == [1.0] * WINDOW


def test_pages_are_forgotten(tmp_path: Path):
    (tmp_path / "none.blocks.lock").touch()
    (tmp_path / "some.blocks").write_bytes(bytes(1 << 20))
    kind = subprocess.check_output(("/usr/bin/stat", "-fc%T", tmp_path), text=True).strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind} holds all its files in memory")
    assert drop_pages(tmp_path) == 0
    assert plain_read(tmp_path, 1 << 20) > 0


@pytest.mark.slow
def test_what_is_filled_in_is_the_models(tmp_path: Path):
    model = Model.made("tiny", tmp_path, "bfloat16")
    fill(model, tmp_path / "disk", 8_192)
    (found,) = contents(tmp_path / "disk")
    assert found.blocks * found.block_tokens == 8_192
    assert 1 <= disk_over_kv(model, tmp_path / "disk") < 1.2


@pytest.mark.slow
def test_servers_share_and_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The other parts take many servers more, and are measured by hand."""
    picture = tmp_path / "picture.png"
    arguments = ["--shape", "tiny", "--parts", "shared,restart", "--tokens", "512"]
    arguments += ["--rounds", "1", "--requests", "16"]
    disk_cache.main([*arguments, "--picture", str(picture), "--place", str(tmp_path)])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["shared"]["second_over_first"] >= 0.95
    after = {row["setting"]: row["after"] for row in report["restart"]["workloads"]}
    assert after["with a disk cache"] > after["without"]
    assert picture.stat().st_size > 1_000
