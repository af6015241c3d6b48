"""Looking after a folder of a disk cache, of whatever models: what `radixlm cache` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import ConfigError
from radixlm.memory.disk_store import DiskStore, blocks_path
from radixlm.memory.store_files import BlockFile, private_folder
from radixlm.memory.store_identity import Fact
from radixlm.memory.store_index import FILE, Identity, StoreIndex

# Blocks that are deleted in one transaction.
_AT_ONCE = 64


class Contents(NamedTuple):
    """What one identity has. disk_bytes: of its file. facts: empty where they cannot be read."""

    digest: str
    facts: dict[str, Fact]
    block_tokens: int
    blocks: int
    disk_bytes: int


class Verified(NamedTuple):
    """Of all blocks, those that were damaged, or that no path leads to."""

    blocks: int
    damaged: int


def contents(folder: Path) -> list[Contents]:
    """Raises ConfigError where there is no disk cache, DiskStoreError."""
    with _opened(folder) as index:
        return [
            Contents(
                each.digest,
                _facts(each.facts),
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
            blocks = damaged = 0
            with _file(folder, identity) as file:
                into = [memoryview(bytearray(identity.block_bytes))]
                store = DiskStore(index, file, identity, 0)
                for key in index.keys(identity):
                    blocks += 1
                    if not store.sound(key, into):
                        damaged += 1
                        if delete:
                            with index.writing():
                                index.drop(identity, key)
                    done += 1
                    step(done, total)
            found[identity.digest] = Verified(blocks, damaged)
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
                with index.writing():
                    index.forget(identity)
                file.path.unlink(missing_ok=True)
        index.shrink()
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
                count = index.count(identity)
                spare = identity.slots - count
                wanted = max(0, -(-over // file.slot_bytes) - spare)
                deleted += _delete_oldest(index, identity, wanted)
                if over > 0:
                    _compact(index, file, identity)
        index.shrink()
    return deleted


def _delete_oldest(index: StoreIndex, identity: Identity, wanted: int) -> int:
    """From the ends of paths; how many, all at most."""
    deleted = 0
    while deleted < wanted and (leaves := index.keys(identity, leaves=True)):
        some = leaves[: min(_AT_ONCE, wanted - deleted)]
        with index.writing():
            deleted += sum(index.drop(identity, key) for key in some)
    return deleted


def _compact(index: StoreIndex, file: BlockFile, identity: Identity) -> None:
    """Move blocks from the end of the file to free slots, and cut it."""
    lying = {}
    for key in index.keys(identity):
        row = index.row(identity, key)
        if row is not None and isinstance(row.slot, int):
            lying[key] = row.slot
    free = sorted(set(range(len(lying))) - set(lying.values()))
    beyond = [(key, slot) for key, slot in lying.items() if slot >= len(lying)]
    into = [memoryview(bytearray(identity.block_bytes))]
    moved = []
    for (key, slot), target in zip(beyond, free, strict=False):
        file.read(slot, key, into)  # a damaged one stays so: its sum moves with it
        file.write(target, key, into)
        moved.append((key, target))
    file.sync()
    with index.writing():
        index.compact(identity, moved)
    file.truncate(len(lying))


def _facts(text: str) -> dict[str, Fact]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _size(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _require_alone(file: BlockFile) -> None:
    if not file.alone():
        raise ConfigError(f"{file.path} is in use: stop the server first")


@contextmanager
def _opened(folder: Path) -> Iterator[StoreIndex]:
    if not (folder / FILE).is_file():
        raise ConfigError(f"{folder} has no {FILE}: it is no disk cache")
    private_folder(folder)
    index = StoreIndex(folder)
    try:
        yield index
    finally:
        index.close()


@contextmanager
def _file(folder: Path, identity: Identity) -> Iterator[BlockFile]:
    file = BlockFile(blocks_path(folder, identity), identity.block_bytes)
    try:
        yield file
    finally:
        file.close()
