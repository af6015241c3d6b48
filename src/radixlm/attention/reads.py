"""What each of a step's tokens reads, cut into work for the compiled kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from radixlm.attention.merge import ANSWER
from radixlm.attention.plan import AttentionPlan

# Contexts are cut until each thread has this many units of work, but not into shorter pieces.
_UNITS_PER_THREAD = 8
_LEAST_PIECE = 512
# With fewer reads of single tokens than this per thread contexts are cut in pieces, the longest
# ones not shorter than this.
_READS_PER_THREAD = 4
_LEAST_OWN_PIECE = 256

Numbers = npt.NDArray[np.int64]


class Read(NamedTuple):
    """A few neighbouring tokens of the step, and what they read together: a row that kernels take.

    token, tokens: the first one, and how many. slots, length: where the step's list names the first
    slot that they read, and how many.
    seen: how many of the slots the first token sees; the next one sees one more, until all.
    part: the first token's row of parts for the result, or `ANSWER`; the next token's follows.
    """

    token: int
    tokens: int
    slots: int
    length: int
    seen: int
    part: int = ANSWER


_TOKEN, TOKENS, _SLOTS, LENGTH, _SEEN, _PART = range(6)


def reads_of(
    plan: AttentionPlan, table: Tensor
) -> tuple[list[Read], list[Read], npt.NDArray[np.int32]]:
    """What each row reads by itself, what rows read together, and the list of all their slots.

    table: (rows, context) int32, with this step applied. A row's slots are followed by its last one
    again: kernels that multiply pairs read one more.
    """
    rows = table.numpy()
    own, shared, at = [], [], 0
    slots: list[npt.NDArray[np.int32]] = []
    for span in plan.rows:
        row, end = rows[span.table_row], span.context + span.gap
        slots += row[: span.head], row[span.head + span.gap : end], row[end - 1 : end]
        seen = span.context - span.n_new + 1
        own.append(Read(span.token, span.n_new, at, span.context, seen))
        at += span.context + 1
    for read in plan.shared:
        slots += [np.arange(*run, dtype=np.int32) for run in read.extents]
        shared.append(Read(read.first, read.stop - read.first, at, read.length, read.length))
        at += read.length
    return own, shared, np.concatenate(slots)


def by_token(reads: Sequence[Read], threads: int) -> Numbers:
    """Rows of reads of one token each, cut in pieces where a thread would have too few; the longest
    first: the last ones taken are to be short.
    """
    made = np.array(reads, dtype=np.int64).reshape(-1, len(Read._fields))
    counts = made[:, TOKENS]
    if len(made) < (total := int(counts.sum())):
        made = made.repeat(counts, axis=0)
        place = np.arange(total) - (counts.cumsum() - counts).repeat(counts)
        made[:, _TOKEN] += place
        made[:, _SEEN] += place
        made[:, TOKENS] = 1
    made[:, LENGTH] = made[:, _SEEN]
    made = made[np.argsort(-made[:, LENGTH], kind="stable")]
    longest = int(made[0, LENGTH]) if len(made) else 0
    wanted = -(-_READS_PER_THREAD * threads // max(len(made), 1))
    pieces = min(wanted, longest // _LEAST_OWN_PIECE)
    if pieces < 2:
        return made
    ends = np.outer(np.arange(pieces + 1), made[:, LENGTH]) // pieces
    made = np.tile(made, (pieces, 1))
    made[:, _SLOTS] += ends[:-1].ravel()
    made[:, LENGTH] = np.diff(ends, axis=0).ravel()
    return made[made[:, LENGTH] > 0]


def in_blocks(reads: Sequence[Read], heads: int, threads: int, block_tokens: int) -> Numbers:
    """Rows of reads of up to `block_tokens`, their contexts in pieces where a thread would have too
    few of them; the largest first: the last ones taken are to be small.

    heads: of keys; each one of a block is a unit of work.
    """
    blocks = []
    for read in reads:
        for first in range(0, read.tokens, block_tokens):
            tokens, seen = min(block_tokens, read.tokens - first), read.seen + first
            length = min(read.length, seen + tokens - 1)
            blocks.append(Read(read.token + first, tokens, read.slots, length, seen))
    if threads > 1:
        total = sum(block.tokens * block.length for block in blocks)
        most = max(total * heads // (_UNITS_PER_THREAD * threads), 1)
        blocks = [piece for block in blocks for piece in _pieces(block, most)]
    blocks.sort(key=lambda block: -block.tokens * block.length)
    return np.array(blocks, dtype=np.int64).reshape(-1, len(Read._fields))


def _pieces(block: Read, most: int) -> list[Read]:
    """None much larger than `most`, in tokens x tokens."""
    count = min(-(-block.tokens * block.length // most), block.length // _LEAST_PIECE)
    if count < 2:
        return [block]
    ends = [block.length * piece // count for piece in range(count + 1)]
    return [
        block._replace(slots=block.slots + start, length=end - start, seen=block.seen - start)
        for start, end in itertools.pairwise(ends)
    ]


def number_parts(reads: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Give each token of several reads a row of parts in each of them.

    Returns the tokens that have parts; where each one's rows begin (and the last one's end) in the
    third list, of rows.
    """
    tokens = reads[:, TOKENS]
    first = tokens.cumsum() - tokens
    token = (reads[:, _TOKEN] - first).repeat(tokens) + np.arange(tokens.sum())
    several = np.bincount(token)[token] > 1
    reads[:, _PART] = np.where(several, several.cumsum() - 1, ANSWER)[first]
    token = token[several]
    rows = np.argsort(token, kind="stable")
    having, begin = np.unique(token[rows], return_index=True)
    return having, np.append(begin, len(rows)), rows
