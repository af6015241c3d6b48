"""The engine gives transformers' greedy tokens and logits in every setting: `benchmarks.parity`, on
fewer prompts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ONE_OF_EACH_KIND = [
    "cache off",
    "cache on, warm",
    "chunked prefill 16",
    "page size 16, warm",
    "namespaces",
    "small pool, pages of 16",
    "small pool, learned",
    "preemption",
]
SECOND_OF_THREE = {
    "use_sliding_window": True,
    "sliding_window": 17,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
}


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.parity", "--prompts", "16", "--tokens", "24"]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("mistral", {"sliding_window": 24}), ("qwen2", SECOND_OF_THREE)],
)
def test_windows(architecture: str, fields: dict[str, Any]) -> None:
    chosen = ("--fields", json.dumps(fields), "--setting", *ONE_OF_EACH_KIND)
    assert check(architecture, *chosen) == len(ONE_OF_EACH_KIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("deepseek_v2", {"q_lora_rank": None}), ("deepseek_v3", {})],
)
def test_latents(architecture: str, fields: dict[str, Any]) -> None:
    chosen = ("--fields", json.dumps(fields), "--setting", *ONE_OF_EACH_KIND)
    assert check(architecture, *chosen) == len(ONE_OF_EACH_KIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "every", "first"),
    [("llama", 1, 0), ("mistral", 3, 0), ("qwen2", 3, 1), ("qwen3", 3, 2)],
)
def test_same_greedy_tokens_and_logits(architecture: str, every: int, first: int) -> None:
    """In all settings; orders and policies are the same code for each architecture."""
    assert check(architecture, "--every", str(every), "--first", str(first)) > 25 // every


def check(architecture: str, *options: str) -> int:
    """In how many settings."""
    done = run("--architecture", architecture, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["passed"]
    outcomes = report[architecture]["settings"]
    assert {each["equal"] + each["ties"] for each in outcomes.values()} == {16}
    assert report[architecture]["largest_logit_difference"] <= 1e-4
    return len(outcomes)


@pytest.mark.slow  # a whole program is imported for it
def test_an_unknown_setting_is_refused() -> None:
    done = run("--setting", "upside down")
    assert done.returncode == 2
    assert "upside down" in done.stderr
