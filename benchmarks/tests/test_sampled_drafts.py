"""benchmarks/sampled_drafts.py: sampled tokens are the same with drafts."""

from __future__ import annotations

import json

import pytest

from benchmarks.sampled_drafts import main


def test_the_same_draws(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tokens", "1600", "--architecture", "llama"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["different"] for row in report["rows"]] == [0, 0]
    assert report["rows"][1]["accepted"] > 1000
