"""A folder whose files are damaged between two processes: the next one starts, and finds the blocks
that are sound.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from radixlm.core.errors import DiskStoreError
from radixlm.core.moves import StoredPath
from radixlm.memory import store_folder
from radixlm.memory.store_identity import StoreIdentity
from tests.store_support import blocks_of, found, leaves, limit_of, open_store, path

INDEX = "index.sqlite"
BLOCKS = 8
OTHER = StoreIdentity({"model": "other"})
RANDOM = np.random.default_rng(0).bytes(50_000)
ENDLESS = """CREATE VIEW log AS WITH RECURSIVE endless (number) AS
(SELECT 1 UNION ALL SELECT number + 1 FROM endless)
SELECT number, x'' AS writer, 1 AS identity, x'' AS key, x'' AS parent, x'' AS namespace,
x'' AS tokens FROM endless"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With two identities, and two namespaces in one of them."""
    place = tmp_path / "store"
    store = open_store(place)
    store.put(blocks_of(path(BLOCKS)))
    store.put(blocks_of(path(2, first=500), b"salt"))
    store.close()
    store = open_store(place, OTHER)
    store.put(blocks_of(path(3)))
    store.close()
    return place


def blocks_file(folder: Path) -> Path:
    """The one of more blocks."""
    return max(folder.glob("*.blocks"), key=lambda each: each.stat().st_size)


def sql(*statements: str) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        with closing(sqlite3.connect(folder / INDEX, isolation_level=None)) as base:
            for statement in statements:
                base.execute(statement)

    return run


def cut(folder: Path) -> None:
    os.truncate(folder / INDEX, 10_000)


def flip(folder: Path) -> None:
    content = bytearray((folder / INDEX).read_bytes())
    content[4096:4196] = bytes(100)
    (folder / INDEX).write_bytes(content)


def directory(folder: Path) -> None:
    (folder / INDEX).unlink()
    (folder / INDEX).mkdir()
    (folder / INDEX / "file").touch()


def pipe(folder: Path) -> None:
    (folder / INDEX).unlink()
    os.mkfifo(folder / INDEX)


def link(folder: Path) -> None:
    (folder / INDEX).rename(folder.parent / "elsewhere")
    (folder / INDEX).symlink_to(folder.parent / "elsewhere")


def journal(folder: Path) -> None:
    (folder / f"{INDEX}-journal").unlink()
    (folder / f"{INDEX}-journal").mkdir()


def another_programs(folder: Path) -> None:
    (folder / INDEX).unlink()
    sql("CREATE TABLE theirs (a)")(folder)


DAMAGE = {
    "cut": cut,
    "zeroed in parts": flip,
    "zeros": lambda folder: (folder / INDEX).write_bytes(bytes(20_000)),
    "random": lambda folder: (folder / INDEX).write_bytes(RANDOM),
    "text": lambda folder: (folder / INDEX).write_text("index"),
    "empty": lambda folder: (folder / INDEX).write_bytes(b""),
    "missing": lambda folder: (folder / INDEX).unlink(),
    "directory": directory,
    "pipe": pipe,
    "link": link,
    "another program's": another_programs,
    "another layout": sql("PRAGMA user_version=7"),
    "another schema": sql("ALTER TABLE blocks ADD COLUMN more"),
    "a table more": sql("CREATE TABLE more (a)"),
    "a trigger": sql("CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM blocks; END"),
    "an endless view": sql("DROP TABLE log", ENDLESS),
    "no table": sql("DROP TABLE free"),
    "numbers that are text": sql("UPDATE identities SET slots = 'many'"),
    "no text": sql("UPDATE identities SET facts = CAST(x'ff' AS TEXT)"),
    "blocks of another size": sql("UPDATE identities SET block_bytes = 70"),
    "a mode that we never write": sql("PRAGMA journal_mode=WAL"),
    "a log ahead": lambda folder: (folder / f"{INDEX}-wal").write_bytes(RANDOM),
    "shared memory": lambda folder: (folder / f"{INDEX}-shm").write_bytes(RANDOM),
    "a journal that is a directory": journal,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=list(DAMAGE))
