"""Sampling cases that run on any device, and naive references in plain Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledRow
from radixlm.core.request import TokenLogprob
from radixlm.core.sampling import SamplingParams
from radixlm.runner.sampler import entries_of, logprobs_of
from tests.tensor.rows import make_row

VOCAB = 2500


def random_logits(n: int, seed: int, vocab: int = VOCAB, spread: float = 3.0) -> Tensor:
    return torch.randn((n, vocab), generator=torch.Generator().manual_seed(seed)) * spread


def random_row(rng: np.random.Generator, index: int, vocab: int = VOCAB) -> ScheduledRow:
    """A row with some mixture of all sampling parameters."""

    def maybe(value: float, default: float) -> float:
        return value if rng.random() < 0.4 else default

    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.3, 1.0, 1.7])),
        top_k=int(maybe(int(rng.integers(1, vocab * 2)), -1)),
        top_p=float(maybe(rng.uniform(0.05, 0.999), 1.0)),
        min_p=float(maybe(rng.uniform(0.0, 0.3), 0.0)),
        presence_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        frequency_penalty=float(maybe(rng.uniform(-2, 2), 0.0)),
        repetition_penalty=float(maybe(rng.uniform(0.5, 2), 1.0)),
        logit_bias={int(t): float(rng.uniform(-100, 100)) for t in rng.integers(0, vocab * 2, 5)}
        if rng.random() < 0.3
        else {},
        min_tokens=int(rng.integers(0, 30)),
        max_tokens=64,
    )
    prompt = rng.integers(0, vocab, int(rng.integers(1, 40)))
    output = rng.integers(0, vocab, int(rng.integers(0, 40)))
    return make_row(
        np.concatenate([prompt, output, output]),
        params=params,
        prompt=prompt,
        table_row=index,
        seed=int(rng.integers(0, 2**40)),
        stop_token_ids=frozenset(rng.integers(0, vocab * 2, 3).tolist()),
    )


def token_logprobs(
    logits: Tensor, targets: Sequence[int], tops: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    there = torch.tensor(targets, device=logits.device)
    return entries_of(logprobs_of(logits, there, max(tops)).tolist(), targets, tops)


def naive_adjusted(logits: np.ndarray, row: ScheduledRow) -> np.ndarray:
    """The definition, token by token, in float64."""
    params = row.request.params
    out = logits.astype(np.float64)
    for token, bias in params.logit_bias.items():
        if token < out.size:
            out[token] += bias
    everything = row.tokens.tolist()
    output = everything[row.prompt_length :]
    for token in set(everything):
        scale = params.repetition_penalty
        out[token] = out[token] / scale if out[token] > 0 else out[token] * scale
    for token in set(output):
        out[token] -= params.presence_penalty + params.frequency_penalty * output.count(token)
    if len(output) < params.min_tokens:
        for token in row.request.stop_token_ids:
            if token < out.size:
                out[token] = -1e30
    return out


def naive_probs(logits: np.ndarray, row: ScheduledRow) -> np.ndarray:
    """What a token is drawn from, after temperature and all cuts; float64, adds up to 1."""
    params = row.request.params
    adjusted = naive_adjusted(logits, row)
    if params.temperature == 0:
        return np.eye(adjusted.size)[adjusted.argmax()]
    scaled = (adjusted - adjusted.max()) / params.temperature
    probs = np.exp(scaled) / np.exp(scaled).sum()
    order = np.argsort(-probs)
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0
    mass = probs[order].cumsum()
    probs[order[1:][mass[:-1] >= params.top_p * mass[-1]]] = 0
    probs[probs < params.min_p * probs.max()] = 0
    return probs / probs.sum()
