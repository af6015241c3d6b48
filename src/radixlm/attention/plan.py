"""Which stretches of the context are read once for several rows of a step. No tensors here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from radixlm.core.batch import Extent, ScheduledRow, Segment


class Sharing(NamedTuple):
    """When a stretch is worth a shared read; the backend knows what that costs.

    largest: a row with more new tokens than this gains nothing by sharing, and does not count.
    fewest, shortest, least_saved: a stretch pays when (new tokens that read it - fewest) x (its
        length - shortest) is at least `least_saved`, and both factors are above 0: `fewest` tokens
        are as fast without sharing, `shortest` is what merging a token's parts costs, and the rest
        has to pay for the extra calls. Other stretches each row reads with its own tokens.
    least_view: a run of slots this long is read in place; shorter ones are gathered together.
    """

    largest: int
    fewest: int
    shortest: int
    least_saved: int
    least_view: int


class SharedRead(NamedTuple):
    """One read for all new tokens [first, stop) of the step: they see all of it, without a mask.

    length: tokens in `extents`.
    """

    first: int
    stop: int
    length: int
    extents: tuple[Extent, ...]


class _Stretch(NamedTuple):
    """Neighbouring nodes on the way down that have the same readers, rows [first, stop).

    parent: index of the stretch above it, -1 at the top.
    """

    first: int
    stop: int
    parent: int
    segments: tuple[Segment, ...]

    @property
    def start(self) -> int:
        return self.segments[0].start

    @property
    def end(self) -> int:
        return self.segments[-1].stop


def share(
    rows: Sequence[ScheduledRow], rule: Sharing
) -> tuple[list[SharedRead], list[tuple[int, int]]]:
    """The step's shared reads, and of each row the stretch [start, stop) that they cover.

    A stretch is taken when it pays, or when it lies between two that do, so that what is left to
    a row is what comes before the first and after the last:

        rows   | a . . . . | b . . . . . . | d . . |         a: 10 tokens, not worth a read
               |           |               | e . . |         b, c: shared by 4 and 2 rows
               |           |       c       | f     |
               |           |               |-------|
               |           |---------------+ g . . . . .     row of g: reads a and g itself,
                     own   |   shared      |  own               b by the shared read

    O(segments of rows that share).
    """
    ends = list(accumulate((row.n_new for row in rows), initial=0))
    few = (row.n_new if row.n_new <= rule.largest else 0 for row in rows)
    readers = list(accumulate(few, initial=0))
    stretches = list(_stretches(rows))
    reads: list[SharedRead] = []
    skips = [(0, 0)] * len(rows)
    for stretch, taken in zip(stretches, _taken(stretches, readers, rule), strict=True):
        if taken:
            reads += _reads(stretch, ends, rule)
            for index in range(stretch.first, stretch.stop):
                start, stop = skips[index]
                skips[index] = start if stop else stretch.start, stretch.end
    return reads, skips


def _stretches(rows: Sequence[ScheduledRow]) -> Iterator[_Stretch]:
    """From the top down: a stretch comes after the one above it."""
    count = 0
    todo = [(0, len(rows), 0, -1)] if rows else []
    while todo:
        first, stop, depth, parent = todo.pop()
        for low, high in _readers(rows, first, stop, depth):
            end = depth + 1
            while list(_readers(rows, low, high, end)) == [(low, high)]:
                end += 1
            yield _Stretch(low, high, parent, rows[low].segments[depth:end])
            todo.append((low, high, end, count))
            count += 1


def _readers(
    rows: Sequence[ScheduledRow], first: int, stop: int, depth: int
) -> Iterator[tuple[int, int]]:
    """Ranges of at least two rows in [first, stop) whose segment at `depth` is the same node."""
    low = first
    for node, same in groupby(_node(row, depth) for row in rows[first:stop]):
        high = low + sum(1 for _ in same)
        if node is not None and high - low > 1:
            yield low, high
        low = high


def _node(row: ScheduledRow, depth: int) -> int | None:
    """The node there, if all of it comes before the row's new tokens."""
    if depth >= len(row.segments) or row.segments[depth].stop > row.start:
        return None
    return row.segments[depth].node_id


