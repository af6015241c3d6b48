"""Recurrences whose state is a matrix for each head, which fades: each token adds key x change to
it, and reads what its query finds. By the delta rule the change corrects what the key reads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.step_states import StepStates

# Tokens that are computed at once. They begin at multiples of it, counted from a request's first
# token: so a state at such a place has the same bits, however the prompt was cut.
CHUNK = 64


class ScanInputs(NamedTuple):
    """The inputs of tokens, float32. queries, keys: (tokens, heads, key). values: (tokens, heads,
    value). decay: logarithms, (tokens, heads). beta: the same shape, how much a token corrects;
    None: changes are the values.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    decay: Tensor
    beta: Tensor | None = None

    def of(self, tokens: Tensor | slice) -> ScanInputs:
        """Take those of some tokens."""
        queries, keys, values, decay, beta = self
        others = (keys[tokens], values[tokens], decay[tokens])
        return ScanInputs(queries[tokens], *others, None if beta is None else beta[tokens])


def through(inputs: ScanInputs, layer: int, states: StepStates) -> Tensor:
    """Take a step's tokens through the layer's states, which go on; gives what queries read,
    (tokens, heads, value).
    """
    made, kept, alone = torch.empty_like(inputs.values), states.matrices[layer], states.single
    if alone.numel():
        made[alone], kept[states.slots] = step(inputs.of(alone), kept[states.slots])
    for first, stop, position, slot in states.longer:
        its = inputs.of(slice(first, stop))
        made[first:stop], kept[slot] = scan(its, kept[slot], position % CHUNK)
    return made


def step(inputs: ScanInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """Take one token of each of n rows through their states (n, heads, key, value); gives what
    it reads (n, heads, value), and the states after it.
    """
    queries, keys, change, decay, beta = inputs
    state = state * decay.exp()[..., None, None]
    if beta is not None:
        change = (change - torch.einsum("nhk,nhkv->nhv", keys, state)) * beta[..., None]
    state = state + keys[..., None] * change[..., None, :]
    return torch.einsum("nhk,nhkv->nhv", queries, state), state


def scan(inputs: ScanInputs, state: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Take the tokens of one row through its state (heads, key, value), chunk by chunk; gives what
    they read (tokens, heads, value), and the state after them. offset: of the first in its chunk.

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
    reads: Tensor | None = None
    if inputs.beta is not None:
        beta = _in_chunks(inputs.beta, around)[..., None]
        own = beta * keys
        wanted = torch.cat((beta * change, own * since.exp()[..., None]), dim=-1)
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
