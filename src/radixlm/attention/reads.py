"""What each of a step's tokens reads, cut into work for the compiled kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.direct import scratch_numbers
from radixlm.attention.merge import Merge, PartRows
from radixlm.attention.plan import RowSpan
from radixlm.kernels.jit import Kernel
from radixlm.kernels.openmp import Worker, team
from radixlm.kernels.vectors import MOST_LANES
from radixlm.memory.pools import KVPool

# Contexts are cut until each thread has this many units of work, but not into shorter pieces.
_UNITS_PER_THREAD = 8
_LEAST_PIECE = 512
# With fewer reads than this per thread contexts are cut in pieces, the longest ones not shorter
# than this.
_READS_PER_THREAD = 4
_LEAST_OWN_PIECE = 256


class Reads:
    """One step's reads by one kernel.

    kernel: `make_direct_kernel`'s or `make_tile_kernel`'s for the pool; see there for `reads`.
    scratch: of `threads` threads. keep: memory that lives as long as this. arguments: the kernel's
    further ones.
    """

    def __init__(
        self,
        kernel: Kernel,
        pool: KVPool,
        threads: int,
        reads: npt.NDArray[np.int64],
        scratch: Tensor,
        keep: object,
        **arguments: int,
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._memory = reads, scratch, keep
        self._worker = Worker(
            kernel,
            items=len(reads),
            key_heads=pool.n_kv_heads,
            reads=reads.ctypes.data,
            scratch=scratch.data_ptr(),
            **arguments,
        )

    def attend(self, layer: int, q: Tensor, answers: Tensor, merge: Merge | None) -> None:
        """Write the answers and parts of the tokens that read.

        q, answers: (tokens, n_heads, head_dim), q strided over tokens, answers contiguous.
        """
        arguments = self._worker.arguments
        arguments.q = q.data_ptr()
        arguments.q_stride = q.stride(0) * q.element_size()
        arguments.keys = self._pool.keys[layer].data_ptr()
        arguments.values = self._pool.values[layer].data_ptr()
        arguments.answers = answers.data_ptr()
        if merge is not None:
            arguments.parts, arguments.lse = merge.parts, merge.lse
        self._worker(self._threads)


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

    heads: of keys; each one of a block is a unit of work.
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


def tile_reads(
    kernel: Kernel, pool: KVPool, scratch: Tensor, blocks: Sequence[Block], rows: PartRows
) -> Reads:
    """Many queries at a time. scratch: (threads, bytes), for one call at a time."""
    columns = np.array([_columns(block, rows) for block in blocks], dtype=np.int64)
    slots = [block.read.slots for block in blocks]
    return Reads(kernel, pool, scratch.shape[0], columns, scratch, slots)


def _columns(block: Block, rows: PartRows) -> tuple[int, ...]:
    """See `make_tile_kernel`."""
    read = block.read
    slots = read.slots.data_ptr() + block.start * read.slots.element_size()
    seen = read.seen + block.first - read.first - block.start
    part = int(rows.take(np.arange(block.first, block.stop))[0])
    return block.first, block.stop - block.first, slots, block.end - block.start, seen, part


_Column = npt.NDArray[np.int64]


def direct_reads(
    kernel: Kernel,
    pool: KVPool,
    n_heads: int,
    table: Tensor,
    spans: Sequence[RowSpan],
    rows: PartRows,
) -> Reads:
    """Each new token of `spans` by itself, over the part of its row that it sees.

    table: (rows, context) int32, with this step applied. rows: where a token's reads are merged.
    """
    threads = team().size
    token, length, columns = _tokens(spans)
    wanted = -(-_READS_PER_THREAD * threads // len(token))
    pieces = max(1, min(wanted, int(length.max()) // _LEAST_OWN_PIECE))
    if pieces > 1:
        rows.several[token] = True
    reads = [_piece(token, length, columns, rows, piece, pieces) for piece in range(pieces)]
    longest = -(-int(length.max()) // pieces)
    longest = -(-longest // MOST_LANES) * MOST_LANES
    numbers = scratch_numbers(n_heads, pool.head_dim, longest)
    scratch = torch.empty(threads * numbers, dtype=torch.float32, device="cpu")
    return Reads(
        kernel,
        pool,
        threads,
        np.concatenate(reads),
        scratch,
        table,
        table=table.data_ptr(),
        table_stride=table.stride(0) * table.element_size(),
        longest=longest,
        per_thread=numbers * scratch.element_size(),
    )


def _tokens(spans: Sequence[RowSpan]) -> tuple[_Column, _Column, _Column]:
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
    token: _Column, length: _Column, columns: _Column, rows: PartRows, piece: int, pieces: int
) -> _Column:
    """The reads of one of `pieces` pieces of each context; see `make_direct_kernel`.

    row    |  head  |  gap: read with others  |      |     own tokens are numbered
              0 ..h                             h ..       without the gap
    """
    row, head, gap = columns.T
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
