"""The deterministic mode gives the same bits in every setting: `benchmarks.same_bits`, on fewer
requests.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.same_bits", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603


# Half of the settings each: all pairs of architecture, type and setting are among them.
HALVES = [
    (("llama", "qwen2"), "float32", 0),
    (("llama", "qwen2"), "bfloat16", 1),
    (("mistral", "qwen3"), "float32", 1),
    (("mistral", "qwen3"), "bfloat16", 0),
]


def check(requests: int, cases: int, settings: int, *options: str) -> None:
    done = run("--requests", str(requests), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert len(report["results"]) == cases
    for outcomes in report["results"].values():
        assert len(outcomes) == settings
        assert {(each["requests"], each["different"]) for each in outcomes} == {(requests, 0)}


@pytest.mark.slow
@pytest.mark.parametrize(("architectures", "dtype", "first"), HALVES)
def test_the_same_bits_in_any_company(
    architectures: tuple[str, ...], dtype: str, first: int
) -> None:
    """More requests than a batch of 32; some are to be retracted."""
    some = ("--every", "2", "--first", str(first))
    check(40, 2, 8, "--architecture", *architectures, "--dtype", dtype, *some)


@pytest.mark.slow
def test_the_same_bits_from_codes() -> None:
    chosen = ("--setting", "warm", "chunks of 100", "batch of 8", "shared")
    check(30, 2, 4, "--architecture", "llama", "--kv-cache-dtype", "int8", *chosen)


@pytest.mark.slow
def test_without_the_mode_bits_differ() -> None:
    """So the comparison can fail."""
    options = ("--requests", "30", "--architecture", "llama", "--setting", "shared")
    done = run(*options, "--without")
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["different"] > 0
