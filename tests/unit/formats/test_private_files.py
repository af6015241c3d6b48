"""Files for this user alone."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from radixlm.formats.private_files import (
    check_private,
    make_private_folder,
    open_private,
    replace_private,
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    """As of a process that hides nothing."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_what_is_made_is_for_this_user_alone(tmp_path: Path) -> None:
    with open_private(tmp_path / "file") as file:
        assert mode(tmp_path / "file") == 0o600
        file.write(b"one")
    with open_private(tmp_path / "file") as file:
        file.write(b" two")
    assert (tmp_path / "file").read_bytes() == b"one two"
    for _ in range(2):
        make_private_folder(tmp_path / "folder")
        assert mode(tmp_path / "folder") == 0o700


@pytest.mark.usefixtures("open_umask")
def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("open to others")
    replace_private(file, b"mine")
    assert (mode(file), file.read_text()) == (0o600, "mine")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        replace_private(tmp_path / "folder", b"mine")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize("bits", [0o644, 0o620, 0o604])
def test_what_is_open_to_others_is_refused_and_left_as_it_is(tmp_path: Path, bits: int) -> None:
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("theirs")
    file.chmod(bits)
    folder.mkdir()
    folder.chmod(bits | 0o100)
    with pytest.raises(ValueError, match=rf"mode {bits:04o}\): chmod go= {file}"):
        open_private(file)
    with pytest.raises(ValueError, match=f"chmod go= {folder}"):
        make_private_folder(folder)
    assert (mode(file), file.read_text()) == (bits, "theirs")


def test_links_and_pipes_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    (tmp_path / "link").symlink_to("other")
    with pytest.raises(ValueError, match="it is a link"):
        open_private(tmp_path / "link")
    assert (tmp_path / "other").read_text() == "mine"
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="it is no folder"):
        make_private_folder(tmp_path / "folder")

    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    late = threading.Timer(20, lambda: os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
    late.daemon = True
    late.start()  # ends the wait of who would wait
    with pytest.raises(ValueError, match="it is no regular file"):
        open_private(pipe)
    assert late.is_alive(), "it waited for a reader"
    late.cancel()
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(ValueError, match="it is no regular file"):
        open_private(pipe)
    os.close(reader)


def test_what_is_another_user_s_is_refused(tmp_path: Path) -> None:
    found = os.stat_result((0o100600, 1, 1, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))
    with pytest.raises(ValueError, match=f"belongs to user {os.geteuid() + 1}"):
        check_private(tmp_path, found)
