"""Grammars' masks on logits."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import floats, inner, integers, over_rows, words

_NEVER = np.float32(-np.inf)
# For each byte of a mask, what is added to the logits of its eight tokens: 0 or -inf.
_ADDED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(0),
    _NEVER,
)
# This many rows take less time than it takes to wake another thread.
_ROWS_ALONE = 4


def forbid(logits: Tensor, rows: Sequence[int], bits: npt.NDArray[np.int32]) -> None:
    """Make -inf, in place, what `bits` do not allow in `rows`.

    logits: (rows, vocab) float32, each row contiguous. rows: rising, at least one.
    bits: (len(rows), at least vocab / 32), contiguous; see TokenMasks.
    """
    if logits.device.type != "cpu":
        octets = torch.from_numpy(bits.view(np.uint8)).to(logits.device).int()
        added = functional.embedding(octets, torch.from_numpy(_ADDED).to(logits.device))
        places = torch.tensor(rows, device=logits.device)
        logits[places] += added.flatten(1)[:, : logits.shape[1]]
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


_Arguments = namedtuple("_Arguments", "counters rows vocab logits stride places bits words_of_row")


@compiled(_Arguments)
def forbid_kernel() -> Callable[[Any], None]:
    """What does it on the CPU, row after row. places: of the rows among the logits, int64."""

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
