"""Who reads what in one step: made once from the batch, used by every layer. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from radixlm.attention.sharing import SharedRead, Sharing, Skip, share
from radixlm.core.batch import Extent, ScheduledRow, Segment

# Rows are padded to the longest of their group: a row joins while it fills 3/4 of it, or misses
# so few tokens that a call of its own would cost more.
_LEAST_FILL = 0.75
_FREE_PADDING = 64


class RowSpan(NamedTuple):
    """One row's part of the step: its new tokens, and the context that it reads by itself.

        tokens of the row   |  head  | read with others |   ...   | n_new |
                                          `gap` tokens

    token: index of its first new token among all tokens of the step.
    context: tokens to read, the new ones included; they are the last n_new of it.
    table_row: where the request table lists the slots of the row.
    head, gap: after `head` tokens, `gap` are left out, for the shared reads cover them.
    view: the run of slots that is the whole context, when it is just one.
    """

    token: int
    n_new: int
    context: int
    table_row: int
    head: int
    gap: int
    view: Extent | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The step's rows, by the way in which they are computed.

        tokens of the step   | c c c c | d | d | c c c | d |
                               chunk 0   |   |   chunk 1  |
                                         +---+---- ... ---+  groups of similar context

    shared: stretches of context that several rows read together, at any depth of the tree.
    chunks: rows with several new tokens, each on its own, causal among its new tokens.
    groups: rows with one new token, those with similar contexts together as one padded batch.
    kv_tokens_of_rows: tokens of context of all rows together: what they would read one by one.
    """

    shared: tuple[SharedRead, ...]
    chunks: tuple[RowSpan, ...]
    groups: tuple[tuple[RowSpan, ...], ...]
    kv_tokens_of_rows: int

    @property
    def kv_tokens_read(self) -> int:
        """Tokens whose keys and values the step reads, in each layer; padding is not counted."""
        own = sum(span.context for group in (self.chunks, *self.groups) for span in group)
        return own + sum(read.length for read in self.shared)


def make_plan(
    rows: Sequence[ScheduledRow], group_tokens: int, sharing: Sharing | None = None
) -> AttentionPlan:
    """Plan one step. A group reads at most `group_tokens` padded tokens, unless it is one row.

    sharing: when to read a node once for all its rows; None: never.
    Raises ValueError when a row's segments do not cover exactly its tokens.
    O(segments + rows log rows).
    """
    shared, skips = share(rows, sharing) if sharing else ([], [None] * len(rows))
    chunks: list[RowSpan] = []
    singles: list[RowSpan] = []
    token = 0
    for row, skip in zip(rows, skips, strict=True):
        span = _span(row, token, skip or Skip(0, 0))
        (singles if span.n_new == 1 else chunks).append(span)
        token += span.n_new
    groups = tuple(_grouped(singles, group_tokens))
    return AttentionPlan(tuple(shared), tuple(chunks), groups, sum(row.stop for row in rows))


def _span(row: ScheduledRow, token: int, skip: Skip) -> RowSpan:
    covered = sum(segment.stop - segment.start for segment in row.segments)
    if covered != row.stop:
        raise ValueError(
            f"segments of request {row.request.request_id} cover {covered} of {row.stop} tokens"
        )
    own = [s for s in row.segments if s.stop <= skip.start or s.start >= skip.stop]
    gap = skip.stop - skip.start
    return RowSpan(token, row.n_new, row.stop - gap, row.row, skip.start, gap, _view(own))


def _view(segments: Sequence[Segment]) -> Extent | None:
    """The one run that all segments form, if they do. A segment's extents never touch, so one
    that has several of them (a long answer can have thousands) settles it.
    """
    start = stop = segments[0].extents[0].start
    for segment in segments:
        if len(segment.extents) > 1 or segment.extents[0].start != stop:
            return None
        stop = segment.extents[0].stop
    return Extent(start, stop)


def _grouped(spans: Sequence[RowSpan], group_tokens: int) -> list[tuple[RowSpan, ...]]:
    """Longest first, so that a group's first row gives its width and waste is easy to bound."""
    groups: list[list[RowSpan]] = []
    for span in sorted(spans, key=lambda span: -span.context):
        if groups and _fits(groups[-1], span.context, group_tokens):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [tuple(group) for group in groups]


def _fits(group: list[RowSpan], context: int, group_tokens: int) -> bool:
    width = group[0].context
    if (len(group) + 1) * width > group_tokens:
        return False
    return context >= _LEAST_FILL * width or width - context <= _FREE_PADDING
