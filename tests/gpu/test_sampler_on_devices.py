from __future__ import annotations

import numpy as np
import pytest
import torch

from radixlm.runner.sampler import sample
from tests.tensor.sampling_cases import random_logits, random_row, token_logprobs


def test_the_same_tokens_as_on_cpu(device: torch.device) -> None:
    rng = np.random.default_rng(5)
    rows = [random_row(rng, i) for i in range(60)]
    logits = random_logits(60, seed=5)
    assert sample(logits.to(device, copy=True), rows) == sample(logits, rows)


def test_the_same_logprobs_as_on_cpu(device: torch.device) -> None:
    logits = random_logits(4, seed=1)
    ours = token_logprobs(logits.to(device), [1, 2, 3, 4], [5] * 4)
    for entry, wanted in zip(ours, token_logprobs(logits, [1, 2, 3, 4], [5] * 4), strict=True):
        assert entry.logprob == pytest.approx(wanted.logprob, abs=1e-5)
        assert [t for t, _ in entry.top] == [t for t, _ in wanted.top]
