"""What a request does to its logits before a token is chosen: bias, penalties, forbidden stops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledRow

# Finite: where a grammar allows nothing but the end, it is the likeliest token all the same.
_FORBIDDEN = -1e30


class _Change(NamedTuple):
    """Some tokens of one row, and the amount by which each is changed."""

    row: int
    tokens: npt.NDArray[np.integer]
    amounts: npt.NDArray[np.float32]


def adjusted(logits: Tensor, rows: Sequence[ScheduledRow]) -> Tensor:
    """Apply each row's bias, then its penalties, then forbid its stop tokens before min_tokens.

    logits: (rows, vocab) float32; unchanged. Returned itself when no row asks for anything.
    Repetition counts prompt and output, presence and frequency count the output only (as in vLLM;
    repetition after Keskar et al., CTRL, 2019). Ids outside the vocabulary are ignored.
    O(context log context) for a row with penalties.
    """
    biases, repetitions, penalties = [], [], []
    for index, row in enumerate(rows):
        params = row.request.params
        if params.logit_bias:
            biases.append(_bias(index, row))
        if params.repetition_penalty != 1.0:
            repetitions.append(_constant(index, np.unique(row.tokens), params.repetition_penalty))
        if params.presence_penalty or params.frequency_penalty:
            penalties.append(_output_penalty(index, row))
        if row.stop - row.prompt_length < params.min_tokens and row.request.stop_token_ids:
            stops = np.fromiter(row.request.stop_token_ids, dtype=np.int64)
            penalties.append(_constant(index, stops, _FORBIDDEN))
    if not (biases or repetitions or penalties):
        return logits
    logits = logits.clone()
    _add(logits, biases)
    _repel(logits, repetitions)
    _add(logits, penalties)
    return logits


def _bias(index: int, row: ScheduledRow) -> _Change:
    bias = row.request.params.logit_bias
    tokens = np.fromiter(bias.keys(), dtype=np.int64)
    return _Change(index, tokens, np.fromiter(bias.values(), dtype=np.float32))


def _output_penalty(index: int, row: ScheduledRow) -> _Change:
    params = row.request.params
    tokens, counts = np.unique(row.tokens[row.prompt_length :], return_counts=True)
    amounts = params.presence_penalty + params.frequency_penalty * counts
    return _Change(index, tokens, -amounts.astype(np.float32))


def _constant(index: int, tokens: npt.NDArray[np.integer], amount: float) -> _Change:
    return _Change(index, tokens, np.full(tokens.size, amount, dtype=np.float32))


def _add(logits: Tensor, changes: Sequence[_Change]) -> None:
    """Two changes may name the same cell, so they accumulate."""
    if changes:
        cells, amounts = _on_device(logits, changes)
        logits.index_put_(cells, amounts, accumulate=True)


def _repel(logits: Tensor, changes: Sequence[_Change]) -> None:
    """Divide what is positive and multiply what is negative: both make a token less likely."""
    if changes:
        cells, amounts = _on_device(logits, changes)
        seen = logits[cells]
        logits[cells] = torch.where(seen > 0, seen / amounts, seen * amounts)


def _on_device(logits: Tensor, changes: Sequence[_Change]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """All changes' cells (rows, tokens) and amounts, those outside the vocabulary left out."""
    rows = np.repeat([change.row for change in changes], [c.tokens.size for c in changes])
    tokens = np.concatenate([change.tokens for change in changes]).astype(np.int64)
    amounts = np.concatenate([change.amounts for change in changes])
    known = tokens < logits.shape[1]
    cells = torch.from_numpy(np.stack((rows, tokens))[:, known]).to(logits.device)
    return (cells[0], cells[1]), torch.from_numpy(amounts[known]).to(logits.device)
