"""benchmarks/same_bits.py: the deterministic mode gives the same bits in every setting."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks.same_bits import main

Check = Callable[..., None]
# Half of the settings each: all pairs of architecture, type and setting are among them.
HALVES = [
    (("llama", "qwen2"), "float32", 0),
    (("llama", "qwen2"), "bfloat16", 1),
    (("mistral", "qwen3"), "float32", 1),
    (("mistral", "qwen3"), "bfloat16", 0),
]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def checked(requests: int, cases: int, settings: int, *options: str) -> None:
        assert main(["--requests", str(requests), *options]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert len(report["results"]) == cases
        for outcomes in report["results"].values():
            assert len(outcomes) == settings
            assert {(each["requests"], each["different"]) for each in outcomes} == {(requests, 0)}

    return checked


@pytest.mark.slow
@pytest.mark.parametrize(("architectures", "dtype", "first"), HALVES)
def test_the_same_bits_in_any_company(
    check: Check, architectures: tuple[str, ...], dtype: str, first: int
) -> None:
    """More requests than a batch of 32; some are to be retracted."""
    some = ("--every", "2", "--first", str(first))
    check(40, 2, 8, "--architecture", *architectures, "--dtype", dtype, *some)


@pytest.mark.slow
def test_the_same_bits_from_codes(check: Check) -> None:
    chosen = ("--setting", "warm", "chunks of 100", "batch of 8", "shared")
    check(30, 2, 4, "--architecture", "llama", "--kv-cache-dtype", "int8", *chosen)


@pytest.mark.slow
def test_without_the_mode_bits_differ(capsys: pytest.CaptureFixture[str]) -> None:
    """So the comparison can fail."""
    options = ("--requests", "30", "--architecture", "llama", "--setting", "shared")
    assert main([*options, "--without"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["different"] > 0