def test_a_damaged_index_is_made_anew(
    damage: Callable[[Path], None], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_store(folder)) as store:
        before = leaves(store)
    damage(folder)
    store = open_store(folder)
    assert leaves(store) == before
    assert (found(store, path(BLOCKS)), found(store, path(2, first=500), b"salt")) == (BLOCKS, 2)
    assert len([each for each in caplog.records if each.levelname == "WARNING"]) == 1
    assert "13 blocks were found in their files" in caplog.text
    assert store.put(blocks_of(path(BLOCKS + 2))) == BLOCKS + 2
    store.close()
    caplog.clear()
    with closing(open_store(folder, OTHER)) as store:
        assert found(store, path(3)) == 3
    with closing(open_store(folder)) as store:
        assert found(store, path(BLOCKS + 2)) == BLOCKS + 2
    assert not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("name", ["random", "an endless view", "another layout", "directory"])
def test_strictly_it_is_refused(name: str, folder: Path) -> None:
    DAMAGE[name](folder)
    there = {each.name for each in folder.iterdir()}
    with pytest.raises(DiskStoreError, match=f"radixlm cache repair {folder}.*delete the folder"):
        open_store(folder, strict=True)
    assert {each.name for each in folder.iterdir()} == there


def test_what_another_process_uses_is_not_repaired(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_folder, "MOMENT_SECONDS", 0.1)
    server = open_store(folder, OTHER)
    with (folder / INDEX).open("r+b") as opened:
        opened.write(RANDOM[:4096])
    content = (folder / INDEX).read_bytes()
    with pytest.raises(DiskStoreError, match=r"another process uses .*: stop that one first"):
        open_store(folder)
    assert (folder / INDEX).read_bytes() == content
    server.close()
    assert found(open_store(folder), path(BLOCKS)) == BLOCKS


