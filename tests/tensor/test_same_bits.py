"""The deterministic mode gives the same bits in every setting: `benchmarks.same_bits`, on fewer
requests.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

QUICK = ["warm", "chunks of 100", "batch of 8", "shared"]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.same_bits", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.parametrize(
    ("architecture", "settings", "kept"),
    [
        ("llama", QUICK, "auto"),
        ("llama", QUICK, "int8"),
        *(
            pytest.param(name, [], "auto", id=name, marks=pytest.mark.slow)
            for name in ("llama", "mistral", "qwen2", "qwen3")
        ),
    ],
)
def test_the_same_bits_in_any_company(architecture: str, settings: list[str], kept: str) -> None:
    chosen = ["--setting", *settings] if settings else []
    chosen += ["--kv-cache-dtype", kept]
    requests = 30 if settings else 40  # more than a batch of 32; some are to be retracted
    done = run("--requests", str(requests), "--architecture", architecture, *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["results"]) == 2
    for outcomes in report["results"].values():
        assert len(outcomes) == len(settings) or len(outcomes) > 15
        assert {(each["requests"], each["different"]) for each in outcomes} == {(requests, 0)}


def test_without_the_mode_bits_differ() -> None:
    """So the comparison can fail."""
    options = ("--requests", "30", "--architecture", "llama", "--setting", "shared")
    done = run(*options, "--without")
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["different"] > 0
