"""The changes that a request makes to its logits before a token is chosen: bias, penalties,
forbidden stops, its grammar's mask.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledRow
from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import floats, inner, integers, over_rows, words
from radixlm.memory.staging import Sending

# Finite: where a grammar allows nothing but the end, it is the likeliest token all the same.
_FORBIDDEN = -1e30
_NEVER = np.float32(-np.inf)
_WORD_BITS = 32
# This many rows take less time than it takes to wake another thread.
_ROWS_ALONE = 4


class _Change(NamedTuple):
    """Some tokens of one row, and the amount by which each is changed."""

    row: int
    tokens: npt.NDArray[np.integer]
    amounts: npt.NDArray[np.float32]


class LogitChanges:
    """Each row's bias, then its penalties, then its stop tokens, forbidden before min_tokens; known
    before there are logits.

    Repetition counts prompt and output, presence and frequency count the output only (as in vLLM;
    repetition after Keskar et al., CTRL, 2019). Ids outside the vocabulary are ignored.
    O(context log context) for a row with penalties.
    """

    def __init__(self, rows: Sequence[ScheduledRow], vocab: int, sending: Sending) -> None:
        biases, repetitions, penalties = [], [], []
        for index, row in enumerate(rows):
            params = row.request.params
            if params.logit_bias:
                biases.append(_bias(index, row))
            if params.repetition_penalty != 1.0:
                seen = np.unique(row.tokens)
                repetitions.append(_constant(index, seen, params.repetition_penalty))
            if params.presence_penalty or params.frequency_penalty:
                penalties.append(_output_penalty(index, row))
            if row.stop - row.prompt_length < params.min_tokens and row.request.stop_token_ids:
                stops = np.fromiter(row.request.stop_token_ids, dtype=np.int64)
                penalties.append(_constant(index, stops, _FORBIDDEN))
        self._in_order = [
            (change, *_sent(cells, vocab, sending))
            for change, cells in ((_add, biases), (_repel, repetitions), (_add, penalties))
            if cells
        ]

    def __call__(self, logits: Tensor) -> Tensor:
        """(rows, vocab) float32; unchanged. Returned itself when no row asks for anything."""
        if self._in_order:
            logits = logits.clone()
        for change, cells, amounts in self._in_order:
            change(logits, cells, amounts)
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


def _add(logits: Tensor, cells: tuple[Tensor, Tensor], amounts: Tensor) -> None:
    """Two changes may name the same cell, so they accumulate."""
    logits.index_put_(cells, amounts, accumulate=True)


def _repel(logits: Tensor, cells: tuple[Tensor, Tensor], amounts: Tensor) -> None:
    """Divide what is positive and multiply what is negative: both make a token less likely."""
    seen = logits[cells]
    logits[cells] = torch.where(seen > 0, seen / amounts, seen * amounts)


def _sent(
    changes: Sequence[_Change], vocab: int, sending: Sending
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """All changes' cells (rows, tokens) and amounts, those outside the vocabulary left out."""
    rows = np.repeat([change.row for change in changes], [c.tokens.size for c in changes])
    tokens = np.concatenate([change.tokens for change in changes]).astype(np.int64)
    amounts = np.concatenate([change.amounts for change in changes])
    known = tokens < vocab
    cells = sending.put(rows[known]), sending.put(tokens[known])
    return cells, sending.put(amounts[known])


def forbid(
    logits: Tensor,
    rows: Sequence[int],
    bits: npt.NDArray[np.int32],
    sending: Sending | None = None,
) -> None:
    """Make -inf, in place, what `bits` do not allow in `rows`.

    logits: (rows, vocab) float32, each row contiguous. rows: rising, at least one.
    bits: (len(rows), at least vocab / 32), contiguous; see TokenMasks. sending: of another device
    than the CPU.
    """
    if logits.device.type != "cpu":
        _forbid_by_torch(logits, rows, bits, sending or Sending(logits.device))
        return
    numbers = np.array(rows, dtype=np.int64)
    worker = Worker(
        forbid_kernel(),
        rows=len(rows),
        vocab=logits.shape[1],
        logits=logits.data_ptr(),
        stride=logits.stride(0),
        places=numbers.ctypes.data,
        bits=bits.ctypes.data,
        words_of_row=bits.shape[1],
    )
    worker(None if len(rows) > _ROWS_ALONE else 1)


def _forbid_by_torch(
    logits: Tensor, rows: Sequence[int], bits: npt.NDArray[np.int32], sending: Sending
) -> None:
    """One copy to the device more: masks are made while logits are computed."""
    masks = sending.put(np.array(bits))  # which may be read-only
    places = sending.put(np.array(rows, dtype=np.int64))
    sending.send()
    shifts = torch.arange(_WORD_BITS, device=logits.device)
    barred = (masks.unsqueeze(2) >> shifts & 1) == 0
    logits[places] = logits[places].masked_fill_(
        barred.flatten(1)[:, : logits.shape[1]], float(_NEVER)
    )


_Arguments = namedtuple("_Arguments", "counters rows vocab logits stride places bits words_of_row")


@compiled(_Arguments)
def forbid_kernel() -> Callable[[Any], None]:
    """A kernel that forbids tokens on the CPU, row after row. places: of the rows among the logits,
    int64.
    """

    @inner
    def forbid_row(args: _Arguments, row: int) -> None:
        vocab = args.vocab
        logits = floats(args.logits + 4 * words(args.places)[row] * args.stride)
        bits = integers(args.bits + 4 * row * args.words_of_row)
        for word in range(vocab // 32):
            allowed = bits[word]
            if allowed != -1:
                for token in range(32):  # vector instructions take it as it is
                    place = 32 * word + token
                    logits[place] = logits[place] if allowed >> token & 1 else _NEVER
        for token in range(vocab // 32 * 32, vocab):
            if not bits[vocab // 32] >> token % 32 & 1:
                logits[token] = _NEVER

    return over_rows(forbid_row, 1)
