"""The reads of each of a step's tokens, cut into work for the compiled kernels."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from radixlm.attention.merge import ANSWER
from radixlm.attention.plan import AttentionPlan

MORE_SLOTS = 15

Numbers = npt.NDArray[np.int64]


class ContextRead(NamedTuple):
    """A few neighbouring tokens of the step, and what they read together: a row that kernels take.

    token, tokens: the first one, and how many; of a reversed read minus the first one, which is the
    last of the step's. slots, length: where the step's list names the first
    slot that they read, and how many.
    seen: how many of the slots the first token sees; the next one sees one more, until all.
    start: tokens of the context before it.
    part: the first token's row of parts for the result, or `ANSWER`; the next token's follows.
    """

    token: int
    tokens: int
    slots: int
    length: int
    seen: int
    start: int
    part: int = ANSWER

    def after(self, hidden: int) -> ContextRead:
        """The same without the first slots, which none of the tokens sees."""
        return self._replace(
            slots=self.slots + hidden,
            length=self.length - hidden,
            seen=self.seen - hidden,
            start=self.start + hidden,
        )


_TOKEN, TOKENS, _SLOTS, LENGTH, _SEEN, _START, _PART = range(7)
READ_BYTES = 8 * len(ContextRead._fields)
# Of both kernels that compute reads.
ReadArguments = namedtuple(
    "ReadArguments",
    "counters items key_heads q q_stride keys values scales slots reads answers parts states "
    "scratch sinks",
)


def reads_of(
    plan: AttentionPlan, table: Tensor
) -> tuple[list[ContextRead], list[ContextRead], npt.NDArray[np.int32]]:
    """The reads of each row by itself, those of rows together, and the list of all their slots.

    table: (rows, context) int32, with this step applied. A row's slots are followed by its last one
    again, `MORE_SLOTS` times: kernels read whole vectors of them.
    """
    rows = table.numpy()
    own, shared, at = [], [], 0
    slots: list[npt.NDArray[np.int32]] = []
    for span in plan.rows:
        row, end = rows[span.table_row], span.start + span.context
        slots += row[span.start : end], row[end - 1 : end].repeat(MORE_SLOTS)
        seen = span.context - span.n_new + 1
        own.append(ContextRead(span.token, span.n_new, at, span.context, seen, span.start))
        at += span.context + MORE_SLOTS
    for read in plan.shared:
        slots += [np.arange(*run, dtype=np.int32) for run in read.extents]
        count, length = read.stop - read.first, read.length
        shared.append(ContextRead(read.first, count, at, length, length, read.start))
        at += read.length
    return own, shared, np.concatenate(slots)


def by_token(reads: Sequence[ContextRead]) -> Numbers:
    """Rows of reads of one token each."""
    made = rows_of(reads)
    counts = made[:, TOKENS]
    if len(made) < (total := int(counts.sum())):
        made = made.repeat(counts, axis=0)
        place = np.arange(total) - (counts.cumsum() - counts).repeat(counts)
        made[:, _TOKEN] += place
        made[:, _SEEN] += place
        made[:, TOKENS] = 1
    made[:, LENGTH] = made[:, _SEEN]
    return made


def newest(reads: Numbers, window: int) -> None:
    """Leave out what comes before the `window` of each read's first token."""
    older = np.maximum(reads[:, _SEEN] - window, 0)
    reads[:, (_SLOTS, _START)] += older[:, None]
    reads[:, (LENGTH, _SEEN)] -= older[:, None]


def in_windows(
    blocks: Numbers, window: int, slots: npt.NDArray[np.int32]
) -> tuple[Numbers, Numbers, npt.NDArray[np.int32]]:
    """Reads of blocks of at most `window` tokens, of which each sees the last `window` slots.

        slots of a block    0 1 2 | 3 4 5 6 7 8 9       window 6, 4 tokens: the first one sees
        first token         x x x | x x x               0 to 5, the next one 1 to 6, ..
                              x x | x x x x
                                x | x x x x x           what is left of the line is read in reverse,
        last token                | x x x x x x         of tokens and of slots: 2, then 2 1, then ..

    Returns reads of what the last token sees; the reversed ones; and `slots` with what they name.
    """
    newer, older, more, at = [], [], [slots], len(slots)
    for numbers in blocks:
        read = ContextRead(*numbers.tolist())
        line, first = read.seen + read.tokens - 1 - window, max(read.seen - window, 0)
        if line > first:
            token = read.token + read.tokens - 2
            older.append(
                ContextRead(-token, read.tokens - 1, at, line - first, 1, read.start + first)
            )
            more.append(slots[read.slots + first : read.slots + line][::-1])
            at += line - first
        hidden = max(line, 0)
        newer.append(read.after(hidden))
    return rows_of(newer), rows_of(older), np.concatenate(more)


