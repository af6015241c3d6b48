"""What fails under a store: never a wrong block, and an error of ours where there is one."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixlm.core.errors import DiskStoreError
from radixlm.memory import store_index
from radixlm.memory.disk_store import StoredBlock
from radixlm.memory.store_files import BlockFile
from radixlm.memory.store_schema import FILE
from tests.store_support import BOUND, blocks_of, found, open_store, path

BLOCKS = 8
# A process of its own: {} is what it does with its store.
CHILD = """
import sys
from pathlib import Path
from tests.store_support import blocks_of, open_store, path
store = open_store(Path(sys.argv[1]), blocks=100_000)
first = int(sys.argv[2])
print("begun", flush=True)
{}
"""
WRITES_ON = """
while True:
    store.put(blocks_of(path(8, first=first)))
    first += 100
    print(first, flush=True)
"""
WRITES_20 = """
for number in range(20):
    assert store.put(blocks_of(path(8, first=first + 100 * number))) == 8
"""


def child(
    body: str, folder: Path, first: int, launcher: tuple[str, ...] = ()
) -> subprocess.Popen[bytes]:
    command = [*launcher, sys.executable, "-c", CHILD.format(body), str(folder), str(first)]
    begun = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603
    assert begun.stdout is not None
    assert begun.stdout.readline() == b"begun\n"
    return begun


@pytest.mark.parametrize("before", [True, False], ids=["then opened", "while open"])
@pytest.mark.parametrize("way", ["bits", "cut"])
@pytest.mark.parametrize("name", ["*.blocks", "index.sqlite"])
def test_damage_is_found_or_harmless(name: str, way: str, before: bool, tmp_path: Path) -> None:
    whole = open_store(tmp_path / "whole")
    whole.put(blocks_of(path(BLOCKS)))
    whole.close()
    for seed in range(8):
        draw, folder = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(tmp_path / "whole", folder)
        store = None if before else open_store(folder)
        [file] = folder.glob(name)
        content = bytearray(file.read_bytes())
        if way == "bits":
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        else:
            del content[draw.randrange(len(content)) :]
        with file.open("r+b") as opened:  # the same file, not one in its place
            opened.write(content)
            opened.truncate(len(content))
        if store is None:
            store = open_store(folder)
        try:
            count = found(store, path(BLOCKS))  # compares what it finds
            assert store.put(blocks_of(path(BLOCKS))) == BLOCKS
            assert found(store, path(BLOCKS)) >= count
        except DiskStoreError:
            assert (name, before) == ("index.sqlite", False)


def test_a_damaged_block_is_written_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(BLOCKS)))
    [file] = tmp_path.glob("*.blocks")
    with file.open("r+b") as opened:
        opened.seek(3 * 8192)
        opened.write(b"damage")
    assert found(store, path(BLOCKS)) == 3
    assert (store.stats.damaged, len(store)) == (1, 3)
    store.put(blocks_of(path(BLOCKS)))
    assert found(store, path(BLOCKS)) == BLOCKS


@pytest.mark.slow
def test_a_killed_writer_leaves_whole_blocks(tmp_path: Path) -> None:
    draw, count = random.Random(0), 0
    for number in range(20):
        writer = child(WRITES_ON, tmp_path, number * 1_000_000)
        assert writer.stdout is not None
        for _ in range(number % 3):
            writer.stdout.readline()
        time.sleep(draw.random() * 0.05)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        store = open_store(tmp_path, blocks=100_000)
        for first in range(number * 1_000_000, number * 1_000_000 + 10_000, 100):
            count += found(store, path(8, first=first))
        assert sum(each.tokens.size for each in store.index()) == 4 * len(store)
        store.close()
    assert count > 0


def test_two_processes_write_into_one_folder(tmp_path: Path) -> None:
    writers = [child(WRITES_20, tmp_path, first) for first in (0, 50)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    for writer in writers:
        writer.communicate()
    store = open_store(tmp_path, blocks=100_000)
    for first in (0, 50):
        assert [found(store, path(8, first=first + 100 * n)) for n in range(20)] == [8] * 20


def test_a_full_disk_fails_and_loses_nothing(tmp_path: Path) -> None:
    """A limit on a file's size stands for the disk's."""
    body = """
import resource
from radixlm.core.errors import DiskStoreError
store.put(blocks_of(path(8, first=first)))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    for number in range(1, 20):
        store.put(blocks_of(path(8, first=first + 100 * number)))
except DiskStoreError as error:
    print(error)
"""
    filled = child(body, tmp_path, 0)
    text = filled.communicate(timeout=60)[0].decode()
    assert "the disk cache's" in text
    store = open_store(tmp_path)
    assert found(store, path(8)) == 8
    assert store.put(blocks_of(path(8, first=900))) == 8


def test_permission_that_is_lost_fails_and_loses_nothing(tmp_path: Path) -> None:
    """While a process has the files open."""
    body = """
from radixlm.core.errors import DiskStoreError
from tests.store_support import found
store.put(blocks_of(path(8, first=first)))
folder = Path(sys.argv[1])
for file in folder.iterdir():
    file.chmod(0)
folder.chmod(0)
for attempt in (lambda: store.put(blocks_of(path(9, first=first))), lambda: store.news()):
    try:
        attempt()
    except DiskStoreError as error:
        print(error)
try:
    print(found(store, path(8, first=first)), "read")
except DiskStoreError as error:
    print(error)
"""
    folder = tmp_path / "store"
    text = child(body, folder, 0, BOUND if os.geteuid() == 0 else ()).communicate(timeout=60)[0]
    assert "the disk cache's" in text.decode().splitlines()[0]
    folder.chmod(0o700)
    for file in folder.iterdir():
        file.chmod(0o600)
    store = open_store(folder)
    assert found(store, path(8)) == 8
    assert store.put(blocks_of(path(9))) == 9


def test_no_file_is_ever_readable_by_others(tmp_path: Path) -> None:
    """In the middle of a transaction, and whatever the process's mask is."""
    modes: set[int] = set()

    def blocks() -> Iterator[StoredBlock]:
        for block in blocks_of(path(3)):
            yield block
            modes.update(stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir())

    folder, mask = tmp_path / "store", os.umask(0)
    try:
        store = open_store(folder)
        assert store.put(blocks()) == 3
        store.close()
    finally:
        os.umask(mask)
    assert modes == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_files_in_anothers_place_are_not_written(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(2)))
    [file] = tmp_path.glob("*.blocks")
    shutil.copy(file, tmp_path / "copy")
    (tmp_path / "copy").rename(file)
    with pytest.raises(DiskStoreError, match="was replaced"):
        store.put(blocks_of(path(3)))
    assert found(store, path(2)) == 2


def test_a_folder_that_is_gone_fails(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.put(blocks_of(path(2)))
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(DiskStoreError):
        store.put(blocks_of(path(3)))


def test_a_damaged_block_that_cannot_be_deleted_is_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(3)))
    [file] = tmp_path.glob("*.blocks")
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(store_index, "WAIT_SECONDS", 0.1)
    locked = open_store(tmp_path)
    blocker = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")  # others' writes fail, once they have waited
    assert found(locked, path(3)) == 0
    assert (locked.damaged, len(locked)) == (1, 3)
    [told] = [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]
    assert "cannot be deleted" in told
    monkeypatch.setattr(BlockFile, "read", None)
    assert found(locked, path(3)) == 0
    assert locked.damaged == 1
    monkeypatch.undo()
    blocker.close()
    assert locked.put(blocks_of(path(3))) == 3, "written again"
    assert found(locked, path(3)) == 3
