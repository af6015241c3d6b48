"""Grammars' masks on logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import team
from radixlm.kernels.vectors import fetch_add, floats, integers, words

_NEVER = np.float32(-np.inf)
# For each byte of a mask, what is added to the logits of its eight tokens: 0 or -inf.
_ADDED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(0),
    _NEVER,
)
# The worker's arguments, int64 each; the last three are addresses.
_TAKEN, _ROWS, _VOCAB, _STRIDE, _WORDS, _PLACES, _LOGITS, _BITS = range(8)
# So many rows take less time than it takes to wake another thread.
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
    arguments = np.array(
        [
            *(0, len(rows), logits.shape[1], logits.stride(0), bits.shape[1]),
            *(numbers.ctypes.data, logits.data_ptr(), bits.ctypes.data),
        ],
        dtype=np.int64,
    )
    threads = team().size if len(rows) > _ROWS_ALONE else 1
    team().run(forbid_worker().address, arguments.ctypes.data, threads)


@compiled
def forbid_worker() -> Callable[[int], None]:
    """What does it on the CPU, compiled when it is first asked for. Takes row after row."""

    def worker(arguments: int) -> None:
        args = words(arguments)
        places, vocab = words(args[_PLACES]), args[_VOCAB]
        while True:
            row = fetch_add(arguments)
            if row >= args[_ROWS]:
                break
            logits = floats(args[_LOGITS] + 4 * places[row] * args[_STRIDE])
            bits = integers(args[_BITS] + 4 * row * args[_WORDS])
            for word in range(vocab // 32):
                allowed = bits[word]
                if allowed != -1:
                    for token in range(32):  # vector instructions take it as it is
                        place = 32 * word + token
                        logits[place] = logits[place] if allowed >> token & 1 else _NEVER
            for token in range(vocab // 32 * 32, vocab):
                if not bits[vocab // 32] >> token % 32 & 1:
                    logits[token] = _NEVER

    return worker