def in_blocks(reads: Sequence[ContextRead], block_tokens: int) -> Numbers:
    """Rows of reads of up to `block_tokens`."""
    blocks = []
    for read in reads:
        for first in range(0, read.tokens, block_tokens):
            tokens, seen = min(block_tokens, read.tokens - first), read.seen + first
            length = min(read.length, seen + tokens - 1)
            blocks.append(
                ContextRead(read.token + first, tokens, read.slots, length, seen, read.start)
            )
    return rows_of(blocks)


def rows_of(reads: Sequence[ContextRead]) -> Numbers:
    """The same as one array."""
    return np.array(reads, dtype=np.int64).reshape(-1, len(ContextRead._fields))


def cut(reads: Numbers, tile: int, wanted: int, most_parts: int, *, ordered: bool) -> Numbers:
    """Contexts in pieces of whole tiles where there are fewer reads than `wanted`; the largest
    first: the last ones taken are to be small. most_parts: rows of them that few reads may become.

    ordered: what a token has of its context is to be tile after tile taken into what comes before,
    so that its bits are the same however it is cut:

        context   | tile | tile | tile | tile |
        a read    |                           |     from the first tile on it may be long,
        cut       |      |      |      |      |     all others are of one, for `merge` to take in
    """
    few = len(reads) < wanted
    if len(reads) and (few or (ordered and reads[:, _START].any())):
        tiles = -(-reads[:, LENGTH] // tile)
        if ordered:
            few = few and int((tiles * reads[:, TOKENS]).sum()) <= most_parts
        most = max(int(tiles.sum()) // wanted, 1) if few and not ordered else 1
        alone = few | (ordered & (reads[:, _START] > 0))
        reads = _pieces(reads, tile, tiles, np.where(alone, most, tiles))
    return reads[np.argsort(-reads[:, TOKENS] * reads[:, LENGTH], kind="stable")]


def cut_evenly(reads: Numbers, tile: int, least: int, wanted: int) -> Numbers:
    """Contexts in pieces of whole tiles, near to what each of `wanted` has to take, or `least` of
    them; the longest first.
    """
    if not len(reads):
        return reads
    tiles = -(-reads[:, LENGTH] // tile)
    each = max(-(-int(tiles.sum()) // wanted), least)
    counts = np.maximum((tiles + each // 2) // each, 1)
    reads = _pieces(reads, tile, tiles, -(-tiles // counts))
    return reads[np.argsort(-reads[:, LENGTH], kind="stable")]


def _pieces(reads: Numbers, tile: int, tiles: Numbers, each: Numbers) -> Numbers:
    """tiles: of each read; each: of its pieces."""
    counts = -(-tiles // np.maximum(each, 1))
    made, steps = reads.repeat(counts, axis=0), (each * tile).repeat(counts)
    begin = (np.arange(len(made)) - (counts.cumsum() - counts).repeat(counts)) * steps
    made[:, (_SLOTS, _START)] += begin[:, None]
    made[:, _SEEN] -= begin
    made[:, LENGTH] = np.minimum(made[:, LENGTH] - begin, steps)
    return made


def number_parts(reads: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Give each token of several reads, and others of these, a row of parts in each of its own.

    Returns the tokens that have parts; where each one's rows begin (and the last one's end) in the
    third list, of rows: in the order of the context.
    """
    tokens = reads[:, TOKENS]
    first = tokens.cumsum() - tokens
    token = abs((reads[:, _TOKEN] - first).repeat(tokens) + np.arange(tokens.sum()))
    several = np.logical_or.reduceat(np.bincount(token)[token] > 1, first).repeat(tokens)
    reads[:, _PART] = np.where(several, several.cumsum() - 1, ANSWER)[first]
    token, start = token[several], reads[:, _START].repeat(tokens)[several]
    rows = np.lexsort((start, token))
    having, begin = np.unique(token[rows], return_index=True)
    return having, np.append(begin, len(rows)), rows
