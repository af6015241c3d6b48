"""Jobs for host memory and the disk, and their reports: messages between the engine's thread and
those that read and write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from radixlm.core.keys import Key, Slots


class Place(IntEnum):
    """A place where keys and values may lie beside the pool, that which is read fastest first. An
    index of what is given by place.
    """

    HOST = 0
    DISK = 1


# By place: in neither of them is anything.
ByPlace = tuple[int, int]
NOWHERE: ByPlace = (0, 0)


# Of layers with a window: a transfer that has none of them; a token that has no slot there.
NO_WINDOWS: Slots = np.empty(0, dtype=np.int32)
NO_SLOT = -1
# Bits of blocks: all that there are.
ALL_BLOCKS = -1
# What no prompt has for a token: it fills the path of a stored checkpoint up.
MARK = -1
# Blocks of states have slots beyond those of any pool.
STATE_SLOTS = 1 << 30


class StoredPath(NamedTuple):
    """A block, named by all tokens from a prompt's first to the block's last.

    windows: bit b is set where block b of the path is stored with the part of layers with a window.
    """

    namespace: bytes
    tokens: Key
    windows: int = ALL_BLOCKS


class StateBlocks(NamedTuple):
    """How a checkpoint of states is stored: as blocks that go on from the path of its tokens.

        tokens   0 1 2 3   4 5 - -   - - - -   - - - -      blocks of 4, a checkpoint after 6 tokens
        bytes    tokens    tokens    state     state        whose state takes two blocks

    Tokens after the last whole block are stored with it, so that it may stand anywhere. So a store
    keeps, counts and compares it as any other blocks.

    block_tokens: of a block. per_state: blocks that a state takes; 0: there are no states.
    """

    block_tokens: int
    per_state: int

    def path(self, tokens: Key) -> Key:
        """The path of a checkpoint after these tokens."""
        return np.append(tokens, np.full(self.size(tokens.size), MARK, dtype=np.int32))

    def size(self, n_tokens: int) -> int:
        """How many marks the path of a checkpoint after these has."""
        return -n_tokens % self.block_tokens + self.per_state * self.block_tokens

    def own(self, n_tokens: int) -> int:
        """The room that it takes, in tokens, beside the whole blocks of its own."""
        return n_tokens % self.block_tokens + self.size(n_tokens)

    def slots(self, slots: Slots, state: int) -> Slots:
        """The slots of a path: of its tokens, the last one again for those that fill its block up,
        and of a state's blocks.
        """
        first = STATE_SLOTS + state * self.per_state
        blocks = np.arange(first, first + self.per_state, dtype=np.int32).repeat(self.block_tokens)
        fill = slots[-1:].repeat(-slots.size % self.block_tokens)
        return np.concatenate([slots, fill, blocks])


def tokens_of(path: Key) -> int:
    """How many tokens a path has, the first ones; the others are marks. O(path)."""
    marks = path[::-1] != MARK
    return path.size - int(np.argmax(marks)) if marks.any() else 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """The tokens [start, start + slots.size) of a path and their slots, block by block.

    start and slots.size are multiples of a block's tokens. Where the path is a checkpoint's, slots
    are as StateBlocks says. windows: the tokens' slots in layers
    with a window, NO_SLOT for a token that has none; empty where layers have no slots of their own.
    """

    ticket: int
    namespace: bytes
    tokens: Key
    start: int
    slots: Slots
    windows: Slots = field(default_factory=NO_WINDOWS.copy)


class Read(Transfer):
    """Fill the slots, which are the reader's alone until the job has ended. Of a block without a
    window slot only the part of the other layers is read.
    """

    __slots__ = ()


class Write(Transfer):
    """Store what the slots hold, which they keep until the job has ended. What is before `start` is
    stored already. The tokens of a block have window slots all or none: without, only the part of
    the other layers is stored.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Delete these blocks, and all that go on from them."""

    paths: Sequence[StoredPath]


@dataclass(frozen=True, slots=True)
class Moved:
    """The tokens up to `upto` of the path are in their slots, or stored. seconds: of this part."""

    ticket: int
    upto: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message of a job. upto: as in `Moved`; the job's start where nothing was moved.

    absent: it ended early because the block at `upto` is not stored, or was damaged (and is not
    stored any more), or because there is no room for it. error: the disk failed, or a copy.
    lacks_windows: it is stored, but without the part of layers with a window that was asked for.
    """

    ticket: int
    upto: int
    absent: bool = False
    cancelled: bool = False
    error: str = ""
    lacks_windows: bool = False


@dataclass(frozen=True, slots=True)
class News:
    """News of what other processes changed, or, at the start, what is stored.

    added: paths, of which every prefix of whole blocks is stored. gone: blocks that are not stored
    any more, nor what goes on from them. complete: at the start, whether these were the last.
    """

    added: Sequence[StoredPath] = ()
    gone: Sequence[StoredPath] = ()
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """The disk failed between jobs, or in a `Drop`."""

    error: str


@dataclass(frozen=True, slots=True)
class Damaged:
    """How many blocks were found damaged since the start: none of them is read again."""

    blocks: int


Job = Read | Write | Drop
Report = Moved | Ended | News | Failed | Damaged
