"""Code on disk: whole, this user's own, and not without end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from radixlm.kernels.jit import KernelStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such owners")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some" / "where"


def test_what_was_put_is_there_for_the_next_one(folder: Path) -> None:
    KernelStore(folder).put("a", b"code")
    assert KernelStore(folder).get("a") == b"code"
    assert KernelStore(folder).get("b") is None


def test_nobody_else_may_read_or_write_what_is_made(folder: Path) -> None:
    KernelStore(folder).put("a", b"code")
    assert {oct(path.stat().st_mode & 0o077) for path in (folder, folder / "a")} == {"0o0"}


@pytest.mark.parametrize("name", ["", "a"])
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_what_others_may_write_is_not_read(folder: Path, name: str, mode: int) -> None:
    store = KernelStore(folder)
    store.put("a", b"code")
    (folder / name).chmod(mode)
    assert store.get("a") is None


def test_nothing_is_put_where_others_may_write(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    KernelStore(folder).put("a", b"code")
    assert list(folder.iterdir()) == []


def test_what_is_another_users_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = KernelStore(folder)
    store.put("a", b"code")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert store.get("a") is None


@pytest.mark.parametrize("damage", [b"", b"x" * 20, b"\0" * 36])
def test_what_is_not_whole_is_not_read(folder: Path, damage: bytes) -> None:
    store = KernelStore(folder)
    store.put("a", b"code")
    (folder / "a").write_bytes(damage)
    assert store.get("a") is None


def test_the_oldest_go(folder: Path) -> None:
    store = KernelStore(folder, most=2)
    for age, key in enumerate(["c", "a", "b"]):
        store.put(key, b"code")
        os.utime(folder / key, (age, age))
    store.put("d", b"code")
    assert sorted(path.name for path in folder.iterdir()) == ["b", "d"]


def test_what_is_used_stays(folder: Path) -> None:
    store = KernelStore(folder, most=2)
    for age, key in enumerate(["a", "b"]):
        store.put(key, b"code")
        os.utime(folder / key, (age, age))
    assert store.get("a") == b"code"
    store.put("c", b"code")
    assert sorted(path.name for path in folder.iterdir()) == ["a", "c"]


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = KernelStore(tmp_path / "file" / "below")
    store.put("a", b"code")
    assert store.get("a") is None


def test_what_was_made_is_told_once(folder: Path) -> None:
    store = KernelStore(folder)
    assert store.news() == ""
    store.compiling += [1.25, 0.5]
    store.timing.append(2)
    assert (
        store.news()
        == f"kernels compiled: 2 in 1.8 s; products timed: 1 in 2.0 s; kept in {folder}"
    )
    assert store.news() == ""
