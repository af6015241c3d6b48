"""Making a disk cache's folder whole again: a damaged index is set aside, and another is made from
the records that stand behind the blocks.
"""

from __future__ import annotations

import logging
import re
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import DamagedStoreError, DiskStoreError
from radixlm.memory.block_records import Record, unpacked
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_folder import FolderLock, set_aside
from radixlm.memory.store_index import StoreIndex
from radixlm.memory.store_labels import Label, label_path, read_label
from radixlm.memory.store_rows import Identity, Row, blocks_path, key_after, root_key

_NAME = re.compile(r"[0-9a-f]{32}\.blocks")
_logger = logging.getLogger("radixlm.memory")


class Repaired(NamedTuple):
    """damage: of the index; empty where it was sound. aside: where that lies now, if anywhere.
    found: blocks that were put into the index. lost: blocks that it had without their bytes.
    """

    damage: str = ""
    aside: Path | None = None
    found: int = 0
    lost: int = 0

    def __str__(self) -> str:
        parts = []
        if self.damage:
            kept = f"it lies in {self.aside}" if self.aside else "it is deleted"
            parts.append(f"the index was damaged ({self.damage}): {kept}")
        if self.damage or self.found:
            parts.append(f"{self.found:,} blocks were found in their files")
        if self.lost:
            parts.append(f"{self.lost:,} blocks were missing from their files")
        return "; ".join(parts)


def open_sound(folder: Path) -> StoreIndex:
    """The index as it is. Raises DamagedStoreError that says what to do."""
    try:
        return StoreIndex(folder)
    except DamagedStoreError as error:
        raise DamagedStoreError(
            f"{error}: `radixlm cache repair {folder}` makes another, or delete the folder"
        ) from None


def open_repaired(
    folder: Path, most_aside: int, label: Label | None = None
) -> tuple[StoreIndex, Repaired]:
    """The index, or one in its place, with all sound blocks of the folder. most_aside: bytes of
    what is set aside. label: of an identity that the index may have only as it is there.

    Raises DiskStoreError where it is damaged and another process uses the folder; ConfigError.
    """
    lock = FolderLock(folder)
    try:
        index, damage, aside = _opened(folder, lock, most_aside, label)
    except BaseException:
        lock.close()
        raise
    try:
        found, lost = _reconciled(index, folder, most_aside)
    except BaseException:
        index.close()
        raise
    return index, Repaired(damage, aside, found, lost)


def _opened(
    folder: Path, lock: FolderLock, most_aside: int, label: Label | None
) -> tuple[StoreIndex, str, Path | None]:
    try:
        return _checked(folder, lock, label), "", None
    except DamagedStoreError:
        alone = lock.alone()
    aside, damage = None, ""
    try:
        index = _checked(folder, lock, label)  # another process may have repaired it meanwhile
    except DamagedStoreError as error:
        if not alone:
            raise DiskStoreError(
                f"{error}, and another process uses {folder}: stop that one first"
            ) from None
        aside, damage = set_aside(folder, most_aside), str(error)
        index = _checked(folder, lock, label)
    if alone:
        lock.share()
    return index, damage, aside


def _checked(folder: Path, lock: FolderLock, label: Label | None) -> StoreIndex:
    index = StoreIndex(folder, lock)
    same = [each for each in index.identities() if label and each.digest == label.digest]
    if any(each[1:5] != label for each in same):
        index.leave()
        raise DamagedStoreError(f"{index.path} has blocks of another size for {same[0].digest}")
    return index


def _reconciled(index: StoreIndex, folder: Path, most_aside: int) -> tuple[int, int]:
    """Blocks that files had and the index had not, and the other way round. What another process
    has open is left alone.
    """
    paths = [each for each in sorted(folder.iterdir()) if _NAME.fullmatch(each.name)]
    for path in paths:
        if not stat.S_ISREG(path.lstat().st_mode):
            set_aside(folder, most_aside, [path.name])
    identities = index.identities()
    named = {blocks_path(folder, each): each for each in identities}
    found = sum(_recover(index, path) for path in paths if path not in named)
    lost = sum(_without_bytes(index, path, each) for path, each in named.items() if each.slots)
    return found, lost


def _recover(index: StoreIndex, path: Path) -> int:
    """Put the blocks of a file into the index, or delete one that has none; how many."""
    if not path.exists():
        return 0  # it was set aside
    label = read_label(path)
    identity = Identity(0, *(label or Label("", "", 1, 1)), 0)
    with _alone(path, identity) as file:
        if file is None:
            return 0
        lying = {} if label is None else _lying(file, identity)
        if lying:
            _restore(index, file, identity, lying)
        else:
            path.unlink(missing_ok=True)
            label_path(path).unlink(missing_ok=True)
    return len(lying)


@contextmanager
def _alone(path: Path, identity: Identity) -> Iterator[BlockFile | None]:
    """None where another process has it open."""
    try:
        file = BlockFile(path, identity.block_tokens, identity.block_bytes)
    except DiskStoreError:
        yield None
        return
    with closing(file):
        yield file if file.alone() else None


def _restore(
    index: StoreIndex, file: BlockFile, identity: Identity, lying: dict[bytes, int]
) -> None:
    slots = max(lying.values()) + 1

    def rows() -> Iterator[tuple[bytes, Row, int]]:
        for key, slot in lying.items():
            record = unpacked(identity.digest, file.read_record(slot))
            if record is not None:
                row = Row(record.parent, record.namespace, record.tokens, slot, record.sum)
                yield key, row, record.born

    with index.writing():
        enrolled = index.enrol(*identity[1:5])
        index.restore(enrolled, rows())
        index.set_slots(enrolled, slots, set(range(slots)) - set(lying.values()))
    file.truncate(slots)


def _lying(file: BlockFile, identity: Identity) -> dict[bytes, int]:
    """The slots of blocks that a path leads to, by their keys."""
    born: dict[bytes, tuple[int, int]] = {}
    below: dict[bytes, list[bytes]] = {}
    firsts = []
    for slot in file.used_slots():
        record = unpacked(identity.digest, file.read_record(slot))
        if record is None or len(record.tokens) != 4 * identity.block_tokens:
            continue
        key = key_after(record.parent, record.tokens)
        if key not in born:
            below.setdefault(record.parent, []).append(key)
            if _is_first(identity, record):
                firsts.append(key)
        born[key] = max(born.get(key, (0, slot)), (record.born, slot))
    lying, reached = dict[bytes, int](), firsts
    while reached:
        key = reached.pop()
        lying[key] = born[key][1]
        reached += below.get(key, [])
    return lying


def _is_first(identity: Identity, record: Record) -> bool:
    return record.parent == root_key(identity, record.namespace)


def _without_bytes(index: StoreIndex, path: Path, identity: Identity) -> int:
    """Delete from the index what lies behind the end of its file; how many blocks."""
    if not path.exists():
        lost = index.count(identity)
        with index.writing():
            index.forget(identity)
        return lost
    with _alone(path, identity) as file:
        slots = identity.slots if file is None else file.slots()
        if slots >= identity.slots:
            return 0
        behind = [each.key for each in index.lying(identity) if each.slot >= slots]
        with index.writing():
            lost = sum(len(index.drop(identity, key)) for key in behind)
            used = {each.slot for each in index.lying(identity)}
            index.set_slots(identity, slots, set(range(slots)) - used)
    return lost