def test_a_start_waits_for_another_that_looks_at_a_file(folder: Path) -> None:
    other = os.open(blocks_file(folder), os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    timer = threading.Timer(0.1, os.close, [other])
    timer.start()
    with closing(open_store(folder)) as store:
        assert found(store, path(BLOCKS)) == BLOCKS
    timer.join()


def test_what_is_no_file_in_a_label_s_place_is_set_aside(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    label = blocks_file(folder).with_suffix(".json")
    label.unlink()
    label.mkdir()
    with closing(open_store(folder)) as store:
        assert found(store, path(BLOCKS)) == BLOCKS
    assert label.is_file()
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"{label.name}: no regular file, and set aside" in said


@pytest.mark.parametrize("damage", [Path.unlink, lambda index: os.truncate(index, 0)])
def test_strictly_blocks_without_an_index_are_refused(
    damage: Callable[[Path], None], folder: Path
) -> None:
    damage(folder / INDEX)
    with pytest.raises(DiskStoreError, match=r"missing or empty, .*radixlm cache repair"):
        open_store(folder, strict=True)


def test_strictly_sizes_that_are_not_ours_are_refused(folder: Path) -> None:
    sql("UPDATE identities SET block_tokens = 32")(folder)
    there = {each.name for each in folder.iterdir()}
    with pytest.raises(DiskStoreError, match=r"of another size .*radixlm cache repair"):
        open_store(folder, strict=True)
    assert {each.name for each in folder.iterdir()} == there
    with closing(open_store(folder)) as store:
        assert found(store, path(BLOCKS)) == BLOCKS


def test_blocks_without_a_label_are_found_by_who_knows_whose_they_are(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for label in folder.glob("*.json"):
        label.unlink()
    (folder / INDEX).unlink()
    ours, theirs = (
        blocks_file(folder),
        min(folder.glob("*.blocks"), key=lambda each: each.stat().st_size),
    )
    with closing(open_store(folder)) as store:
        assert found(store, path(BLOCKS)) == BLOCKS
    assert ours.exists()
    assert not theirs.exists()
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "MB of blocks that cannot be used are deleted" in said


def test_what_is_set_aside_is_bounded_and_takes_room(folder: Path) -> None:
    capacities = []
    for number in range(6):
        (folder / INDEX).write_bytes(bytes([number]) * 100_000)
        store = open_store(folder)
        capacities.append(store.capacity)
        store.close()
    aside = sorted(folder.glob(f"{INDEX}.damaged-?"))
    assert [each.read_bytes()[0] for each in aside] == [3, 4, 5], "the oldest are gone"
    assert capacities == sorted(capacities, reverse=True)
    assert capacities[0] - capacities[-1] == pytest.approx(2 * 100_000 / 9000, abs=2)
    (folder / INDEX).write_bytes(bytes(limit_of(1000) // 10))
    assert found(open_store(folder), path(BLOCKS)) == BLOCKS
    assert not list(folder.glob(f"{INDEX}.damaged-*6")), "too long to be kept"


def test_deleted_blocks_do_not_come_back(folder: Path) -> None:
    """What was deleted may have been keys and values that are not finite."""
    store = open_store(folder)
    store.delete([StoredPath(b"salt", path(1, first=500))])
    store.close()
    (folder / INDEX).unlink()
    assert leaves(open_store(folder)) == {(b"", tuple(range(4 * BLOCKS)))}


def test_blocks_without_those_before_them_are_not_found(folder: Path) -> None:
    with blocks_file(folder).open("r+b") as opened:
        opened.seek(5000 + 100)  # the first one's record
        opened.write(b"damage")
    (folder / INDEX).unlink()
    store = open_store(folder)
    assert leaves(store) == {(b"salt", tuple(range(500, 508)))}
    assert store.put(blocks_of(path(BLOCKS))) == BLOCKS
    assert found(store, path(BLOCKS)) == BLOCKS
    assert store.damaged == 0


def test_a_damaged_block_is_found_out_in_an_index_that_was_made_anew(folder: Path) -> None:
    with blocks_file(folder).open("r+b") as opened:
        opened.seek(3 * 8192)
        opened.write(b"damage")
    (folder / INDEX).unlink()
    store = open_store(folder)
    assert (found(store, path(BLOCKS)), store.damaged) == (3, 1)


def test_a_namespace_without_room_in_a_record_is_not_found_again(folder: Path) -> None:
    long = b"n" * 2000
    store = open_store(folder)
    store.put(blocks_of(path(2), long))
    store.close()
    with closing(open_store(folder)) as store:
        assert found(store, path(2), long) == 2
    (folder / INDEX).unlink()
    store = open_store(folder)
    assert found(store, path(2), long) == 0
    assert found(store, path(BLOCKS)) == BLOCKS


def replaced_by_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "left"),
    [
        (Path.unlink, 0),
        (lambda file: os.truncate(file, 0), 0),
        (lambda file: os.truncate(file, 3 * 8192 + 100), 3),
        (replaced_by_directory, 0),
        (os.mkfifo, 0),
    ],
    ids=["missing", "empty", "cut", "directory", "pipe"],
)
def test_blocks_that_files_lack_are_forgotten_at_once(
    damage: Callable[[Path], None], left: int, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = blocks_file(folder)
    if damage is os.mkfifo:
        file.unlink()
    damage(file)
    store = open_store(folder)
    assert len(store) == found(store, path(BLOCKS)) == left
    assert store.damaged == 0
    [said] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert f"{10 - left} blocks were missing from their files" in said
    assert store.put(blocks_of(path(BLOCKS))) == BLOCKS
    assert found(store, path(BLOCKS)) == BLOCKS


def test_files_of_blocks_without_any_are_deleted(folder: Path) -> None:
    stray = folder / f"{'0' * 32}.blocks"
    stray.write_bytes(RANDOM)
    shutil.copy(blocks_file(folder), folder / f"{'1' * 32}.blocks")
    theirs = folder / "notes.blocks"
    theirs.write_bytes(RANDOM)
    open_store(folder).close()
    assert sorted(each.name for each in folder.glob("[01n]*.blocks")) == ["notes.blocks"]


def test_a_log_starts_after_what_was_found(folder: Path) -> None:
    """Ages go on, and other processes hear of what comes."""
    (folder / INDEX).unlink()
    ours, theirs = open_store(folder), open_store(folder)
    theirs.put(blocks_of(path(2, first=900)))
    assert [each.tokens[0] for each in ours.news().added] == [900]
