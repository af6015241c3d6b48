"""Blocks of tokens that are there, or no more, made of the tree's changes.

A block is `block_size` tokens of a prompt, from a multiple of it on. It is there while all of its
tokens are resident; it belongs to the node that its last token lies in. So the blocks that are
there follow from the tree, however it is cut into nodes:

    tokens   0           16          32          48
    nodes    [ one            ][ below it       ]
    blocks   [ of one   ][ of below ]               (the last tokens fill none)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

from radixlm.core.reports import NodeView
from radixlm.core.request import Namespace

_TOKEN_BYTES = 4
_HASH_BYTES = 8


class Stored(NamedTuple):
    """Blocks in a row. first: how many are before them. parent: the hash before, None at first."""

    hashes: Sequence[int]
    parent: int | None
    tokens: bytes
    first: int
    namespace: Namespace


class Removed(NamedTuple):
    """Blocks that are there no more. cleared: no others are left."""

    hashes: Sequence[int]
    cleared: bool


@dataclass(frozen=True, slots=True)
class _PublishedNode:
    """A node as it was published. head: the bytes of the tokens above it that its first block
    begins with. first: how many blocks end above it. before: the hash of the last of these, or what
    the namespace's first block follows. hashes: of its own blocks.
    """

    parent_id: int | None
    namespace: Namespace
    start: int
    resident: int
    edge: bytes
    head: bytes
    first: int
    before: int
    hashes: list[int]

    def is_still(self, view: NodeView) -> bool:
        """Whether nothing that matters here has changed. (Below the same parent it begins where it
        did: what has children does not grow.)
        """
        return (
            self.resident == view.resident
            and self.parent_id == view.parent_id
            and self.edge == view.edge
        )

    def hash_before(self, block: int) -> int:
        """The hash that `block`, one of its own or the next, follows."""
        return self.hashes[block - self.first - 1] if block > self.first else self.before

    @property
    def end(self) -> int:
        """How many blocks end in it or above."""
        return self.first + len(self.hashes)

    @property
    def text(self) -> bytes:
        """The tokens, from the beginning of its first block on."""
        return self.head + self.edge

    def rest(self, n_bytes: int) -> bytes:
        """The last bytes of all tokens up to its end; not more than a block."""
        text = self.edge if len(self.edge) >= n_bytes else self.text
        return text[len(text) - n_bytes :]


class BlockLedger:
    """A ledger of the blocks that are there, and of what a change adds and removes.

    Hashes are of all tokens up to the block's end and of their namespace; they are the same in
    every process. They have 63 bits, which fit any integer that readers keep them in.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._width = block_size * _TOKEN_BYTES
        self._held: dict[int, _PublishedNode] = {}
        self._blocks = 0

    def replace(self, nodes: Sequence[NodeView]) -> list[Stored | Removed]:
        """The events to publish when these are all nodes there are, parents first."""
        return self.update(self._held.keys() - {view.id for view in nodes}, nodes)

    def update(self, removed: Iterable[int], nodes: Sequence[NodeView]) -> list[Stored | Removed]:
        """The events to publish of a change. Blocks are removed after those that follow them, and
        stored after those that they follow.
        """
        changed = [view for view in nodes if not self._is_known(view)]
        heirs = self._heirs(changed)
        fresh: dict[int, _PublishedNode] = {}
        for view in changed:
            if view.resident or view.parent_id is None:
                fresh[view.id] = self._hold(view, fresh, heirs.get(view.id))
        touched = {*removed, *(view.id for view in changed)}
        stale = [held for name in touched if (held := self._held.pop(name, None)) is not None]
        self._held |= fresh
        before = {each for held in stale for each in held.hashes}
        after = {each for held in fresh.values() for each in held.hashes}
        self._blocks += len(after) - len(before)
        changes: list[Stored | Removed] = []
        if gone := before - after:
            stale.sort(key=lambda held: held.start, reverse=True)
            in_order = [each for held in stale for each in reversed(held.hashes) if each in gone]
            changes.append(Removed(in_order, cleared=not self._blocks))
        for held in fresh.values():
            changes += self._stored(held, before)
        return changes

    def all(self) -> Iterator[Stored]:
        """Every block that is there."""
        for held in sorted(self._held.values(), key=lambda held: held.start):
            yield from self._stored(held, frozenset())

    def _is_known(self, view: NodeView) -> bool:
        held = self._held.get(view.id)
        return held is not None and held.is_still(view)

    def _heirs(self, changed: Sequence[NodeView]) -> dict[int, int]:
        """The published node on each changed node's path: itself, or from which it was split."""
        heirs: dict[int, int] = {}
        for view in reversed(changed):
            heir = view.id if view.id in self._held else heirs.get(view.id)
            if heir is not None:
                heirs[view.id] = heir
                if view.parent_id is not None:
                    heirs.setdefault(view.parent_id, heir)
        return heirs

    def _hold(
        self, view: NodeView, fresh: dict[int, _PublishedNode], heir: int | None
    ) -> _PublishedNode:
        namespace = view.namespace if isinstance(view.namespace, Namespace) else Namespace()
        if view.parent_id is None:
            return _PublishedNode(None, namespace, 0, 0, b"", b"", 0, _seed(namespace), [])
        parent = fresh.get(view.parent_id) or self._held[view.parent_id]
        head = parent.rest(view.start * _TOKEN_BYTES % self._width)
        first, at, width = parent.end, parent.hash_before(parent.end), self._width
        text = (head + view.edge)[: len(head) + view.resident * _TOKEN_BYTES]
        hashes = [] if heir is None else self._known_hashes(self._held[heir], first, text)
        with memoryview(text) as tokens:
            for stop in range((len(hashes) + 1) * width, len(text) + 1, width):
                hashes.append(_hash(hashes[-1] if hashes else at, tokens[stop - width : stop]))
        return _PublishedNode(
            view.parent_id, namespace, view.start, view.resident, view.edge, head, first, at, hashes
        )

    def _known_hashes(self, held: _PublishedNode, first: int, text: bytes) -> list[int]:
        """Hashes of the first blocks of `text`, which begins after `first` blocks of a prompt, as
        far as this node and those above it were published with them. Since then it may have lost
        its end and got another; what is above a node that is there never changes.
        """
        path = [held]
        while path[-1].first > first and (parent_id := path[-1].parent_id) is not None:
            path.append(self._held[parent_id])
        hashes: list[int] = []
        for each in reversed(path):
            skipped = max(first - each.first, 0)
            old = each.text[skipped * self._width : len(each.hashes) * self._width]
            same = _common(old, text[len(hashes) * self._width :], self._width)
            hashes += each.hashes[skipped : skipped + same]
        return hashes

    def _stored(self, held: _PublishedNode, known: Set[int]) -> Iterator[Stored]:
        """The blocks that were not known before, in runs."""
        at = 0
        for is_known, run in groupby(held.hashes, known.__contains__):
            hashes = list(run)
            stop = at + len(hashes)
            if not is_known:
                first = held.first + at
                parent = held.hash_before(first) if first else None
                tokens = held.text[at * self._width : stop * self._width]
                yield Stored(hashes, parent, tokens, first, held.namespace)
            at = stop


def _common(left: bytes, right: bytes, width: int) -> int:
    """How many whole blocks of `width` bytes both begin with."""
    most = min(len(left), len(right)) // width
    if left[: most * width] == right[: most * width]:
        return most
    ends = range(width, (most + 1) * width, width)
    return next(
        i for i, end in enumerate(ends) if left[end - width : end] != right[end - width : end]
    )


def _seed(namespace: Namespace) -> int:
    """The hash that the first blocks of a namespace follow."""
    digest = blake2b(digest_size=_HASH_BYTES)
    for part in namespace if namespace.long_rope else namespace[:-1]:  # known to others as it was
        data = part.encode()
        digest.update(len(data).to_bytes(_HASH_BYTES, "little") + data)
    return _number(digest.digest())


def _hash(before: int, tokens: memoryview) -> int:
    return _number(
        blake2b(before.to_bytes(_HASH_BYTES, "little") + tokens, digest_size=_HASH_BYTES).digest()
    )


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little") >> 1
