"""Scans of `scans` by torch, for devices that there is no compiled code for."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

# Tokens that torch computes at once. They begin at multiples of it, counted from a request's first
# token: so a state at such a place has the same bits, however the prompt was cut.
CHUNK = 64


class ScanInputs(NamedTuple):
    """The inputs of tokens, float32. queries, keys: (tokens, key heads, key), each of them that of
    several heads in a row. values: (tokens, heads, value). decay: logarithms, (tokens, heads), or
    (tokens, heads, key) of each number of a key. beta: (tokens, heads), how much of its change a
    token adds.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decay: Tensor
    beta: Tensor

    def of(self, tokens: Tensor | slice) -> ScanInputs:
        """Take those of some tokens."""
        return ScanInputs(*(each[tokens] for each in self))


def step(inputs: ScanInputs, state: Tensor, *, delta: bool) -> tuple[Tensor, Tensor]:
    """Take one token of each of n rows through their states (n, heads, key, value); gives what
    it reads (n, heads, value), and the states after it. Queries and keys are of all heads.
    """
    queries, keys, change, decay, beta = inputs
    state = state * decay.exp().view(*decay.shape[:2], -1, 1)
    if delta:
        change = change - torch.einsum("nhk,nhkv->nhv", keys, state)
    state = state + keys[..., None] * (change * beta[..., None])[..., None, :]
    return torch.einsum("nhk,nhkv->nhv", queries, state), state


def scan(inputs: ScanInputs, state: Tensor, offset: int, *, delta: bool) -> tuple[Tensor, Tensor]:
    """Take the tokens of one row through its state (heads, key, value), chunk by chunk; gives what
    they read (tokens, heads, value), and the state after them. offset: of the first in its chunk.
    Queries and keys are of all heads.

    By the delta rule each token's change depends on those before it in its chunk: (1 + L) change =
    beta (value - what its key reads of the state before the chunk), L lower triangular. That is
    solved for all chunks at once; then they go one after the other.
    """
    count = inputs.queries.shape[0]
    around = offset, -(offset + count) % CHUNK
    # (heads, chunks, CHUNK, ..); tokens that are none change nothing: they have zeros.
    queries, keys, change = (
        functional.pad(each.transpose(0, 1), (0, 0, *around)).unflatten(1, (-1, CHUNK))
        for each in inputs[:3]
    )
    since = _in_chunks(inputs.decay, around).cumsum(-1)  # what is left of the state before it
    between = (since[..., :, None] - since[..., None, :]).tril().exp().tril()
    beta = _in_chunks(inputs.beta, around)[..., None]
    change, reads = beta * change, None
    if delta:
        own = beta * keys
        wanted = torch.cat((change, own * since.exp()[..., None]), dim=-1)
        overlap = (own @ keys.mT) * between
        solved = torch.linalg.solve_triangular(overlap, wanted, upper=False, unitriangular=True)
        change, reads = solved.split_with_sizes((change.shape[-1], keys.shape[-1]), -1)
    weights = (queries @ keys.mT) * between
    queries = queries * since.exp()[..., None]
    keys = keys * (since[..., -1:] - since).exp()[..., None]
    left = since[..., -1].exp()[..., None, None]
    made = []
    for chunk in range(queries.shape[1]):
        its = change[:, chunk]
        if reads is not None:
            its = its - reads[:, chunk] @ state
        made.append(queries[:, chunk] @ state + weights[:, chunk] @ its)
        state = state * left[:, chunk] + keys[:, chunk].mT @ its
    read = torch.cat(made, dim=1)[:, offset : offset + count]
    return read.transpose(0, 1), state


def _in_chunks(x: Tensor, around: tuple[int, int]) -> Tensor:
    """(tokens, heads) -> (heads, chunks, CHUNK)."""
    padded = functional.pad(x.t(), around)
    return padded.view(x.shape[1], -1, CHUNK)
