"""A store whose process or machine dies in the middle of a write: what had been stored is there and
right, what was being written is not there.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.keys import Key, as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_index import StoreIndex
from radixlm.memory.store_rows import blocks_path
from tests.store_support import BYTES, IDENTITY, TOKENS, blocks_of, found, leaves, open_store

# Short paths that share beginnings: each block is one of two.
PATHS = st.lists(st.integers(0, 1), min_size=1, max_size=4)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "delete"]), PATHS), max_size=8)


class DiedError(Exception):
    """The process is no more."""


class DyingFile(BlockFile):
    """Dies at its `left`-th call from now on: in the middle of a write, or once all are synced.
    What it leaves, in the middle of the index's transaction, is in `remains`.
    """

    def __init__(self, path: Path, remains: Path) -> None:
        super().__init__(path, TOKENS, BYTES)
        self.left = -1
        self.synced = path.read_bytes()
        self.remains = remains

    def die(self) -> None:
        shutil.copytree(self.path.parent, self.remains)
        raise DiedError

    def write(self, slot: int, key: bytes, parts: Sequence[memoryview]) -> bytes:
        self.left -= 1
        if self.left == 0:
            super().write(slot, key, [*(part[: BYTES // 2] for part in parts), memoryview(_REST)])
            self.die()
        return super().write(slot, key, parts)

    def sync(self) -> None:
        super().sync()
        self.synced = self.path.read_bytes()
        self.left -= 1
        if self.left == 0:
            self.die()


_REST = bytes(BYTES - BYTES // 2)


@contextmanager
def dying(folder: Path, remains: Path, room: int) -> Iterator[tuple[DiskStore, DyingFile]]:
    open_store(folder, blocks=room).close()
    index = StoreIndex(folder)
    row = index.enrol(IDENTITY.digest(TOKENS, BYTES), IDENTITY.described(), TOKENS, BYTES)
    file = DyingFile(blocks_path(folder, row), remains)
    store = DiskStore(index, file, row, (8 << 20) + room * 9000)
    yield store, file
    store.close()


def key_of(kinds: Sequence[int]) -> Key:
    return as_key([kind * 100 + number for kind in kinds for number in range(TOKENS)])


def prefixes(kinds: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(kinds[:end]) for end in range(1, len(kinds) + 1)]


@pytest.mark.parametrize("ending", ["kill", "loss of power"])
@given(steps=STEPS, last=PATHS, call=st.integers(1, 5), room=st.sampled_from([4, 6, 1_000]))
@settings(max_examples=40, deadline=None)
def test_what_was_stored_is_right_after_a_crash(
    ending: str, steps: list[tuple[str, list[int]]], last: list[int], call: int, room: int
) -> None:
    stored: set[tuple[int, ...]] = set()
    with tempfile.TemporaryDirectory() as scratch:
        folder, left = Path(scratch) / "store", Path(scratch) / "left"
        with dying(folder, left, room) as (store, file):
            for what, kinds in steps:
                if what == "put":
                    count = store.put(blocks_of(key_of(kinds)))
                    assert count == len(kinds) or len(store) >= store.capacity
                    stored.update(prefixes(kinds)[:count])
                else:
                    store.delete([StoredPath(b"", key_of(kinds))])
                    gone = tuple(kinds)
                    stored = {each for each in stored if each[: len(gone)] != gone}
            file.left = call
            before = set(stored)
            try:
                stored.update(prefixes(last)[: store.put(blocks_of(key_of(last)))])
            except DiedError:
                assert stored == before
            else:
                shutil.copytree(folder, left)
            # A kill leaves what was written; a loss of power what had been synced.
            if ending == "loss of power":
                (left / file.path.name).write_bytes(file.synced)
        after = open_store(left, blocks=room)
        assert {tuple(tokens[::TOKENS]) for _, tokens in leaves(after)} == {
            tuple(kind * 100 for kind in each)
            for each in stored
            if not any(each == other[: len(each)] and each != other for other in stored)
        }
        assert len(after) == len(stored)
        for kinds in stored:
            assert found(after, key_of(kinds)) == len(kinds)
        count = after.put(blocks_of(key_of(last)))
        assert found(after, key_of(last)) == count
        assert count == len(last) or len(after) >= after.capacity
        assert after.stats.damaged == 0
        after.close()
