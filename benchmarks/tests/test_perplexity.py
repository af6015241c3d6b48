"""What `benchmarks.perplexity` scores, and how."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.perplexity import chunks_of, perplexity, scored_by_us
from radixlm.testing.checkpoints import write_random_checkpoint


def test_chunks_begin_with_the_bos_and_are_whole() -> None:
    assert chunks_of([1, 2, 3, 4, 5, 6, 7], 3, [0]) == [[0, 1, 2], [0, 3, 4], [0, 5, 6]]
    assert chunks_of([1, 2, 3, 4, 5], 2, []) == [[1, 2], [3, 4]]


def test_perplexity_is_one_over_the_geometric_mean() -> None:
    assert perplexity([math.log(1 / 2), math.log(1 / 8)]) == pytest.approx(4)


def test_second_halves_are_scored_as_by_transformers(tmp_path: Path) -> None:
    folder = write_random_checkpoint("tiny", tmp_path / "tiny")
    text = "Each chunk is scored by itself, in its second half."
    chunks, found = scored_by_us(folder, text, 40, 16, dtype="float32", threads=1, kv_tokens=64)
    assert [len(chunk) for chunk in chunks] == [16, 16]
    rows = torch.tensor(chunks)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logprobs = model(rows).logits.log_softmax(-1)[:, 8:-1]
    right = logprobs.gather(2, rows[:, 9:, None]).flatten()
    assert found == pytest.approx(right.tolist(), abs=2e-3)
