"""Masks from grammars: what they do not allow is never drawn, whatever else a row asks for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from radixlm.core.sampling import SamplingParams
from radixlm.runner.logits_processors import forbid
from radixlm.runner.sampler import sample
from tests.pretend_gpu import PretendGpu
from tests.tensor.rows import make_row
from tests.tensor.sampling_cases import random_logits

VOCAB = 70


def _bits(*allowed: list[int]) -> npt.NDArray[np.int32]:
    flags = np.zeros((len(allowed), 96), dtype=np.uint8)
    for row, tokens in enumerate(allowed):
        flags[row, tokens] = 1
    return np.packbits(flags, axis=1, bitorder="little").view(np.int32)


@pytest.mark.parametrize("rows", [[0, 1, 2], [0, 2], [1]])
def test_a_mask_leaves_what_it_allows_and_nothing_else(rows: list[int]) -> None:
    logits = random_logits(3, seed=1, vocab=VOCAB)
    before = logits.clone()
    allowed = [[0, 31, 32, 69], [5], [*range(32, 64), 64]][: len(rows)]
    forbid(logits, rows, _bits(*allowed))
    for row in range(3):
        kept = allowed[rows.index(row)] if row in rows else list(range(VOCAB))
        assert logits[row].isfinite().nonzero().flatten().tolist() == kept
        assert torch.equal(logits[row, kept], before[row, kept])


def test_a_gpu_takes_masks_that_are_read_only(gpu: PretendGpu) -> None:
    bits = np.array([[0b1010, 1]], dtype=np.int32)
    bits.flags.writeable = False
    logits = torch.zeros(2, 40, device=gpu.device)
    logits[1, 0] = float("nan")
    torch.set_warn_always(True)  # else it warns once in a process
    try:
        forbid(logits, [1], bits)
    finally:
        torch.set_warn_always(False)
    assert logits[1].isfinite().cpu().nonzero().flatten().tolist() == [1, 3, 32]
    assert logits[1, 0].item() == -float("inf")
    assert not logits[0].cpu().any()


@pytest.mark.parametrize("vocab", [1, 32, 64, 70, 1000])
@pytest.mark.parametrize("n_rows", [1, 4, 9])
def test_masks_of_any_kind(n_rows: int, vocab: int) -> None:
    random = np.random.default_rng(vocab + n_rows)
    shares = random.choice([0, 0.01, 0.5, 0.99, 1], size=(n_rows, 1))
    flags = random.random((n_rows, vocab // 32 * 32 + 32)) < shares
    flags[:, random.integers(vocab)] = True
    logits = random_logits(n_rows, seed=5, vocab=vocab + 3)[:, :vocab]
    wanted = logits.masked_fill(~torch.from_numpy(flags[:, :vocab]), -torch.inf)
    forbid(logits, range(n_rows), np.packbits(flags, axis=1, bitorder="little").view(np.int32))
    assert torch.equal(logits, wanted)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(temperature=5.0),
        SamplingParams(temperature=1e-40),
        SamplingParams(top_k=1),
        SamplingParams(top_p=0.01),
        SamplingParams(min_p=0.9),
        SamplingParams(logit_bias={3: 100.0, 40: -100.0}),
        SamplingParams(repetition_penalty=5.0, presence_penalty=2.0),
    ],
)
def test_only_what_is_allowed_is_drawn(params: SamplingParams) -> None:
    rows = [make_row([40, 41], params=params, seed=seed) for seed in range(64)]
    logits = random_logits(64, seed=2, vocab=VOCAB)
    drawn = sample(logits, rows, (range(64), _bits(*[[40, 41]] * 64)))
    assert set(drawn) <= {40, 41}


def test_rows_without_a_mask_draw_what_they_would_have() -> None:
    params = SamplingParams(temperature=1.0)
    rows = [make_row([1], params=params, seed=seed) for seed in range(8)]
    logits = random_logits(8, seed=3, vocab=VOCAB)
    free = sample(logits, rows)
    some = sample(logits, rows, ([2, 5], _bits([7], [9])))
    assert [token for i, token in enumerate(some) if i not in (2, 5)] == [
        token for i, token in enumerate(free) if i not in (2, 5)
    ]
    assert (some[2], some[5]) == (7, 9)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_end_that_min_tokens_forbids_is_taken_where_nothing_else_is_allowed(
    temperature: float,
) -> None:
    params = SamplingParams(temperature=temperature, min_tokens=5)
    row = make_row([1], params=params, stop_token_ids=frozenset({9}))
    logits = random_logits(1, seed=4, vocab=VOCAB)
    assert sample(logits, [row], ([0], _bits([9]))) == [9]
    assert sample(logits, [row], ([0], _bits([9, 10]))) == [10]
