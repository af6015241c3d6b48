"""Sums of weight files: of every byte, and read again only where a file was written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from radixlm.core.errors import CheckpointError
from radixlm.formats.weight_files import stamped
from radixlm.memory.weight_sums import REMEMBERED, WeightSums

SIZE = 3 << 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(SIZE))
    return path


def later(seconds: float, path: Path) -> Callable[[], int]:
    """A clock that is so long after the file's last change."""
    return lambda: path.stat().st_ctime_ns + int(seconds * 1e9)


def read(store: Path, path: Path, seconds: float = 10) -> tuple[str, int]:
    """The sum, and how many bytes were read for it."""
    steps: list[int] = []
    [found] = WeightSums(store, later(seconds, path)).of(stamped([path]), steps.append)
    return found, sum(steps)


def test_every_byte_counts_and_a_file_is_read_once(store: Path, file: Path) -> None:
    first, nbytes = read(store, file)
    assert nbytes == SIZE
    assert read(store, file) == (first, 0)
    assert WeightSums(store).unknown(stamped([file])) == 0
    content = bytearray(SIZE)
    content[1_300_001] = 1
    file.write_bytes(content)
    changed, nbytes = read(store, file)
    assert changed != first
    assert nbytes == SIZE
    assert oct((store / REMEMBERED).stat().st_mode & 0o777) == "0o600"


def test_a_file_that_says_its_old_age_is_read_again(store: Path, file: Path) -> None:
    first, _ = read(store, file)
    before = file.stat()
    file.write_bytes(b"\x01" * SIZE)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert read(store, file)[0] != first


def test_a_copy_has_the_same_sum(store: Path, file: Path, tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere" / "weights.bin"
    copied.parent.mkdir()
    shutil.copy2(file, copied)
    first, _ = read(store, file)
    assert read(store, copied) == (first, SIZE)
    linked = tmp_path / "link"
    linked.symlink_to(copied)
    assert read(store, linked) == (first, 0)


def test_what_was_written_just_now_is_not_remembered(store: Path, file: Path) -> None:
    """Another write in the same tick of the file system's clock would not be seen."""
    first, _ = read(store, file, seconds=0.5)
    assert read(store, file) == (first, SIZE)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        "[",
        "[" * 100_000,
        "[5]",
        '[["{path}", 1, 2, 3, 4]]',
        '[["{path}", {stamp}, "{letters}"]]',
        '[["{path}", {stamp}, "00"]]',
        " " * (1 << 19),
    ],
)
def test_a_damaged_memory_is_not_believed(store: Path, file: Path, content: str) -> None:
    first, _ = read(store, file)
    [listed] = stamped([file])
    stamp = ", ".join(map(str, listed.stamp))
    for name, value in {"path": str(listed.path), "stamp": stamp, "letters": "z" * 32}.items():
        content = content.replace(f"{{{name}}}", value)
    (store / REMEMBERED).write_text(content)
    assert read(store, file) == (first, SIZE)
    assert read(store, file) == (first, 0)


def test_a_memory_that_cannot_be_written_ends_nothing(store: Path, file: Path) -> None:
    (store / REMEMBERED).mkdir()
    first, _ = read(store, file)
    assert read(store, file) == (first, SIZE)


def test_it_remembers_the_last_ones(store: Path, file: Path) -> None:
    [listed] = stamped([file])
    row = [*listed.stamp, "0" * 32]
    (store / REMEMBERED).write_text(json.dumps([[f"/{n:0100}", *row] for n in range(1_000)]))
    for n in range(400):
        os.link(file, file.with_name(f"{n:0200}"))
    file.write_bytes(b"short")
    many = stamped(sorted(file.parent.glob("0*")))
    WeightSums(store, later(10, file)).of(many)
    assert (store / REMEMBERED).stat().st_size <= 1 << 18
    assert WeightSums(store).unknown(many) == 0


def test_weights_that_were_written_since_they_were_listed(store: Path, file: Path) -> None:
    listed = stamped([file])
    sums = WeightSums(store, later(10, file))
    sums.of(listed)
    file.write_bytes(b"\x01" * SIZE)
    for _ in ("remembered", "not"):
        with pytest.raises(CheckpointError, match="written or replaced while"):
            sums.of(listed)
        (store / REMEMBERED).unlink(missing_ok=True)
    file.unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        WeightSums(store).of(listed)
    with pytest.raises(CheckpointError, match="cannot be read"):
        stamped([file])
