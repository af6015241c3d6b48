"""The interface of a place beside the pool, for the thread that reads and writes there.

DiskStore and HostStore are such. What comes between a store and the pool's slots is the store's
own affair, P: memory to read from and write to, or the slots themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from radixlm.core.keys import Key, Slots
from radixlm.core.moves import NO_SLOT, NO_WINDOWS, News, StoredPath

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
P_contra = TypeVar("P_contra", contravariant=True)


def in_windows(windows: Slots) -> bool:
    """Whether a block's part of layers with a window is moved: some token has a slot there."""
    return bool((windows != NO_SLOT).any())


class Block(NamedTuple, Generic[P_co]):
    """tokens: of the whole path, to the block's end. parts: where its keys and values are; without
    those of layers with a window where these are not to be stored.
    """

    namespace: bytes
    tokens: Key
    parts: P_co


class Carrier(Protocol[P_co]):
    """The pool, as a store wants it. nbytes: of a block. slots, windows: of one, see Transfer."""

    block_tokens: int
    nbytes: int

    def source(self, slots: Slots, windows: Slots = NO_WINDOWS, /) -> P_co:
        """The block in these slots, until the next call."""

    def place(self, slots: Slots, windows: Slots = NO_WINDOWS, /) -> P_co | None:
        """The memory of these slots, for a reader that does not wait; None where they cannot be."""

    def target(self, windows: Slots = NO_WINDOWS, /) -> P_co:
        """The memory where a reader puts a block; then call `land`."""

    def land(self, slots: Slots, windows: Slots = NO_WINDOWS, /) -> None:
        """The block that was read enters its slots, which are not touched before."""


class Reader(Protocol[P_contra]):
    """The blocks of a path, one after the other."""

    lacks_windows: bool

    def next(self, into: P_contra, /) -> bool:
        """Read the next block; False: it is not stored, nor is what follows, or `lacks_windows`:
        the part of layers with a window is not that is asked for.
        """

    def at_hand(self) -> Callable[[P_contra], bool] | None:
        """A function that reads the next block, as `next` does, without waiting for a disk; False
        where only `next` can tell. None: nothing does.
        """


class Store(Protocol[P_contra]):
    """Blocks of whole paths. Used by one thread; every method may raise DiskStoreError."""

    block_tokens: int
    block_bytes: int

    @property
    def damaged(self) -> int:
        """Blocks that were found so since it was opened. None is read a second time."""

    def put(self, blocks: Iterable[Block[P_contra]], /) -> int:
        """Store blocks, each after those before it on its path. Returns how many, from the first
        on, are stored now: the next one's parent is not, or there is no room for it. blocks: each
        is asked for when those before it are written. One that is stored without the part of
        layers with a window gets it. An error, theirs as well, leaves what was stored before.
        """

    def reader(self, path: StoredPath, start: int, /) -> Reader[P_contra]:
        """start: where the first block begins that is read."""

    def delete(self, paths: Sequence[StoredPath], /) -> int:
        """Delete blocks and all that go on from them; how many."""

    def index(self) -> Iterator[StoredPath]:
        """The longest paths that are stored when the process begins."""

    def news(self) -> News:
        """Report what other processes changed since the last call."""

    def close(self) -> None: ...
