from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from radixlm.core.errors import ConfigError
from radixlm.core.keys import as_key
from radixlm.core.moves import StoredPath
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.memory.store_folder import private_folder
from radixlm.memory.store_identity import StoreIdentity
from radixlm.memory.store_index import LOG_ROWS
from radixlm.memory.store_schema import FILE
from tests.store_support import (
    BOUND,
    BYTES,
    IDENTITY,
    TOKENS,
    block,
    blocks_of,
    found,
    leaves,
    limit_of,
    open_store,
    path,
)


def test_what_was_put_is_there_in_the_next_process(tmp_path: Path) -> None:
    tokens = path(5)
    store = open_store(tmp_path / "new" / "store")
    assert store.put(blocks_of(tokens)) == 5
    store.close()
    store = open_store(tmp_path / "new" / "store")
    assert len(store) == found(store, tokens) == 5
    assert leaves(store) == {(b"", tuple(range(20)))}


def test_nothing_is_readable_by_others(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    open_store(folder).put(blocks_of(path(1)))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


def test_a_folder_that_was_copied_is_readable_by_nobody_else(tmp_path: Path) -> None:
    open_store(tmp_path).put(blocks_of(path(1)))
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    open_store(tmp_path)
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}


def test_a_path_is_found_up_to_where_it_parts(tmp_path: Path) -> None:
    store, tokens = open_store(tmp_path), path(4)
    store.put(blocks_of(tokens))
    other = tokens.copy()
    other[2 * TOKENS] += 100
    assert found(store, other) == 2
    assert store.put(blocks_of(other)) == 4
    assert (found(store, tokens), found(store, other), len(store)) == (4, 4, 6)
    assert leaves(store) == {(b"", tuple(tokens)), (b"", tuple(other))}


def test_the_same_block_after_other_tokens_is_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    first, second = path(2), path(2, first=100)
    second[TOKENS:] = first[TOKENS:]
    store.put(blocks_of(first))
    assert found(store, second) == 0
    assert not store.reader(StoredPath(b"", second), second.size - TOKENS).next(
        [memoryview(bytearray(BYTES))]
    )


def test_a_namespace_finds_nothing_of_another(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(3), b"salt"))
    assert [found(store, path(3), name) for name in (b"salt", b"", b"other")] == [3, 0, 0]
    assert leaves(store) == {(b"salt", tuple(range(12)))}


def test_a_block_needs_the_one_before(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.put(blocks_of(path(3))[1:]) == 0
    assert len(store) == 0


def test_reading_on_compares_what_is_before(tmp_path: Path) -> None:
    store, tokens = open_store(tmp_path), path(4)
    store.put(blocks_of(tokens))
    into = memoryview(bytearray(BYTES))
    assert store.reader(StoredPath(b"", tokens), 2 * TOKENS).next([into])
    changed = tokens.copy()
    changed[0] += 1
    assert not store.reader(StoredPath(b"", changed), 2 * TOKENS).next([into])


def test_parts_of_any_sizes_are_one_block(tmp_path: Path) -> None:
    store, one = open_store(tmp_path), block(b"", path(1))
    whole = one.parts[0]
    store.put([StoredBlock(b"", path(1), [whole[:1], whole[1:700], whole[700:]])])
    into = memoryview(bytearray(BYTES))
    assert store.reader(StoredPath(b"", path(1)), 0).next([into[:4000], into[4000:]])
    assert into == whole


def test_deleting_takes_what_goes_on_from_it(tmp_path: Path) -> None:
    store, tokens = open_store(tmp_path), path(4)
    store.put(blocks_of(tokens))
    assert store.delete([StoredPath(b"", tokens[: 2 * TOKENS])]) == 3
    assert store.delete([StoredPath(b"", tokens)]) == 0
    assert (found(store, tokens), len(store)) == (1, 1)


def test_deleted_blocks_make_room_in_the_file(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(8)))
    [file] = tmp_path.glob("*.blocks")
    before = file.stat().st_size
    store.delete([StoredPath(b"", path(1))])
    store.put(blocks_of(path(8, first=1000)))
    assert file.stat().st_size == before
    assert found(store, path(8, first=1000)) == 8


def test_it_takes_what_there_is_room_for(tmp_path: Path) -> None:
    store = open_store(tmp_path, blocks=10)
    assert 8 <= store.capacity <= 10
    assert store.put(blocks_of(path(12))) == store.capacity
    assert found(store, path(12)) == store.capacity
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= (8 << 20) + 10 * 9000


def test_free_places_behind_a_limit_that_was_lowered_stay_free(tmp_path: Path) -> None:
    store = open_store(tmp_path, blocks=100)
    for tokens in (path(30), path(60, first=1000)):
        store.put(blocks_of(tokens))
    store.delete([StoredPath(b"", path(1, first=1000))])
    store.close()
    store = open_store(tmp_path, blocks=10)
    assert [store.put(blocks_of(path(1, first=number))) for number in range(2000, 2020)] == [0] * 20
    store.close()
    store = open_store(tmp_path, blocks=100)
    assert store.put(blocks_of(path(60, first=3000))) == 60
    [file] = tmp_path.glob("*.blocks")
    assert file.stat().st_size <= 90 * 8192


