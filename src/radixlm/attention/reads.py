"""What a step's tokens read many at a time, in tiles, by the compiled worker."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention import direct, tiles
from radixlm.attention.plan import RowSpan
from radixlm.attention.rows import Merge, PartRows
from radixlm.attention.tile_layout import Shape, places_of
from radixlm.kernels.jit import Kernel
from radixlm.kernels.openmp import Team
from radixlm.kernels.vectors import MOST_LANES
from radixlm.memory.kv_pool import KVPool

# Contexts are cut until each thread has so many units of work, but not into shorter pieces.
_UNITS_PER_THREAD = 8
_LEAST_PIECE = 512


class TileRead(NamedTuple):
    """New tokens [first, stop) of the step, and what they read together.

    slots: (tokens,) int32, contiguous.
    seen: how many of them the first token sees; the next one sees one more, until all.
    """

    first: int
    stop: int
    slots: Tensor
    seen: int


class Block(NamedTuple):
    """A few neighbouring tokens of a read, and a piece [start, end) of what they see of it.

    whole: the piece is all that they see.
    """

    read: TileRead
    first: int
    stop: int
    start: int
    end: int
    whole: bool

    @property
    def work(self) -> int:
        return (self.stop - self.first) * (self.end - self.start)


def cut(reads: Sequence[TileRead], heads: int, threads: int, block_tokens: int) -> list[Block]:
    """Blocks of `block_tokens`, their contexts in pieces where a thread would have too few of them;
    the largest first: the last ones taken are to be small.

    heads: of keys, each of which is a unit of work of its own.
    """
    blocks = []
    for read in reads:
        for first in range(read.first, read.stop, block_tokens):
            stop = min(first + block_tokens, read.stop)
            end = min(read.slots.numel(), read.seen + stop - 1 - read.first)
            blocks.append(Block(read, first, stop, 0, end, whole=True))
    if threads > 1:
        total = sum(block.work for block in blocks)
        most = max(total * heads // (_UNITS_PER_THREAD * threads), 1)
        blocks = [piece for block in blocks for piece in _pieces(block, most)]
    return sorted(blocks, key=lambda block: -block.work)


def _pieces(block: Block, most: int) -> list[Block]:
    """None much larger than `most`, in tokens x tokens."""
    count = min(-(-block.work // most), block.end // _LEAST_PIECE)
    if count < 2:
        return [block]
    ends = [block.end * piece // count for piece in range(count + 1)]
    return [
        block._replace(start=start, end=end, whole=False) for start, end in itertools.pairwise(ends)
    ]


class TileReads:
    """One step's reads in tiles.

    worker: made by `tiles.make_tile_worker` for the pool's shape.
    scratch: (threads, bytes) as `make_scratch` gives it, for one call at a time.
    rows: where several reads of a token meet.
    """

    def __init__(
        self,
        worker: Kernel,
        team: Team,
        pool: KVPool,
        scratch: Tensor,
        blocks: Sequence[Block],
        rows: PartRows,
    ) -> None:
        self._worker = worker
        self._team = team
        self._pool = pool
        self._threads = scratch.shape[0]
        self._keep = blocks
        self._reads = np.array([_columns(block, rows) for block in blocks], dtype=np.int64)
        self._scratch = scratch
        self._arguments = (ctypes.c_int64 * tiles.SIZE)()
        self._arguments[tiles.ITEMS] = len(blocks)
        self._arguments[tiles.KEY_HEADS] = pool.n_kv_heads
        self._arguments[tiles.READS] = self._reads.ctypes.data
        self._arguments[tiles.SCRATCH] = self._scratch.data_ptr()

    def attend(self, layer: int, q: Tensor, answers: Tensor, merge: Merge | None) -> None:
        """Write the answers and parts of the blocks' tokens.

        q, answers: (tokens, n_heads, head_dim), q strided over tokens, answers contiguous.
        """
        arguments = self._arguments
        arguments[tiles.THREADS_SEEN] = 0
        arguments[tiles.UNITS_TAKEN] = 0
        arguments[tiles.Q] = q.data_ptr()
        arguments[tiles.Q_STRIDE] = q.stride(0) * q.element_size()
        arguments[tiles.KEYS] = self._pool.keys[layer].data_ptr()
        arguments[tiles.VALUES] = self._pool.values[layer].data_ptr()
        arguments[tiles.ANSWERS] = answers.data_ptr()
        if merge is not None:
            arguments[tiles.PARTS], arguments[tiles.LSE] = merge.parts, merge.lse
        self._team.run(self._worker.address, ctypes.addressof(arguments), self._threads)


def make_scratch(threads: int, shape: Shape) -> Tensor:
    """For the workers of one shape, whatever they read."""
    return torch.empty((threads, places_of(shape).end), dtype=torch.uint8, device="cpu")


def _columns(block: Block, rows: PartRows) -> tuple[int, ...]:
    """See `tiles.READ_COLUMNS`."""
    read = block.read
    slots = read.slots.data_ptr() + block.start * read.slots.element_size()
    seen = read.seen + block.first - read.first - block.start
    part = int(rows.take(np.arange(block.first, block.stop))[0])
    return block.first, block.stop - block.first, slots, block.end - block.start, seen, part


# With fewer reads than this per thread contexts are cut in pieces, the longest ones not shorter
# than this.
_READS_PER_THREAD = 4
_LEAST_OWN_PIECE = 256

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
        pieces = max(1, min(wanted, int(length.max()) // _LEAST_OWN_PIECE))
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
