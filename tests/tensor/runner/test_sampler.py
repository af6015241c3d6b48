from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from radixlm.core.batch import ScheduledRow
from radixlm.core.sampling import SamplingParams
from radixlm.memory.staging import Sending
from radixlm.runner.logits_processors import LogitChanges
from radixlm.runner.sampler import FLAT, NOT_FINITE, Sampling, sample, uniform
from tests.pretend_gpu import PretendGpu
from tests.tensor.rows import make_row
from tests.tensor.sampling_cases import (
    naive_adjusted,
    naive_probs,
    random_logits,
    random_row,
)


def adjusted(logits: torch.Tensor, rows: Sequence[ScheduledRow]) -> torch.Tensor:
    return LogitChanges(rows, logits.shape[1], Sending(logits.device))(logits)


def _rows(n: int, params: SamplingParams, **more: object) -> list[ScheduledRow]:
    return [make_row([1, 2], params=params, seed=i, table_row=i, **more) for i in range(n)]


def test_greedy_takes_the_best_and_the_lowest_of_equals() -> None:
    logits = torch.zeros(3, 6)
    logits[0, [2, 4]] = 1.0
    logits[1, 5] = 2.0
    assert sample(logits, _rows(3, SamplingParams(temperature=0))) == [2, 5, 0]


def test_no_rows_give_no_tokens() -> None:
    assert sample(torch.empty(0, 9), []) == []


def test_a_mixed_batch_draws_each_row_from_its_own_distribution() -> None:
    """The drawn token must be where the naive cumulative sum passes the row's number."""
    rng = np.random.default_rng(5)
    rows = [random_row(rng, i) for i in range(60)]
    logits = random_logits(60, seed=5)
    before = logits.clone()
    tokens = sample(logits, rows)
    assert torch.equal(logits, before)
    for row, raw, token in zip(rows, logits.numpy(), tokens, strict=True):
        probs = naive_probs(raw, row)
        point = uniform(row.request.seed, row.stop)
        mass = probs.cumsum()
        assert probs[token] > 0
        assert mass[token] - probs[token] - 1e-5 <= point <= mass[token] + 1e-5


def test_a_rows_token_hangs_on_nothing_else_in_the_batch() -> None:
    rng = np.random.default_rng(6)
    rows = [random_row(rng, i) for i in range(24)]
    logits = random_logits(24, seed=6)
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [row]) for i, row in enumerate(rows)]
    assert alone == [[token] for token in together]
    order = rng.permutation(24)
    assert sample(logits[order], [rows[i] for i in order]) == [together[i] for i in order]


def test_seed_and_position_decide_the_draw() -> None:
    logits = random_logits(1, seed=1, spread=0.1)
    params = SamplingParams()

    def draw(seed: int, length: int) -> list[int]:
        return sample(logits, [make_row([1] * length, params=params, seed=seed)])

    assert draw(3, 5) == draw(3, 5)
    assert len({draw(3, n)[0] for n in range(2, 12)}) > 5
    assert len({draw(seed, 5)[0] for seed in range(10)}) > 5


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        *(
            pytest.param(params, marks=pytest.mark.slow)
            for params in (
                SamplingParams(temperature=0.5),
                SamplingParams(top_k=3),
                SamplingParams(top_p=0.7),
                SamplingParams(min_p=0.3),
            )
        ),
        SamplingParams(temperature=1.5, top_k=5, top_p=0.9, min_p=0.1),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    n = 4000
    raw = random_logits(1, seed=2, vocab=8, spread=1.0)
    rows = _rows(n, params)
    counts = np.bincount(sample(raw.expand(n, 8), rows), minlength=8)
    wanted = naive_probs(raw[0].numpy(), rows[0]) * n
    kept = wanted > 0
    assert not counts[~kept].any()
    chi_square = ((counts[kept] - wanted[kept]) ** 2 / wanted[kept]).sum()
    assert chi_square < 25  # 7 degrees of freedom: p < 0.001


def test_bias_penalties_and_min_tokens_equal_the_definition() -> None:
    rng = np.random.default_rng(7)
    rows = [random_row(rng, i) for i in range(50)]
    logits = random_logits(50, seed=7)
    ours = adjusted(logits, rows).numpy()
    for row, raw, got in zip(rows, logits.numpy(), ours, strict=True):
        np.testing.assert_allclose(got, naive_adjusted(raw, row), rtol=1e-5, atol=1e-4)


def test_rows_that_ask_for_nothing_cost_no_copy() -> None:
    logits = random_logits(2, seed=0)
    rows = _rows(2, SamplingParams(temperature=0), stop_token_ids=frozenset({3}))
    assert adjusted(logits, rows) is logits


def test_min_tokens_lets_go_in_time() -> None:
    logits = torch.zeros(1, 8)
    logits[0, 4] = 5.0
    params = SamplingParams(temperature=0, min_tokens=2)

    def choose(output: int) -> list[int]:
        row = make_row(
            [1] * (3 + output), prompt=[1] * 3, params=params, stop_token_ids=frozenset({4, 99})
        )
        return sample(logits, [row])

    assert [choose(0), choose(1), choose(2)] == [[0], [0], [4]]


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    params = SamplingParams(temperature=0, logit_bias={2**31 - 1: 100.0, 5: 100.0})
    assert sample(torch.zeros(1, 8), [make_row([1], params=params)]) == [5]


def test_a_gpu_draws_again_where_its_head_has_not_the_mass(gpu: PretendGpu) -> None:
    """Of three rows one is flat; what is not is a token that it would have been anyway."""
    raw = random_logits(4, seed=3, vocab=4_000, spread=0.01)
    raw[0] *= 500
    raw[3, 7] = torch.nan
    rows = _rows(4, SamplingParams(top_p=0.6))
    found = Sampling(rows, 4_000, Sending(gpu.device))(raw.to(gpu.device)).tolist()
    wanted = sample(raw, rows)
    assert found == [wanted[0], FLAT, FLAT, NOT_FINITE]
    gpu.count()
    there = raw.to(gpu.device)
    assert sample(there, rows) == wanted
    assert wanted[3] is None
    assert gpu.count().waits == 2


@pytest.mark.parametrize("temperature", [1e-300, 1e-40, 1e-6])
def test_a_temperature_near_zero_is_greedy(temperature: float) -> None:
    logits = random_logits(1, seed=4)
    row = make_row([1], params=SamplingParams(temperature=temperature))
    assert sample(logits, [row]) == [int(logits.argmax())]


def test_top_p_over_a_flat_vocabulary_sees_past_the_head() -> None:
    """A vocabulary larger than the sorted head, nearly flat: the wanted mass lies beyond it."""
    vocab, n = 3000, 400
    raw = random_logits(1, seed=3, vocab=vocab, spread=0.01)
    rows = _rows(n, SamplingParams(top_p=0.6))
    allowed = naive_probs(raw[0].numpy(), rows[0]) > 0
    assert allowed.sum() > 1500
    tokens = sample(raw.expand(n, vocab), rows)
    assert allowed[tokens].all()
    assert len(set(tokens)) > 300


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_finite_concern_one_row(value: float, temperature: float) -> None:
    logits = random_logits(3, seed=0)
    params = SamplingParams(temperature=temperature)
    wanted = sample(logits.clone(), _rows(3, params))
    logits[1, 7] = value
    assert sample(logits, _rows(3, params)) == [wanted[0], None, wanted[2]]
