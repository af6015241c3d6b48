from __future__ import annotations

import math

import pytest
import torch

from radixlm.runner import sampler
from radixlm.runner.sampler import top_p_threshold
from tests.tensor.sampling_cases import random_logits, token_logprobs


def test_values_equal_log_softmax_best_first() -> None:
    logits = random_logits(4, seed=1)
    made = token_logprobs(logits, [3, 0, 9, 2499], [5, 0, 1, 20])
    wanted = logits.double().log_softmax(-1)
    for i, (entry, target, top) in enumerate(
        zip(made, [3, 0, 9, 2499], [5, 0, 1, 20], strict=True)
    ):
        assert entry.token == target
        assert math.isclose(entry.logprob, wanted[i, target], abs_tol=1e-5)
        values, ids = wanted[i].topk(top)
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_equals_stand_in_the_order_of_ids() -> None:
    logits = torch.tensor([[-1.0, -3.0, -1.0, -2.0, -1.0, -3.0]])
    (entry,) = token_logprobs(logits, [0], [5])
    assert [token for token, _ in entry.top] == [0, 2, 4, 3, 1]


def test_more_than_the_vocabulary_gives_the_vocabulary() -> None:
    (entry,) = token_logprobs(torch.zeros(1, 3), [1], [20])
    assert len(entry.top) == 3


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = random_logits(7, seed=2)
    targets, tops = list(range(7)), [2] * 7
    whole = token_logprobs(logits, targets, tops)
    monkeypatch.setattr(sampler, "BLOCK_BYTES", 8 * logits.shape[1] * 2)
    assert token_logprobs(logits, targets, tops) == whole


def test_a_row_has_the_same_bits_alone() -> None:
    """Of a vocabulary so large that torch would share out one row's sum among threads."""
    logits = torch.randn(16, 40_000, generator=torch.Generator().manual_seed(0)) * 4
    together = token_logprobs(logits, list(range(16)), [3] * 16)
    for row in range(16):
        (alone,) = token_logprobs(logits[row : row + 1], [row], [3])
        assert alone == together[row]
    probs, mass = logits.softmax(-1), torch.full((16,), 0.9, dtype=torch.float64)
    kept = top_p_threshold(probs, mass)
    for row in range(16):
        assert torch.equal(top_p_threshold(probs[row : row + 1], mass[:1]), kept[row : row + 1])
