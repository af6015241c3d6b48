"""The benchmark of embeddings, small: it saves what it says, and vectors are the same."""

from __future__ import annotations

import json

import pytest

from benchmarks import embeddings


def test_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--shape", "tiny", "--texts", "20", "--queries", "2", "--documents", "10"]
    embeddings.main([*small, "--rounds", "1"])
    row = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert row["embed"]["cached_tokens"] >= 19 * 300
    assert row["embed"]["least_cosine"] > 0.99999
    assert 0 < row["rerank"]["ratio"] < 0.7
    assert row["rerank"]["computed_tokens"] < row["rerank"]["prompt_tokens"]
