"""What a step's tokens read by themselves, each its own slots, by the compiled worker."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention import direct
from radixlm.attention.plan import RowSpan
from radixlm.attention.rows import Merge, PartRows
from radixlm.attention.team import Team
from radixlm.attention.vectors import MOST_LANES
from radixlm.memory.kv_pool import KVPool

# With fewer reads than this per thread contexts are cut in pieces, the longest ones not shorter
# than this.
_READS_PER_THREAD = 4
_LEAST_PIECE = 256

_Column = npt.NDArray[np.int64]


class OwnReads:
    """One step's reads: each new token of `spans` over the part of its row that it sees.

    worker: made by `direct.make_worker` for n_heads and the pool.
    table: (rows, context) int32, with this step applied.
    rows: where several reads of a token meet.
    """

    def __init__(
        self,
        worker: Any,
        team: Team,
        pool: KVPool,
        n_heads: int,
        table: Tensor,
        spans: Sequence[RowSpan],
        rows: PartRows,
    ) -> None:
        self._worker = worker
        self._address = worker.address
        self._team = team
        self._pool = pool
        self._threads = team.size
        token, length, columns = _tokens(spans)
        wanted = -(-_READS_PER_THREAD * self._threads // len(token))
        pieces = max(1, min(wanted, int(length.max()) // _LEAST_PIECE))
        if pieces > 1:
            rows.several[token] = True
        self._reads = np.concatenate(
            [_piece(token, length, columns, rows, (piece, pieces)) for piece in range(pieces)]
        )
        self._keep = table
        longest = -(-int(length.max()) // pieces)
        scores = -(-longest // MOST_LANES) * MOST_LANES
        per_thread = direct.scratch_numbers(n_heads, pool.head_dim, scores)
        self._scratch = torch.empty(self._threads * per_thread, dtype=torch.float32, device="cpu")
        self._arguments = (ctypes.c_int64 * direct.SIZE)()
        self._arguments[direct.ITEMS] = len(self._reads)
        self._arguments[direct.KEY_HEADS] = pool.n_kv_heads
        self._arguments[direct.TABLE] = table.data_ptr()
        self._arguments[direct.TABLE_STRIDE] = table.stride(0) * table.element_size()
        self._arguments[direct.READS] = self._reads.ctypes.data
        self._arguments[direct.SCRATCH] = self._scratch.data_ptr()
        self._arguments[direct.SCORES] = scores
        self._arguments[direct.PER_THREAD] = per_thread * self._scratch.element_size()

    def attend(self, layer: int, q: Tensor, answers: Tensor, merge: Merge | None) -> None:
        """Write the answers and parts of the spans' tokens.

        q, answers: (tokens, n_heads, head_dim), q strided over tokens, answers contiguous.
        """
        arguments = self._arguments
        arguments[direct.THREADS_SEEN] = 0
        arguments[direct.UNITS_TAKEN] = 0
        arguments[direct.Q] = q.data_ptr()
        arguments[direct.Q_STRIDE] = q.stride(0) * q.element_size()
        arguments[direct.KEYS] = self._pool.keys[layer].data_ptr()
        arguments[direct.VALUES] = self._pool.values[layer].data_ptr()
        arguments[direct.ANSWERS] = answers.data_ptr()
        if merge is not None:
            arguments[direct.PARTS], arguments[direct.LSE] = merge.parts, merge.lse
        self._team.run(self._address, ctypes.addressof(arguments), self._threads)


def _tokens(spans: Sequence[RowSpan]) -> tuple[_Column, _Column, npt.NDArray[np.int64]]:
    """Of each token: its place in the step, how many tokens it reads, and (table row, head, gap).
    Longest first: the last ones taken are to be short.
    """
    made = np.array([(s.token, s.context, s.table_row, s.head, s.gap) for s in spans])
    if len(spans) < (total := sum(span.n_new for span in spans)):
        counts = np.array([span.n_new for span in spans])
        made = made.repeat(counts, axis=0)
        place = np.arange(total) - (counts.cumsum() - counts).repeat(counts)
        made[:, 0] += place
        made[:, 1] += place + 1 - counts.repeat(counts)
    made = made[np.argsort(-made[:, 1], kind="stable")]
    return made[:, 0].copy(), made[:, 1], made[:, 2:]


def _piece(
    token: _Column,
    length: _Column,
    columns: npt.NDArray[np.int64],
    rows: PartRows,
    of: tuple[int, int],
) -> npt.NDArray[np.int64]:
    """The worker's reads of the nth of so many pieces; see `direct.READ_COLUMNS`.

    row    |  head  |  gap: read with others  |      |     own tokens are numbered
              0 ..h                             h ..       without the gap
    """
    row, head, gap = columns.T
    piece, pieces = of
    first, stop = length * piece // pieces, length * (piece + 1) // pieces
    some = stop > first
    reads = (
        token,
        row,
        np.minimum(first, head),
        np.minimum(stop, head),
        np.maximum(first, head) + gap,
        np.maximum(stop, head) + gap,
    )
    taken = [column[some] for column in reads]
    return np.stack([rows.take(taken[0]), *taken], axis=1)
