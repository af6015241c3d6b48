"""benchmarks/host_tier.py: that it runs, and that what it measures came from where it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import host_tier


@pytest.mark.slow
def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    host_tier.main(
        ["--shape", "tiny", "--tokens", "1024", "--rounds", "2", "--place", str(tmp_path)]
    )
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["alarms"] == []
    assert report["computed_host_cached_tokens"] == report["computed_disk_cached_tokens"] == 0
    assert report["host_host_cached_tokens"] > 0
    assert report["disk_disk_cached_tokens"] > 0
    assert report["disk_host_cached_tokens"] == 0
