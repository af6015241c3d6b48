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


class StoredPath(NamedTuple):
    """A block, named by all tokens from a prompt's first to the block's last.

    windows: bit b is set where block b of the path is stored with the part of layers with a window.
    """

    namespace: bytes
    tokens: Key
    windows: int = ALL_BLOCKS


@dataclass(frozen=True, slots=True)
class Transfer:
    """The tokens [start, start + slots.size) of a path and their slots, block by block.

    start and slots.size are multiples of a block's tokens. windows: the tokens' slots in layers
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
