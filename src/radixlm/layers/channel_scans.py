"""The delta rule whose state fades by a number of each channel of a key, not of each head (Kimi
Linear, 2025): else as `scans` has it, and in chunks of the same tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.torch_scans import CHUNK, ScanInputs

# Rows of a chunk whose weights are computed at once. Channels fade so differently that what is left
# of a state can not be taken apart into a factor of the query and one of the key, which would be
# too large for a float: within a block it is taken for each pair, before it from the block's start.
_BLOCK = 8


def scan_channels(inputs: ScanInputs, state: Tensor, offset: int) -> tuple[Tensor, Tensor]:
    """Take the tokens of one row through its state (heads, key, value); see `torch_scans.scan`."""
    count = inputs.queries.shape[0]
    around = offset, -(offset + count) % CHUNK
    # (heads, chunks, CHUNK, ..); tokens that are none change nothing: they have zeros. The order in
    # memory is always the same, as bits of products depend on it.
    queries, keys, values, decay, beta = (
        functional.pad(each.transpose(0, 1).contiguous(), (0, 0, *around)).unflatten(1, (-1, CHUNK))
        for each in (*inputs[:4], inputs.beta[..., None])
    )
    since = decay.cumsum(-2)
    wanted = torch.cat((beta * values, beta * keys * since.exp()), dim=-1)
    overlap = beta * _weights(keys, keys, since)
    solved = torch.linalg.solve_triangular(overlap, wanted, upper=False, unitriangular=True)
    change, reads = solved.split_with_sizes((values.shape[-1], keys.shape[-1]), -1)
    weights = _weights(queries, keys, since)
    queries = queries * since.exp()
    keys = keys * (since[..., -1:, :] - since).exp()
    left = since[..., -1, :].exp()[..., None]
    made = []
    for chunk in range(queries.shape[1]):
        its = change[:, chunk] - reads[:, chunk] @ state
        made.append(queries[:, chunk] @ state + weights[:, chunk] @ its)
        state = state * left[:, chunk] + keys[:, chunk].mT @ its
    read = torch.cat(made, dim=1)[:, offset : offset + count]
    return read.transpose(0, 1), state


def _weights(rows: Tensor, keys: Tensor, since: Tensor) -> Tensor:
    """(heads, chunks, CHUNK, CHUNK): each row times each key that is not after it, as much of that
    as is left by then.
    """
    made = rows.new_zeros(*rows.shape[:-1], CHUNK)
    after = torch.ones(_BLOCK, _BLOCK, dtype=torch.bool, device=rows.device).triu(1)[..., None]
    for first in range(0, CHUNK, _BLOCK):
        its = slice(first, first + _BLOCK)
        row, key, own = rows[..., its, :], keys[..., its, :], since[..., its, :]
        between = (own[..., :, None, :] - own[..., None, :, :]).masked_fill_(after, -torch.inf)
        pairs = between.exp_().mul_(row[..., :, None, :]).mul_(key[..., None, :, :])
        made[..., its, its] = pairs.sum(-1)
        if first:
            start, before = since[..., first - 1 : first, :], slice(0, first)
            faded = keys[..., before, :] * (start - since[..., before, :]).exp()
            made[..., its, before] = (row * (own - start).exp()) @ faded.mT
    return made
