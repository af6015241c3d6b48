"""Looking after a folder of a disk cache, of whatever models: what `radixlm cache` does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import ConfigError, DiskStoreError
from radixlm.memory.disk_store import DiskStore
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_folder import private_folder
from radixlm.memory.store_identity import Fact
from radixlm.memory.store_index import StoreIndex
from radixlm.memory.store_labels import label_path
from radixlm.memory.store_repair import Repaired, open_repaired, open_sound
from radixlm.memory.store_rows import Identity, Lying, blocks_path
from radixlm.memory.store_schema import FILE

# Of damaged indexes that `repair` sets aside, together.
MOST_ASIDE_BYTES = 64 << 20


class Contents(NamedTuple):
    """The contents of one identity. disk_bytes: of its file. facts: empty where they cannot be
    read.
    """

    digest: str
    facts: dict[str, Fact]
    block_tokens: int
    blocks: int
    disk_bytes: int


class Verified(NamedTuple):
    """A count of all blocks, and of those that were damaged, or that no path leads to."""

    blocks: int
    damaged: int


def contents(folder: Path) -> list[Contents]:
    """Raises ConfigError where there is no disk cache, DiskStoreError."""
    with _opened(folder) as index:
        return [
            Contents(
                each.digest,
                each.described,
                each.block_tokens,
                index.count(each),
                _size(blocks_path(folder, each)),
            )
            for each in index.identities()
        ]


def verify(
    folder: Path, step: Callable[[int, int], None], *, delete: bool = False
) -> dict[str, Verified]:
    """Read all blocks and compare their sums, by identities' digests. step: called with the blocks
    read so far and all there are. delete: damaged ones. Raises as `contents`.
    """
    found = {}
    with _opened(folder) as index:
        identities = index.identities()
        total, done = sum(index.count(each) for each in identities), 0
        for identity in identities:
            blocks = 0
            with _file(folder, identity) as file:
                into = [memoryview(bytearray(identity.block_bytes))]
                store = DiskStore(index, file, identity, 0)
                bad = []
                for key in index.keys(identity):
                    sound = store.sound(key, into)
                    blocks += sound is not None
                    bad += [key] if sound is False else []
                    done += 1
                    step(done, total)
                if bad and delete:
                    with index.sparing():
                        for key in bad:
                            store.sound(key, into, delete=True)
            found[identity.digest] = Verified(blocks, len(bad))
    return found


def delete_identity(folder: Path, digest: str, *, others: bool = False) -> int:
    """Delete what one identity has, or all `others`; bytes that are free now. digest: its first
    digits, as many as no other has. Raises ConfigError for an unknown one, or where a server has
    one open.
    """
    freed = 0
    with _opened(folder) as index:
        identities = index.identities()
        named = [each for each in identities if each.digest.startswith(digest)]
        if len(named) != 1 or not digest:
            known = ", ".join(each.digest[:12] for each in identities) or "none"
            raise ConfigError(f"{digest!r} names {len(named)} of what {folder} has: {known}")
        for identity in [each for each in identities if (each in named) != others]:
            with _file(folder, identity) as file:
                _require_alone(file)
                freed += _size(file.path)
                # First, for a full disk has no room for the index's changes. Rows without bytes are
                # deleted when the folder is next opened.
                file.truncate(0)
                with index.sparing(), index.writing():
                    index.forget(identity)
                file.path.unlink(missing_ok=True)
                label_path(file.path).unlink(missing_ok=True)
        _give_back(index)
    return freed


def shrink(folder: Path, most_bytes: int) -> int:
    """Delete the blocks that were stored first until all files of blocks together are not longer
    than most_bytes; how many blocks. Raises ConfigError where a server has one open.
    """
    deleted = 0
    with _opened(folder) as index:
        for identity in index.identities():
            with _file(folder, identity) as file:
                _require_alone(file)
                over = index.used_bytes() - most_bytes
                if over > 0:
                    deleted += _shorten(index, file, identity, -(-over // file.slot_bytes))
        _give_back(index)
    return deleted


def repair(folder: Path) -> Repaired:
    """Set a damaged index aside, and make one from the blocks. Raises ConfigError where there is no
    disk cache, DiskStoreError where it is damaged and in use.
    """
    if not (os.path.lexists(folder / FILE) or any(folder.glob("*.blocks"))):
        raise ConfigError(f"{folder} has no {FILE}, nor blocks: it is no disk cache")
    private_folder(folder)
    index, repaired = open_repaired(folder, MOST_ASIDE_BYTES)
    index.close()
    return repaired


def _shorten(index: StoreIndex, file: BlockFile, identity: Identity, slots: int) -> int:
    """Make a file shorter by as many slots, or by all; how many blocks that deletes, the oldest
    from the ends of paths. Blocks from its end move to where those were.

    The file is cut before the index says so: on a full disk that makes the room to say so. Who is
    killed between leaves rows whose blocks are found missing, or not to have their sums.
    """
    lying = index.lying(identity)
    target = max(0, identity.slots - slots)
    gone = _oldest(lying, len(lying) - target)
    left = [each for each in lying if each.key not in gone]
    free = sorted(set(range(target)) - {each.slot for each in left})
    beyond = [each for each in left if each.slot >= target]
    moves = list(zip(beyond, free, strict=False))
    for each, to in moves:
        file.move(each.slot, to)
    file.sync()
    file.truncate(target)
    with index.sparing(), index.writing():
        for key in gone:
            index.drop(identity, key)
        index.move(identity, [(each.key, to) for each, to in moves])
        index.set_slots(identity, target, free[len(moves) :])
    return len(gone)


def _oldest(lying: list[Lying], count: int) -> set[bytes]:
    """Keys of as many blocks, those that were stored first, but none before what goes on from it.
    lying: by age.
    """
    below = Counter(each.parent for each in lying)
    known = {each.key: each for each in lying}
    leaves = [(each.born, each.key) for each in lying if not below[each.key]]
    heapify(leaves)
    gone = set[bytes]()
    while leaves and len(gone) < count:
        _, key = heappop(leaves)
        gone.add(key)
        parent = known[key].parent
        below[parent] -= 1
        if parent in known and not below[parent]:
            heappush(leaves, (known[parent].born, parent))
    return gone


def _give_back(index: StoreIndex) -> None:
    """Make the index's file shorter, where the disk has room to copy it."""
    with suppress(DiskStoreError):
        index.shrink()


def _size(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _require_alone(file: BlockFile) -> None:
    if not file.alone():
        raise ConfigError(f"{file.path} is in use: stop the server first")


@contextmanager
def _opened(folder: Path) -> Iterator[StoreIndex]:
    if not os.path.lexists(folder / FILE):
        raise ConfigError(f"{folder} has no {FILE}: it is no disk cache")
    private_folder(folder)
    index = open_sound(folder)
    try:
        yield index
    finally:
        index.close()


@contextmanager
def _file(folder: Path, identity: Identity) -> Iterator[BlockFile]:
    sizes = identity.block_tokens, identity.block_bytes, identity.window_bytes
    file = BlockFile(blocks_path(folder, identity), *sizes)
    try:
        yield file
    finally:
        file.close()
