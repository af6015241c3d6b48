"""Blocks of two parts on disk: that of layers with a window may not be there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from radixlm.core.errors import DiskStoreError
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.store_care import contents, repair, verify
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_identity import WINDOW_BYTES, StoreIdentity
from radixlm.memory.store_schema import FILE
from tests.store_support import BYTES, TOKENS, open_store, path, payload

WINDOWS = 3000
IDENTITY = StoreIdentity({"model": "m", WINDOW_BYTES: WINDOWS})
PATH = path(4)


def opened(folder: Path) -> DiskStore:
    return open_store(folder, IDENTITY)


def put(store: DiskStore, both: Sequence[bool], other: bytes = b"") -> int:
    """The first blocks of PATH, with both parts or without the second. other: instead of that."""
    blocks = []
    for number, whole in enumerate(both):
        tokens = PATH[: (number + 1) * TOKENS]
        content = payload(b"", tokens)
        content = content[: BYTES - WINDOWS] + (other or content[-WINDOWS:]) * whole
        # As they lie in a pool: in some parts, none of which ends where the first does.
        parts = [memoryview(content)[at : at + 700] for at in range(0, len(content), 700)]
        blocks.append(StoredBlock(b"", tokens, parts))
    return store.put(blocks)


def found(store: DiskStore, number: int, *, whole: bool) -> bool:
    """Whether a block is read, and has its bytes."""
    tokens = PATH[: (number + 1) * TOKENS]
    into = bytearray(BYTES if whole else BYTES - WINDOWS)
    there = store.reader(StoredPath(b"", tokens), number * TOKENS).next([memoryview(into)])
    assert not there or payload(b"", tokens).startswith(bytes(into))
    return there


def windows(store: DiskStore) -> list[int]:
    return [each.windows for each in store.index()]


def test_each_part_is_read_by_itself(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert put(store, [True, False, True]) == 3
    for _ in range(2):
        assert [found(store, n, whole=True) for n in range(4)] == [True, False, True, False]
        assert [found(store, n, whole=False) for n in range(4)] == [True, True, True, False]
        assert windows(store) == [0b101]
        assert store.stats.damaged == 0
        store.close()
        store = opened(tmp_path)
    store.close()
    sums = verify(tmp_path, lambda *_: None)
    assert [tuple(each) for each in sums.values()] == [(3, 0)]
    assert contents(tmp_path)[0].facts[WINDOW_BYTES] == WINDOWS


def test_a_part_that_is_not_there_is_added(tmp_path: Path) -> None:
    store, beside = opened(tmp_path), opened(tmp_path)
    put(store, [False, False])
    assert [each.windows for each in beside.news().added] == [0]
    put(store, [True, True])
    assert (len(store), windows(store)) == (2, [0b11])
    assert [each.windows for each in beside.news().added] == [0b11]
    assert found(beside, 1, whole=True)
    put(store, [False, True], other=bytes(WINDOWS))  # what is there stays
    assert windows(store) == [0b11]
    assert found(store, 0, whole=True)
    assert found(store, 1, whole=True)


@pytest.mark.parametrize(("at", "left"), [(10, [False, False]), (BYTES - 10, [True, False])])
def test_damage_of_a_part_is_found_by_who_reads_it(
    tmp_path: Path, at: int, left: list[bool]
) -> None:
    store = opened(tmp_path)
    put(store, [True])
    [file] = tmp_path.glob("*.blocks")
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)
    assert [found(store, 0, whole=False), found(store, 0, whole=True)] == left
    assert (store.stats.damaged, len(store)) == (1, 0)
    assert put(store, [True]) == 1
    assert found(store, 0, whole=True)


def test_an_index_that_is_made_anew_has_both_sums(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put(store, [True, False, False])
    put(store, [True, False, True])
    store.close()
    (tmp_path / FILE).write_bytes(b"damaged" * 1000)
    assert repair(tmp_path).found == 3
    store = opened(tmp_path)
    assert windows(store) == [0b101]
    assert [found(store, n, whole=True) for n in range(3)] == [True, False, True]


def test_blocks_of_one_part_are_of_another_identity(tmp_path: Path) -> None:
    """An earlier version stored all layers of such a model in their order."""
    whole = StoreIdentity({"model": "m"})
    before = open_store(tmp_path, whole)
    before.put([StoredBlock(b"", PATH[:TOKENS], [memoryview(payload(b"", PATH[:TOKENS]))])])
    store = opened(tmp_path)
    assert not found(store, 0, whole=False)
    assert before.reader(StoredPath(b"", PATH[:TOKENS]), 0).next([memoryview(bytearray(BYTES))])


def test_a_row_whose_sum_is_damaged_is_no_block(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for wrong in (b"", b"x" * 5, b"x" * 16, b"x" * 32, "text", None, 7):
        assert put(store, [True]) == 1
        with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as base:
            base.execute("UPDATE blocks SET sum = ?", (wrong,))
        assert put(store, [True]) == 1
        assert not found(store, 0, whole=False)
        assert len(store) == 0


@pytest.mark.parametrize("fails", ["the blocks", "sync"])
def test_what_is_given_up_leaves_the_disk_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """An index that is made anew finds what was stored before, and no more."""
    store = opened(tmp_path)
    put(store, [True, False])

    def given_up() -> Iterator[StoredBlock]:
        for number in range(3):
            tokens = PATH[: (number + 1) * TOKENS]
            yield StoredBlock(b"", tokens, [memoryview(payload(b"other", tokens))])
        if fails == "the blocks":
            raise DiskStoreError("abandoned")

    def fail(_file: BlockFile) -> None:
        raise DiskStoreError("no room")

    with monkeypatch.context() as patch:
        if fails == "sync":
            patch.setattr(BlockFile, "sync", fail)
        with pytest.raises(DiskStoreError):
            store.put(given_up())
    for _ in range(2):
        assert [found(store, n, whole=False) for n in range(3)] == [True, True, False]
        assert (windows(store), len(store)) == ([0b01], 2)
        store.close()
        (tmp_path / FILE).unlink()
        store = opened(tmp_path)
    store.close()
