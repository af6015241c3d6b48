"""The engine gives transformers' greedy tokens and logits in every setting: `benchmarks.parity`, on
fewer prompts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

# One of each kind.
QUICK = [
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


@pytest.mark.parametrize(
    ("architecture", "fields", "settings"),
    [
        ("llama", {}, QUICK),
        ("mistral", {"sliding_window": 24}, QUICK),
        pytest.param("qwen2", SECOND_OF_THREE, QUICK, marks=pytest.mark.slow),
        *(
            pytest.param(name, {}, [], id=name, marks=pytest.mark.slow)
            for name in ("llama", "mistral", "qwen2", "qwen3")
        ),
    ],
)
def test_same_greedy_tokens_and_logits(
    architecture: str, fields: dict[str, Any], settings: list[str]
) -> None:
    chosen = ["--setting", *settings] if settings else []
    done = run("--architecture", architecture, "--fields", json.dumps(fields), *chosen)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["passed"]
    outcomes = report[architecture]["settings"]
    assert len(outcomes) == len(settings) or len(outcomes) > 25
    assert {each["equal"] + each["ties"] for each in outcomes.values()} == {16}
    assert report[architecture]["largest_logit_difference"] <= 1e-4


@pytest.mark.slow  # a whole program is imported for it
def test_an_unknown_setting_is_refused() -> None:
    done = run("--setting", "upside down")
    assert done.returncode == 2
    assert "upside down" in done.stderr
