"""The stretches of a context that are read once for several rows of a step. No tensors here."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import NamedTuple

from radixlm.core.batch import Extent, ScheduledRow, Segment


class Sharing(NamedTuple):
    """The sizes from which a stretch is worth a shared read; the backend knows what that costs.

    largest: a row with more new tokens than this gains nothing by sharing, and reads by itself.
    fewest, shortest, least_saved: a stretch pays when (new tokens that read it - fewest) x (its
        length - shortest) is at least `least_saved`, and both factors are above 0: `fewest` tokens
        are as fast without sharing, `shortest` is what merging a token's parts costs, and the rest
        has to pay for the extra calls. Other stretches each row reads with its own tokens.
    least_view: a run of slots this long is read in place; shorter ones are gathered together.
    align: shared reads begin and end at multiples of this many tokens, and what comes after them is
        read in pieces of as many. most_parts: results of stretches of context, to be merged, of all
        tokens together; where they would be more and reads are aligned, contexts are neither shared
        nor cut.
    """

    largest: int
    fewest: int
    shortest: int
    least_saved: int
    least_view: int
    align: int = 1
    most_parts: int = sys.maxsize


class SharedRead(NamedTuple):
    """One read for all new tokens [first, stop) of the step: they see all of it, without a mask.

    start: of the context, where it begins. length: tokens in `extents`.
    """

    first: int
    stop: int
    start: int
    length: int
    extents: tuple[Extent, ...]


class _Stretch(NamedTuple):
    """Neighbouring nodes on the way down that have the same readers, rows [first, stop).

    parent: index of the stretch above it, -1 at the top. depth: segments down to its end, which
    comes after `end` tokens.
    """

    first: int
    stop: int
    parent: int
    depth: int
    end: int


def share(rows: Sequence[ScheduledRow], rule: Sharing) -> tuple[list[SharedRead], list[int]]:
    """The step's shared reads, and how many tokens of each row they cover, from its first one on.

    A stretch that pays is read with all that lies above it, down from the last one that did: its
    readers share that, too.

        rows   | a . . . . | b . . . . . . | d . . |         a: 10 tokens, not worth a read
               |           |               | e . . |         b, c: shared by 4 and 2 rows
               |           |       c       | f     |
               |           |               |-------|         a shared read of a and b, one of c:
               |           |---------------+ g . . . . .     row of g reads g by itself, that of
                     shared                    own           f f

    O(segments of rows that share).
    """
    ends = list(accumulate((row.n_new for row in rows), initial=0))
    reads: list[SharedRead] = []
    skips = [0] * len(rows)
    covered: list[int] = []
    for stretch in _stretches(rows, rule.largest):
        first, stop = ends[stretch.first], ends[stretch.stop]
        start = covered[stretch.parent] if stretch.parent >= 0 else 0
        end = stretch.end // rule.align * rule.align
        pays = _pays(stop - first, end - start, rule)
        covered.append(end if pays else start)
        if pays:
            path = rows[stretch.first].segments[: stretch.depth]
            reads += _reads(path, start, end, first, stop, rule.least_view)
            skips[stretch.first : stretch.stop] = [end] * (stretch.stop - stretch.first)
    if rule.align > 1 and _parts(rows, reads, skips, rule.align) > rule.most_parts:
        return [], [0] * len(rows)
    return reads, skips


def _parts(
    rows: Sequence[ScheduledRow], reads: Sequence[SharedRead], skips: Sequence[int], size: int
) -> int:
    """The parts of new tokens, and of what they read after the first reads."""
    both = zip(rows, skips, strict=True)
    own = (row.n_new * -(-(row.stop - skip) // size) for row, skip in both if skip)
    shared = ((read.stop - read.first) * -(-read.length // size) for read in reads if read.start)
    return sum(own) + sum(shared)


def _stretches(rows: Sequence[ScheduledRow], largest: int) -> Iterator[_Stretch]:
    """The shared stretches from the top down: one comes after the one above it."""
    count = 0
    todo = [(0, len(rows), 0, -1)] if rows else []
    while todo:
        first, stop, depth, parent = todo.pop()
        for low, high in _readers(rows, first, stop, depth, largest):
            end = depth + 1
            while list(_readers(rows, low, high, end, largest)) == [(low, high)]:
                end += 1
            yield _Stretch(low, high, parent, end, rows[low].segments[end - 1].stop)
            todo.append((low, high, end, count))
            count += 1


def _readers(
    rows: Sequence[ScheduledRow], first: int, stop: int, depth: int, largest: int
) -> Iterator[tuple[int, int]]:
    """Ranges of at least two rows in [first, stop) whose segment at `depth` is the same node."""
    low = first
    for node, same in groupby(_node(row, depth, largest) for row in rows[first:stop]):
        high = low + sum(1 for _ in same)
        if node is not None and high - low > 1:
            yield low, high
        low = high


def _node(row: ScheduledRow, depth: int, largest: int) -> int | None:
    """The node there, if all of it comes before the row's new tokens, and these are few; a row that
    has a sibling shares with it, however many they are.
    """
    if row.n_new > largest and row.sibling is None and row.beside is None:
        return None
    if depth >= len(row.segments) or row.segments[depth].stop > row.start:
        return None
    return row.segments[depth].node_id


def _pays(readers: int, length: int, rule: Sharing) -> bool:
    more, longer = readers - rule.fewest, length - rule.shortest
    return more > 0 and longer > 0 and more * longer >= rule.least_saved


def _reads(
    path: Sequence[Segment], start: int, end: int, first: int, stop: int, least_view: int
) -> Iterator[SharedRead]:
    """Tokens [start, end) of a path, for new tokens [first, stop): long runs each on its own, in
    place, and all that is left together.
    """
    runs = list(_runs(path, start, end))
    long = [[run] for run in runs if _length(run[1]) >= least_view]
    short = [run for run in runs if _length(run[1]) < least_view]
    for group in [*long, short] if short else long:
        extents = tuple(extent for _, extent in group)
        yield SharedRead(first, stop, group[0][0], sum(map(_length, extents)), extents)


def _runs(path: Sequence[Segment], start: int, end: int) -> Iterator[tuple[int, Extent]]:
    """Tokens [start, end) in as few runs of slots as possible, each with where it begins."""
    depth = len(path)
    while depth and path[depth - 1].stop > start:
        depth -= 1
    token = path[depth].start if depth < len(path) else end
    for extent in joined(chain.from_iterable(segment.extents for segment in path[depth:])):
        low, high = max(start - token, 0), min(end - token, _length(extent))
        if low < high:
            yield token + low, Extent(extent.start + low, extent.start + high)
        token += _length(extent)


def _length(extent: Extent) -> int:
    return extent.stop - extent.start


def joined(extents: Iterator[Extent]) -> list[Extent]:
    """The same slots in as few runs as possible."""
    runs: list[Extent] = []
    for extent in extents:
        if runs and runs[-1].stop == extent.start:
            runs[-1] = Extent(runs[-1].start, extent.stop)
        else:
            runs.append(extent)
    return runs


class ChunkSize(int):
    """A window whose begin is a multiple of its size: a token sees those of its own chunk of the
    context up to itself (Llama 4).
    """


class RowSpan(NamedTuple):
    """One row's part of the step: its new tokens, and the context that it reads by itself.

        tokens of the row   | `start`, read with others |   ...   | n_new |

    token: index of its first new token among all tokens of the step.
    context: tokens to read, the new ones included; they are the last n_new of it.
    table_row: where the request table lists the slots of the row.
    segments: of the whole row; none: its slots may lie anywhere.
    """

    token: int
    n_new: int
    start: int
    context: int
    table_row: int
    segments: tuple[Segment, ...]

    @property
    def end(self) -> int:
        """Tokens of the row."""
        return self.start + self.context

    def after(self, start: int) -> RowSpan:
        """The same row, which reads by itself all that comes after `start` tokens."""
        start = max(start, 0)
        return self._replace(start=start, context=self.end - start)

    def by_chunk(self, size: int) -> Iterator[RowSpan]:
        """List its new tokens by the chunk of `size` tokens that they are in, of which they read
        what comes before them:

            tokens of the row   | chunk 0   | chunk 1   | ch ..      ., n: a token, a new one
                                | . . . n n | n n n n n | n
            spans               | - - - n n |                        neither reads the other's,
                                            | n n n n n | n          so each is causal
        """
        first, end = self.end - self.n_new, self.end
        for begin in range(first // size * size, end, size):
            low, high = max(first, begin), min(end, begin + size)
            token = self.token + low - first
            yield self._replace(token=token, n_new=high - low, start=begin, context=high - begin)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The reads of a step.

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

    def alone(self) -> AttentionPlan:
        """The same step, in which each row reads by itself."""
        rows = tuple(span.after(0) for span in self.rows)
        return AttentionPlan((), rows, self.kv_tokens_of_rows)

    def within(self, window: int | None) -> AttentionPlan:
        """The same step for a layer in which a token sees the last `window` tokens, itself
        included, or those of its chunk: each row reads by itself, from the first token on that a
        new one sees, and has a span for each chunk. It is this plan where no context is longer.
        O(rows and chunks of their new tokens).
        """
        if window is None or all(span.end <= window for span in self.rows):
            return self
        if isinstance(window, ChunkSize):
            rows = tuple(part for span in self.rows for part in span.by_chunk(window))
        else:
            rows = tuple(span.after(span.end - span.n_new + 1 - window) for span in self.rows)
        return AttentionPlan((), rows, sum(span.context for span in rows))


def make_plan(rows: Sequence[ScheduledRow], sharing: Sharing | None = None) -> AttentionPlan:
    """Plan one step.

    sharing: when to read a node once for all its rows; None: never.
    Raises ValueError when a row's segments do not cover exactly its tokens. O(segments of rows).
    """
    shared, skips = share(rows, sharing) if sharing else ([], [0] * len(rows))
    spans: list[RowSpan] = []
    token = 0
    for row, start in zip(rows, skips, strict=True):
        covered = sum(segment.stop - segment.start for segment in row.segments)
        if covered != row.stop:
            name = row.request.request_id
            raise ValueError(f"segments of request {name} cover {covered} of {row.stop} tokens")
        spans.append(RowSpan(token, row.n_new, start, row.stop - start, row.row, row.segments))
        token += row.n_new
    return AttentionPlan(tuple(shared), tuple(spans), sum(row.stop for row in rows))
