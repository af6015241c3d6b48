"""Making a disk cache's folder whole again: a damaged index is set aside, and another is made from
the records that stand behind the blocks.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import DamagedStoreError, DiskStoreError, FullStoreError
from radixlm.memory.block_records import Record, unpacked
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_folder import FolderLock, delete_aside, set_aside
from radixlm.memory.store_index import StoreIndex
from radixlm.memory.store_labels import Label, label_path, read_label
from radixlm.memory.store_rows import Identity, Row, blocks_path, key_after, root_key
from radixlm.memory.store_schema import FILE

_NAME = re.compile(r"[0-9a-f]{32}\.(blocks|json)")
# Of a file of blocks, what goes at a time where a disk has no room for their index.
_SHARE_TO_CUT = 1 / 4


class Repaired(NamedTuple):
    """damage: of the index; empty where it was sound. aside: where that lies now, if anywhere.
    found: blocks that were put into the index. lost: blocks that it had without their bytes.
    deleted: bytes of files of blocks in which none can be used, or for which a full disk had no
    room. strange: names of what was no regular file, and is set aside.
    """

    damage: str = ""
    aside: Path | None = None
    found: int = 0
    lost: int = 0
    deleted: int = 0
    strange: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = []
        if self.damage:
            kept = f"it lies in {self.aside}" if self.aside else "it is deleted"
            parts.append(f"the index was damaged ({self.damage}): {kept}")
        if self.damage or self.found:
            parts.append(f"{self.found:,} blocks were found in their files")
        if self.lost:
            parts.append(f"{self.lost:,} blocks were missing from their files")
        if self.deleted:
            parts.append(
                f"{self.deleted / 1e6:,.1f} MB of blocks that cannot be used are deleted: of an "
                "earlier version, damaged, or without room for their index on a full disk"
            )
        if self.strange:
            parts.append(f"{', '.join(self.strange)}: no regular file, and set aside")
        return "; ".join(parts)


def open_sound(folder: Path) -> StoreIndex:
    """The index as it is. Raises DamagedStoreError that says what to do."""
    with _locked(folder) as lock:
        return _sound(folder, lock, None)


def open_repaired(
    folder: Path, most_aside: int, label: Label | None = None, *, strict: bool = False
) -> tuple[StoreIndex, Repaired]:
    """The index, or one in its place, with all sound blocks of the folder. most_aside: bytes of
    what is set aside. label: of an identity that the index may have only as it is there.

    Raises DiskStoreError where it is damaged and another process uses the folder, or, if strict,
    where it is damaged; ConfigError.
    """
    deleted = 0
    while True:
        try:
            index, found = _open_repaired(folder, most_aside, label, strict=strict)
        except FullStoreError:
            less = 0 if strict else _made_room(folder)
            if not less:
                raise
            deleted += less
        else:
            return index, found._replace(deleted=found.deleted + deleted)


def _made_room(folder: Path) -> int:
    """Delete what was set aside, else the end of the longest file of blocks, where nobody else uses
    the folder: without an index no block is found. How many bytes.
    """
    with closing(FolderLock(folder)) as lock:
        if not lock.alone():
            return 0
        try:
            if nbytes := delete_aside(folder):
                return nbytes
            sizes = {each: each.stat().st_size for each in _block_files(folder)}
            longest = max(sizes, key=sizes.__getitem__, default=None)
            if longest is None or not sizes[longest]:
                return 0
            left = int(sizes[longest] * (1 - _SHARE_TO_CUT))
            os.truncate(longest, left)
        except OSError as error:
            raise DiskStoreError(f"the disk cache {folder}: {error}") from None
        return sizes[longest] - left


def _block_files(folder: Path) -> list[Path]:
    """Regular files with names of ours, whosever their blocks are."""
    named = (each for each in folder.glob("*.blocks") if _NAME.fullmatch(each.name))
    return sorted(each for each in named if stat.S_ISREG(each.lstat().st_mode))


def _open_repaired(
    folder: Path, most_aside: int, label: Label | None, *, strict: bool
) -> tuple[StoreIndex, Repaired]:
    with _locked(folder) as lock:
        if strict:
            index, damage, aside = _sound(folder, lock, label), "", None
        else:
            index, damage, aside = _opened(folder, lock, most_aside, label)
    try:
        found = _reconciled(index, folder, most_aside, label)
        if damage:
            lock.share()  # another start waits until all is in the index
    except BaseException:
        index.close()
        raise
    return index, found._replace(damage=damage, aside=aside)


@contextmanager
def _locked(folder: Path) -> Iterator[FolderLock]:
    """The lock of a folder, for the index that is opened with it; released after an error."""
    lock = FolderLock(folder)
    try:
        yield lock
    except BaseException:
        lock.close()
        raise


def _sound(folder: Path, lock: FolderLock, label: Label | None) -> StoreIndex:
    try:
        _check_there(folder)
        return _checked(folder, lock, label)
    except DamagedStoreError as error:
        raise DamagedStoreError(
            f"{error}: `radixlm cache repair {folder}` makes another, or delete the folder"
        ) from None


def _check_there(folder: Path) -> None:
    """Raises DamagedStoreError where there are blocks and no index of them."""
    path = folder / FILE
    if os.path.lexists(path) and path.lstat().st_size:
        return
    for each in _block_files(folder):
        if each.stat().st_size:
            raise DamagedStoreError(f"{path} is missing or empty, and {each.name} is not")


def _opened(
    folder: Path, lock: FolderLock, most_aside: int, label: Label | None
) -> tuple[StoreIndex, str, Path | None]:
    """The lock is for this process alone after damage."""
    try:
        return _checked(folder, lock, label), "", None
    except DamagedStoreError:
        alone = lock.alone()
    try:
        index = _checked(folder, lock, label)  # another process may have repaired it meanwhile
    except DamagedStoreError as error:
        if not alone:
            raise DiskStoreError(
                f"{error}, and another process uses {folder}: stop that one first"
            ) from None
        aside = set_aside(folder, most_aside)
        return _checked(folder, lock, label), str(error), aside
    if alone:
        lock.share()
    return index, "", None


def _checked(folder: Path, lock: FolderLock, label: Label | None) -> StoreIndex:
    index = StoreIndex(folder, lock)
    same = [each for each in index.identities() if label and each.digest == label.digest]
    if any(each[1:5] != label for each in same):
        index.leave()
        raise DamagedStoreError(f"{index.path} has blocks of another size for {same[0].digest}")
    return index


def _reconciled(index: StoreIndex, folder: Path, most_aside: int, own: Label | None) -> Repaired:
    """Put into the index what files have and it has not, and the other way round. What another
    process has open is left alone. own: of a file whose label may be lost.
    """
    ours = [each for each in sorted(folder.iterdir()) if _NAME.fullmatch(each.name)]
    strange = [each.name for each in ours if not stat.S_ISREG(each.lstat().st_mode)]
    for name in strange:
        set_aside(folder, most_aside, [name])
    paths = _block_files(folder)  # first: an identity is in the index before its file is made
    named = {blocks_path(folder, each): each for each in index.identities()}
    found = deleted = 0
    for path in paths:
        if path not in named:
            label = read_label(path)
            if label is None and own is not None and own.digest.startswith(path.stem):
                label = own
            more, less = _recover(index, path, label)
            found, deleted = found + more, deleted + less
    lost = sum(_without_bytes(index, path, each) for path, each in named.items() if each.slots)
    return Repaired(found=found, lost=lost, deleted=deleted, strange=tuple(strange))


def _recover(index: StoreIndex, path: Path, label: Label | None) -> tuple[int, int]:
    """Put the blocks of a file into the index, or delete one that has none: how many, and bytes."""
    identity = Identity(0, *(label or Label("", "", 1, 1)), 0)
    with _alone(path, identity) as file:
        if file is None:
            return 0, 0
        lying = {} if label is None else _lying(file, identity)
        if lying:
            _restore(index, file, identity, lying)
            return len(lying), 0
        nbytes = path.stat().st_size
        path.unlink()
        label_path(path).unlink(missing_ok=True)
    return 0, nbytes


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
    try:
        nbytes = path.stat().st_size
    except FileNotFoundError:
        with index.writing():
            if path.exists() or identity not in index.identities():
                return 0  # another process has begun anew
            lost = index.count(identity)
            index.forget(identity)
        return lost
    if nbytes >= (identity.slots - 1) * identity.slot_bytes + identity.block_bytes:
        return 0  # as `BlockFile.slots`: whole, so that no other start is in the way
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
