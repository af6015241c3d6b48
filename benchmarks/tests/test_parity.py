"""benchmarks/parity.py: the engine gives transformers' tokens and logits in every setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.parity import main
from radixlm.scheduler import restoring

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


Check = Callable[..., int]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Check:
    """Of an architecture, with more options: in how many settings all is right."""
    # What it changes is put back.
    monkeypatch.setattr(restoring, "READING_TO_COMPUTING", restoring.READING_TO_COMPUTING)
    monkeypatch.setattr(restoring.Pace, "learn_computed", restoring.Pace.learn_computed)

    def checked(architecture: str, *options: str) -> int:
        few = ["--prompts", "16", "--tokens", "24"]
        assert main([*few, "--architecture", architecture, *options]) == 0
        report = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert report["passed"]
        outcomes = report[architecture]["settings"]
        assert {each["equal"] + each["ties"] for each in outcomes.values()} == {16}
        assert report[architecture]["largest_logit_difference"] <= 1e-4
        return len(outcomes)

    return checked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("mistral", {"sliding_window": 24}), ("qwen2", SECOND_OF_THREE)],
)
def test_windows(check: Check, architecture: str, fields: dict[str, Any]) -> None:
    chosen = ("--fields", json.dumps(fields), "--setting", *ONE_OF_EACH_KIND)
    assert check(architecture, *chosen) == len(ONE_OF_EACH_KIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "fields"),
    [("deepseek_v2", {"q_lora_rank": None}), ("deepseek_v3", {})],
)
def test_latents(check: Check, architecture: str, fields: dict[str, Any]) -> None:
    chosen = ("--fields", json.dumps(fields), "--setting", *ONE_OF_EACH_KIND)
    assert check(architecture, *chosen) == len(ONE_OF_EACH_KIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "every", "first"),
    [("llama", 1, 0), ("mistral", 3, 0), ("qwen2", 3, 1), ("qwen3", 3, 2)],
)
def test_same_greedy_tokens_and_logits(
    check: Check, architecture: str, every: int, first: int
) -> None:
    """In all settings; orders and policies are the same code for each architecture."""
    assert check(architecture, "--every", str(every), "--first", str(first)) > 25 // every


@pytest.mark.slow
def test_windows_in_every_place(capsys: pytest.CaptureFixture[str], check: Check) -> None:
    few = ["--prompts", "8", "--tokens", "4"]
    assert main(["--places", "--architecture", "gemma3_text", *few]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    answers = [(row["restored"] != "–", row["killed"] != "–") for row in report["places"]]
    assert answers[:4] == [(False, False), (True, False), (True, True), (True, True)]
    assert [row["cold"] for row in report["places"]] == [*["8 of 8"] * 5, *["refused"] * 3]


def test_an_unknown_setting_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--setting", "upside down"])
    assert "upside down" in capsys.readouterr().err