def test_the_index_takes_room_too(tmp_path: Path) -> None:
    """Of many namespaces that are longer than blocks; what is deleted makes room again."""
    store = open_store(tmp_path, blocks=1_500)
    names = [f"{number:012000}".encode() for number in range(1_500)]
    parts = block(b"", path(1)).parts
    blocks = [StoredBlock(name, path(1), parts) for name in names]
    stored = store.put(blocks)
    assert 800 < stored < store.capacity

    def used() -> int:
        return sum(file.stat().st_size for file in tmp_path.iterdir())

    assert used() <= limit_of(1_500)
    store.delete([StoredPath(name, path(1)) for name in names[:10]])
    assert store.put(blocks[stored : stored + 20]) == 10
    assert used() <= limit_of(1_500)


def test_the_log_takes_no_more_room_for_long_blocks(tmp_path: Path) -> None:
    store = DiskStore.open(
        tmp_path, IDENTITY, block_tokens=50_000, block_bytes=BYTES, limit_bytes=limit_of(10_000)
    )
    tokens, parts = as_key(range(50_000)), block(b"", path(1)).parts
    names = [bytes([number]) for number in range(40)]
    assert store.put(StoredBlock(name, tokens, parts) for name in names) == 40
    assert store.delete([StoredPath(name, tokens) for name in names]) == 40
    assert (tmp_path / FILE).stat().st_size < 10 << 20


def test_other_identities_are_left_alone_and_take_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "radixlm.memory")
    first = open_store(tmp_path, blocks=10)
    first.put(blocks_of(path(5)))
    second = open_store(tmp_path, StoreIdentity({"model": "other"}), blocks=10)
    assert second.capacity < first.capacity - 3
    assert "1 other" in caplog.text
    assert found(second, path(5)) == 0
    assert second.put(blocks_of(path(12))) == second.capacity
    assert found(first, path(5)) == 5
    with pytest.raises(ConfigError, match="has no room"):
        open_store(tmp_path, StoreIdentity({"model": "third"}), blocks=10)


@pytest.mark.parametrize("changed", [{"model": "n"}, {"rope": 2}, {"dtype": "bfloat16"}])
def test_every_fact_makes_another_identity(changed: dict[str, str | int]) -> None:
    other = StoreIdentity({**IDENTITY.facts, **changed})
    assert other.digest(4, 100) != IDENTITY.digest(4, 100)
    assert len({IDENTITY.digest(*sizes) for sizes in ((4, 100), (4, 101), (5, 100))}) == 3


def test_two_stores_hear_of_each_other(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    assert not ours.news().added
    theirs.put(blocks_of(path(3)))
    theirs.put(blocks_of(path(2, first=500), b"salt"))
    told = {(each.namespace, tuple(each.tokens)) for each in ours.news().added}
    assert told == {(b"", tuple(range(12))), (b"salt", tuple(range(500, 508)))}
    assert ours.news().added == ours.news().gone == ()
    ours.put(blocks_of(path(5)))
    assert ours.news().added == ()
    assert [each.tokens.size for each in theirs.news().added] == [20]
    ours.delete([StoredPath(b"", path(2))])
    gone = {tuple(each.tokens) for each in theirs.news().gone}
    assert gone == {tuple(range(4 * n)) for n in range(2, 6)}
    assert found(theirs, path(5)) == 1


@pytest.mark.slow  # writes a log full
def test_more_news_than_are_logged_are_all_there_is(tmp_path: Path) -> None:
    ours, theirs = open_store(tmp_path), open_store(tmp_path)
    for _ in range(LOG_ROWS // 200 + 1):
        theirs.put(blocks_of(path(100)))
        theirs.delete([StoredPath(b"", path(1))])
    theirs.put(blocks_of(path(3)))
    assert [each.tokens.size for each in ours.news().added] == [12]
    assert ours.news().added == ()


def test_a_file_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """Where nothing says that the folder is ours."""
    with sqlite3.connect(tmp_path / FILE) as base:
        base.execute("CREATE TABLE theirs (a)")
    base.close()
    with pytest.raises(ConfigError, match="no index of a disk cache"):
        open_store(tmp_path)


def test_folders_that_others_reach_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o770)
    with pytest.raises(ConfigError, match="others can write"):
        open_store(tmp_path / "open")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        open_store(tmp_path / "link")
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is no folder"):
        open_store(tmp_path / "file")
    with pytest.raises(ConfigError, match="cannot be made: Not a directory"):
        open_store(tmp_path / "file" / "below")


def test_a_folder_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    body = "import sys, pathlib; private_folder(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"from {private_folder.__module__} import *; {body}"]
    asked = subprocess.run(  # noqa: S603
        [*(BOUND if os.geteuid() == 0 else ()), *command, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "may not be written: chmod u+rwx" in asked.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        open_store(tmp_path / "theirs")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_network_file_systems_are_refused(kind: str, tmp_path: Path) -> None:
    place, mounts = tmp_path / "a b", tmp_path / "mountinfo"
    shown = str(place).replace(" ", "\\040")
    mounts.write_text(
        f"22 1 8:1 / / rw shared:1 - ext4 /dev/a rw\n30 22 0:40 / {shown} rw - {kind} host:/x rw\n"
    )
    private_folder(tmp_path / "local", mounts)
    with pytest.raises(ConfigError, match=rf"network file system \({kind}\)"):
        private_folder(place / "store", mounts)


def test_a_key_of_any_size_reads_whole_blocks(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.put(blocks_of(path(2)))
    assert found(store, as_key(range(TOKENS * 2 + 3))) == 2
    assert found(store, as_key(range(TOKENS - 1))) == 0
