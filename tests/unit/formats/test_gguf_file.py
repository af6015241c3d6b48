"""Heads of GGUF files: what is right is read, and whatever is wrong is named."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.formats.gguf_file import GGUFFile

U8, U32, F32, BOOL, STRING, ARRAY, U64 = 0, 4, 6, 7, 8, 9, 10
HUGE = 2**63
Tensor = tuple[str, Sequence[int], int, int]


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, dims: Sequence[int], kind: int, offset: int) -> bytes:
    numbers = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + numbers + struct.pack("<IQ", kind, offset)


def head(
    entries: Sequence[bytes] = (),
    tensors: Sequence[Tensor] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: int = 0,
) -> bytes:
    counts = counts or (len(tensors), len(entries))
    start = magic + struct.pack("<IQQ", version, *counts)
    made = start + b"".join([*entries, *(tensor(*each) for each in tensors)])
    return made + bytes(-len(made) % 32 + data)


def read(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return GGUFFile(path)


def split(folder: Path, count: int = 3) -> list[Path]:
    """A file of `count` tensors in as many parts."""
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1)
    writer.add_uint32("k", 7)
    for number in range(count):
        writer.add_tensor(f"t{number}", np.full((2, 4), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("m-*.gguf"))


def test_a_split_file_is_read_from_any_part(tmp_path: Path) -> None:
    parts = split(tmp_path)
    for part in parts:
        file = GGUFFile(part)
        assert (file.path, file.paths) == (parts[0], parts)
        assert (file.metadata["k"], list(file.tensors)) == (7, ["t0", "t1", "t2"])
        assert file.data("t2").view(np.float32).tolist() == [2.0] * 8
        assert file.data("t1", part=1).view(np.float32).tolist() == [1.0] * 4


def test_what_is_wrong_with_parts_is_named(tmp_path: Path) -> None:
    parts = split(tmp_path)
    other = tmp_path / "whole.gguf"
    other.write_bytes(parts[0].read_bytes())
    with pytest.raises(CheckpointError, match=r"split\.count' is 3, but its name says"):
        GGUFFile(other)
    second = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    with pytest.raises(CheckpointError, match=r"'t2' is in m-00003-of-00003\.gguf, too"):
        GGUFFile(parts[0])
    parts[1].write_bytes(second)
    parts[2].unlink()
    with pytest.raises(CheckpointError, match=r"m-00003-of-00003\.gguf cannot be read: .*No such"):
        GGUFFile(parts[0])
    parts[2].write_bytes(second.replace(b"t1", b"t9"))
    parts[0].write_bytes(
        parts[0].read_bytes().replace(b"split.tensors.count", b"split.tensors.cxunt")
    )
    assert list(GGUFFile(parts[0]).tensors) == ["t0", "t1", "t9"]
    count = struct.pack("<I", 3)
    whole = parts[0].read_bytes().replace(b"split.tensors.cxunt", b"split.tensors.count")
    at = whole.index(b"split.tensors.count") + 23
    assert whole[at : at + 4] == count
    parts[0].write_bytes(whole[:at] + struct.pack("<I", 4) + whole[at + 4 :])
    with pytest.raises(CheckpointError, match=r"split\.tensors\.count' is 4, but there are 3"):
        GGUFFile(parts[0])


def test_what_ggml_s_writer_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("a.u", 7)
    writer.add_int64("a.i", -(2**40))
    writer.add_float32("a.f", 0.5)
    writer.add_bool("a.b", False)
    writer.add_string("a.s", "ü\n")
    writer.add_array("a.texts", ["x", "", "é"])
    writer.add_array("a.numbers", [1, 2, -3])
    values = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("one.weight", values)
    packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("two.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = GGUFFile(path)
    assert made.metadata["a.numbers"].tolist() == [1, 2, -3]
    found = {key: made.metadata[key] for key in ("a.u", "a.i", "a.f", "a.b", "a.s", "a.texts")}
    assert found == {
        "a.u": 7,
        "a.i": -(2**40),
        "a.f": 0.5,
        "a.b": False,
        "a.s": "ü\n",
        "a.texts": ["x", "", "é"],
    }
    assert {name: (each.type.name, each.shape) for name, each in made.tensors.items()} == {
        "one.weight": ("F32", (3, 32)),
        "two.weight": ("Q8_0", (3, 32)),
    }
    assert made.data("one.weight").tobytes() == values.tobytes()
    assert made.data("two.weight").tobytes() == packed.tobytes()


@pytest.mark.parametrize("alignment", [1, 8, 32, 65536])
def test_data_begins_where_the_alignment_says(tmp_path: Path, alignment: int) -> None:
    entries = [entry("general.alignment", U32, struct.pack("<I", alignment))]
    tensors = [("a", (8,), 0, 0), ("b", (8,), 0, alignment * 32)]
    content = head(entries, tensors).rstrip(b"\0")
    size = len(head(entries, tensors)) // 32 * 32  # the last field ends in zeros
    made = read(tmp_path, content + bytes(4 * 65536 + 40 * alignment + size))
    start = made.tensors["a"].start
    assert start % alignment == 0
    assert made.tensors["b"].start == start + 32 * alignment


ONE = [("a", (32,), 0, 0)]
WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it ends within 'the file'"),
    "other": (b"PK\x03\x04" + bytes(60), r"not a GGUF file: it begins with b'PK"),
    "no counts": (b"GGUF\x03\0\0\0", "ends within 'the number of tensors'"),
    "entries": (head(counts=(0, HUGE)), f"too short for {HUGE} entries"),
    "tensors": (head(counts=(HUGE, 0)), f"too short for {HUGE} tensors"),
    "key": (head([struct.pack("<Q", HUGE)], data=64), f"'a key' has {HUGE} bytes"),
    "long key": (head([text("k" * 70000)], data=64), "'a key' has 70000 bytes"),
    "bytes": (head([entry("k", STRING, text(b"\xff"))]), "'k' is not valid UTF-8"),
    "key bytes": (head([text(b"\xff")], data=64), "'a key' is not valid UTF-8"),
    "text": (head([entry("k", STRING, struct.pack("<Q", 2**20))]), "ends within 'k'"),
    "twice": (head([entry("k", U8, b"\1")] * 2), "the key 'k' is there twice"),
    "kind": (head([entry("k", 13, bytes(8))]), "'k' has an unknown type, 13"),
    "bool": (head([entry("k", BOOL, b"\2")]), "'k' holds a truth value that is neither"),
    "array": (
        head([entry("k", ARRAY, struct.pack("<IQ", U32, HUGE))]),
        rf"{HUGE} numbers in 'k'",
    ),
    "texts": (
        head([entry("k", ARRAY, struct.pack("<IQ", STRING, HUGE))]),
        rf"{HUGE} texts in 'k'",
    ),
    "array kind": (
        head([entry("k", ARRAY, struct.pack("<IQ", 77, 0))]),
        "'k' is an array of values of an unknown type, 77",
    ),
    "nested": (
        head([entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9)]),
        "'k' is an array of arrays",
    ),
    "alignment": (
        head([entry("general.alignment", U32, struct.pack("<I", 24))]),
        "'general.alignment' is 24; supported: powers of two",
    ),
    "no alignment": (head([entry("general.alignment", U32, bytes(4))]), "alignment' is 0"),
    "large alignment": (
        head([entry("general.alignment", U64, struct.pack("<Q", 2**40))]),
        f"alignment' is {2**40}",
    ),
    "alignment's type": (
        head([entry("general.alignment", STRING, text("32"))]),
        "alignment' is '32'",
    ),
    "no dimensions": (head((), [("a", (), 0, 0)]), "tensor 'a' has 0 dimensions"),
    "dimensions": (head((), [("a", (1,) * 5, 0, 0)]), "tensor 'a' has 5 dimensions"),
    "many dimensions": (
        head([text("a") + struct.pack("<I", 2**32 - 1)], counts=(1, 0), data=64),
        "has 4294967295 dimensions",
    ),
    "nothing": (head((), [("a", (4, 0), 0, 0)]), r"tensor 'a' has shape \(0, 4\)"),
    "row": (head((), [("a", (33,), 8, 0)], data=99), r"shape \(33,\); .*Q8_0 .*multiple of 32"),
    "overflow": (head((), [("a", (2**63, 2**62, 4), 0, 0)]), "tensor 'a' ends at byte"),
    "two tensors": (head((), ONE * 2, data=128), "tensor 'a' is there twice"),
    "offset": (head((), [("a", (8,), 0, 4)], data=64), "tensor 'a' begins at 4, no multiple"),
    "outside": (head((), [("a", (8,), 0, 2**62)], data=64), "tensor 'a' ends at byte"),
    "over another": (
        head((), [("a", (32,), 0, 0), ("b", (32,), 0, 32)], data=256),
        "tensor 'b' lies over tensor 'a'",
    ),
    "truncated": (head((), ONE, data=127), "tensor 'a' ends at byte .* it is truncated"),
}
UNSUPPORTED: dict[str, tuple[bytes, str]] = {
    "version 1": (head(version=1), "version 1 of GGUF; supported: 2 and 3"),
    "version 4": (head(version=4), "version 4"),
    "big-endian": (head(version=3 << 24), "big-endian GGUF"),
    "later": (head((), [("a", (256,), 40, 0)], data=999), "tensor 'a' .*type NVFP4.*Q4_K"),
    "unknown": (head((), [("a", (256,), 999, 0)], data=999), "tensor 'a' .*type 999"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str) -> None:
    content, what = WRONG[name]
    with pytest.raises(CheckpointError, match=what):
        read(tmp_path, content)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_named(tmp_path: Path, name: str) -> None:
    content, what = UNSUPPORTED[name]
    with pytest.raises(UnsupportedModelError, match=what):
        read(tmp_path, content)


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        GGUFFile(tmp_path / "nowhere.gguf")
    with pytest.raises(CheckpointError, match="not a regular file"):
        GGUFFile(tmp_path)


def test_a_file_that_shrinks_meanwhile(tmp_path: Path) -> None:
    made = read(tmp_path, head((), ONE, data=128))
    made.path.write_bytes(made.path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="ends within tensor 'a'"):
        made.data("a")


@pytest.mark.parametrize(
    ("key", "kind", "found"),
    [("n", str, "7, not of type str"), ("b", int, "True, not"), ("t", float, "'x', not of type f")],
)
def test_an_entry_of_another_type_is_named(
    tmp_path: Path, key: str, kind: type, found: str
) -> None:
    entries = [entry("n", U8, b"\7"), entry("b", BOOL, b"\1"), entry("t", STRING, text("x"))]
    made = read(tmp_path, head(entries))
    assert made.get("n", float) == 7.0
    assert made.get("none", int, 3) == 3
    with pytest.raises(CheckpointError, match=f"'{key}' is {found}"):
        made.get(key, kind)


def test_claims_take_no_memory(tmp_path: Path) -> None:
    """What a file of a few bytes says it holds, in all the ways there are."""
    claims: list[Any] = [
        head(counts=(HUGE, HUGE)),
        head([entry("k", ARRAY, struct.pack("<IQ", U8, 2**40))]),
        head([entry("k", ARRAY, struct.pack("<IQ", STRING, 2**32))]),
        head([entry("k", STRING, struct.pack("<Q", 2**40))]),
        head((), [("a", (2**20, 2**20), 0, 0)]),
    ]
    tracemalloc.start()
    for claim in claims:
        with pytest.raises(ModelError):
            read(tmp_path, claim)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20