def _taken(stretches: Sequence[_Stretch], readers: Sequence[int], rule: Sharing) -> list[bool]:
    """readers: new tokens that count, of all rows before each row."""
    pays = [
        _pays(readers[stretch.stop] - readers[stretch.first], stretch.end - stretch.start, rule)
        for stretch in stretches
    ]
    above, below = pays[:], pays[:]
    for index, stretch in enumerate(stretches):
        above[index] |= stretch.parent >= 0 and above[stretch.parent]
    for index in reversed(range(len(stretches))):
        if stretches[index].parent >= 0:
            below[stretches[index].parent] |= below[index]
    return [up and down for up, down in zip(above, below, strict=True)]


def _pays(readers: int, length: int, rule: Sharing) -> bool:
    more, longer = readers - rule.fewest, length - rule.shortest
    return more > 0 and longer > 0 and more * longer >= rule.least_saved


def _reads(stretch: _Stretch, ends: Sequence[int], rule: Sharing) -> Iterator[SharedRead]:
    """Long runs each on its own, in place, and all that is left together: order does not matter."""
    runs = joined(chain.from_iterable(segment.extents for segment in stretch.segments))
    long = [(run,) for run in runs if run.stop - run.start >= rule.least_view]
    short = tuple(run for run in runs if run.stop - run.start < rule.least_view)
    for extents in [*long, short] if short else long:
        length = sum(run.stop - run.start for run in extents)
        yield SharedRead(ends[stretch.first], ends[stretch.stop], length, extents)


def joined(extents: Iterator[Extent]) -> list[Extent]:
    """The same slots in as few runs as possible."""
    runs: list[Extent] = []
    for extent in extents:
        if runs and runs[-1].stop == extent.start:
            runs[-1] = Extent(runs[-1].start, extent.stop)
        else:
            runs.append(extent)
    return runs


class RowSpan(NamedTuple):
    """One row's part of the step: its new tokens, and the context that it reads by itself.

        tokens of the row   |  head  | read with others |   ...   | n_new |
                                          `gap` tokens

    token: index of its first new token among all tokens of the step.
    context: tokens to read, the new ones included; they are the last n_new of it.
    table_row: where the request table lists the slots of the row.
    head, gap: after `head` tokens, `gap` are left out, for the shared reads cover them.
    segments: of the whole row.
    """

    token: int
    n_new: int
    context: int
    table_row: int
    head: int
    gap: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """What a step reads.

    shared: stretches of context that several rows read together, at any depth of the tree.
    rows: what each reads by itself, causal among its new tokens, in the batch's order.
    kv_tokens_of_rows: tokens of context of all rows together: what they would read one by one.
    """

    shared: tuple[SharedRead, ...]
    rows: tuple[RowSpan, ...]
    kv_tokens_of_rows: int

    @property
    def kv_tokens_read(self) -> int:
        """Tokens whose keys and values the step reads, in each layer; padding is not counted."""
        return sum(span.context for span in self.rows) + sum(read.length for read in self.shared)


def make_plan(rows: Sequence[ScheduledRow], sharing: Sharing | None = None) -> AttentionPlan:
    """Plan one step.

    sharing: when to read a node once for all its rows; None: never.
    Raises ValueError when a row's segments do not cover exactly its tokens. O(segments of rows).
    """
    shared, skips = share(rows, sharing) if sharing else ([], [(0, 0)] * len(rows))
    spans: list[RowSpan] = []
    token = 0
    for row, (head, end) in zip(rows, skips, strict=True):
        covered = sum(segment.stop - segment.start for segment in row.segments)
        if covered != row.stop:
            name = row.request.request_id
            raise ValueError(f"segments of request {name} cover {covered} of {row.stop} tokens")
        own, gap = row.stop - (end - head), end - head
        spans.append(RowSpan(token, row.n_new, own, row.row, head, gap, row.segments))
        token += row.n_new
    return AttentionPlan(tuple(shared), tuple(spans), sum(row.stop for row in rows))
