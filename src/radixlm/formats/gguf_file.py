"""GGUF, llama.cpp's format of one file: what its head says, and the bytes of its tensors.

    magic, version, number of tensors, of entries | entries | tensors' names and places | data

A large model's is often split: NAME-00001-of-0000N.gguf has the entries and some tensors, the
others have further tensors.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, Keys
from gguf import GGMLQuantizationType as TensorType
from gguf import GGUFValueType as ValueType
from numpy.typing import NDArray

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.files import MOST_BYTES, open_regular

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_ALIGNMENT = 1 << 16
_MOST_DIMENSIONS, _LONGEST_NAME = 4, 1 << 16
# Bytes that an entry and a tensor take at the least.
_LEAST_ENTRY, _LEAST_TENSOR = 13, 32
_NUMBERS: Mapping[int, str] = {
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "|b1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}


class BlockType(NamedTuple):
    """values: that a block holds; nbytes: that it has."""

    name: str
    values: int
    nbytes: int


_READ = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0"),
)
_NAMES = {int(each): each.name for each in TensorType}
# By ggml's numbers.
TYPES: Mapping[int, BlockType] = {
    int(each): BlockType(each.name, *GGML_QUANT_SIZES[each])
    for each in map(TensorType.__getitem__, _READ)
}


class GGUFTensor(NamedTuple):
    """shape: rows first. start: in the file at path. nbytes: all of it."""

    type: BlockType
    shape: tuple[int, ...]
    start: int
    nbytes: int
    path: Path


_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.ASCII)


def part_of_split(path: Path, number: int = 1) -> Path:
    """Another part of a split file, the first if not said; a file that is no part is its own."""
    found = _PART.fullmatch(path.name)
    return path.with_name(f"{found[1]}-{number:05d}-of-{found[3]}.gguf") if found else path


class GGUFFile:
    """A file's head, or those of all parts of a split one; the data is read tensor by tensor.

    metadata: numbers, texts, lists of texts, arrays of numbers, by their keys.
    tensors: by their names, in the order in which they lie in the files. paths: of these.
    """

    def __init__(self, path: Path) -> None:
        """path: of any part. Raises CheckpointError that names the key or the tensor,
        UnsupportedModelError for types of tensors that are not read. Memory: some times the head's
        size, 64 MiB at most.
        """
        self.path = part_of_split(path)
        self.paths = [self.path]
        self.metadata, self.tensors = _head_of(self.path)
        parts = self.get(Keys.Split.LLM_KV_SPLIT_COUNT, int, 1)
        for number in range(2, parts + 1):
            part = part_of_split(self.path, number)
            if part == self.path or f"-of-{parts:05d}." not in part.name:
                raise self.wrong(
                    Keys.Split.LLM_KV_SPLIT_COUNT, f"{parts}, but its name says something else"
                )
            tensors = _head_of(part)[1]
            if twice := self.tensors.keys() & tensors.keys():
                raise self.wrong(min(twice), f"in {part.name}, too")
            self.paths.append(part)
            self.tensors |= tensors
        count = self.get(Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, int, len(self.tensors))
        if count != len(self.tensors):
            raise self.wrong(
                Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT, f"{count}, but there are {len(self.tensors)}"
            )

    def data(self, name: str, part: int | None = None) -> NDArray[np.uint8]:
        """(nbytes,) of a tensor, or of one part of its first dimension, in memory of its own.
        Raises CheckpointError.
        """
        tensor = self.tensors[name]
        nbytes, start = tensor.nbytes, tensor.start
        if part is not None:
            nbytes //= tensor.shape[0]
            start += part * nbytes
        try:
            with open_regular(tensor.path) as file:
                found = np.fromfile(file, np.uint8, nbytes, offset=start)
        except (OSError, ValueError, MemoryError) as error:
            raise CheckpointError(f"tensor {name!r} in {tensor.path}: {error}") from None
        if found.size != nbytes:
            raise CheckpointError(f"{tensor.path} ends within tensor {name!r}; fetch it again")
        return found

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """An entry of a kind; a float may be written as an integer. Raises CheckpointError for
        another one.
        """
        value = self.metadata.get(key)
        if value is None:
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.wrong(key, f"{value!r:.80}, not of type {kind.__name__}")
        return value

    def number(self, key: str) -> float | None:
        """The shortest decimal of a float32: 1e-5 was stored, not 9.999999747378752e-06."""
        value: float | None = self.get(key, float)
        return None if value is None else float(str(np.float32(value)))

    def wrong(self, what: str, text: str) -> CheckpointError:
        """what: a key or a tensor, and text what is wrong, to be read after it."""
        return CheckpointError(f"{self.path}: {what!r:.200} is {text}")


def _head_of(path: Path) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    try:
        with open_regular(path) as file:
            return _Head(file, path).read()
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


class _Head:
    """Reads a file from its beginning on; no length is believed before the file is that long."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file, self._path = file, path
        self._size = os.fstat(file.fileno()).st_size
        self._left = min(self._size, MOST_BYTES)

    def read(self) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
        tensors, entries = self._opening()
        metadata = self._metadata(entries)
        places = [self._tensor() for _ in range(self._counted(tensors, _LEAST_TENSOR, "tensors"))]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if (
            type(alignment) is not int
            or not 0 < alignment <= _MOST_ALIGNMENT
            or (alignment & (alignment - 1))
        ):
            raise self._error(
                f"'general.alignment' is {alignment!r:.80}; supported: powers of two up to "
                f"{_MOST_ALIGNMENT}"
            )
        return metadata, self._placed(places, alignment)

    def _opening(self) -> tuple[int, int]:
        """How many tensors and entries there are."""
        magic = self._bytes(len(MAGIC), "the file")
        if magic != MAGIC:
            raise self._error(f"it is not a GGUF file: it begins with {magic!r}, not {MAGIC!r}")
        version = self._integer("I", "the version")
        if version & 0xFFFF == 0 and version:
            raise UnsupportedModelError(
                f"{self._path} is a big-endian GGUF file, which is not supported; files for "
                "ordinary machines are little-endian"
            )
        if version not in _VERSIONS:
            raise UnsupportedModelError(
                f"{self._path} has version {version} of GGUF; supported: 2 and 3"
            )
        return self._integer("Q", "the number of tensors"), self._integer("Q", "of entries")

    def _metadata(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(self._counted(count, _LEAST_ENTRY, "entries of metadata")):
            key = self._text("a key", _LONGEST_NAME)
            if key in found:
                raise self._error(f"the key {key!r:.200} is there twice")
            found[key] = self._value(self._integer("I", key), key)
        return found

    def _value(self, kind: int, key: str) -> Any:
        if kind == ValueType.STRING:
            return self._text(key)
        if kind in _NUMBERS:
            return self._numbers(kind, 1, key).tolist()[0]
        if kind != ValueType.ARRAY:
            raise self._error(f"{key!r:.200} has an unknown type, {kind}")
        kind, count = self._integer("I", key), self._integer("Q", key)
        if kind == ValueType.STRING:
            return self._texts(self._counted(count, 8, f"texts in {key!r}"), key, MOST_BYTES)
        if kind in _NUMBERS:
            return self._numbers(kind, count, key)
        what = "arrays" if kind == ValueType.ARRAY else f"values of an unknown type, {kind}"
        raise self._error(f"{key!r:.200} is an array of {what}, which no model has")

    def _numbers(self, kind: int, count: int, key: str) -> NDArray[Any]:
        dtype = np.dtype(_NUMBERS[kind])
        self._counted(count, dtype.itemsize, f"numbers in {key!r}")
        raw = self._bytes(count * dtype.itemsize, key)
        if kind == ValueType.BOOL and raw.strip(b"\0\1"):
            raise self._error(f"{key!r:.200} holds a truth value that is neither 0 nor 1")
        return np.frombuffer(raw, dtype)

    def _tensor(self) -> tuple[str, BlockType, tuple[int, ...], int]:
        """Name, type, shape, and where it begins in the data."""
        name = self._text("the name of a tensor", _LONGEST_NAME)
        dimensions = self._integer("I", name)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self._error(
                f"tensor {name!r:.200} has {dimensions} dimensions; supported: 1 to "
                f"{_MOST_DIMENSIONS}"
            )
        shape = tuple(self._integer("Q", name) for _ in range(dimensions))[::-1]
        number = self._integer("I", name)
        found = TYPES.get(number)
        if found is None:
            known = ", ".join(each.name for each in TYPES.values())
            raise UnsupportedModelError(
                f"tensor {name!r:.200} in {self._path.name} is of type "
                f"{_NAMES.get(number, number)}, which is not supported; supported: {known}"
            )
        if 0 in shape or shape[-1] % found.values:
            raise self._error(
                f"tensor {name!r:.200} has shape {shape}; a row of type {found.name} holds a "
                f"multiple of {found.values}"
            )
        return name, found, shape, self._integer("Q", name)

    def _placed(
        self, places: list[tuple[str, BlockType, tuple[int, ...], int]], alignment: int
    ) -> dict[str, GGUFTensor]:
        """Tensors lie within the file, none over another."""
        base = -(-self._file.tell() // alignment) * alignment
        found: dict[str, GGUFTensor] = {}
        end, before = base, ""
        for name, kind, shape, offset in sorted(places, key=lambda place: place[3]):
            nbytes, start = math.prod(shape) // kind.values * kind.nbytes, base + offset
            if name in found:
                raise self._error(f"tensor {name!r:.200} is there twice")
            if offset % alignment:
                raise self._error(
                    f"tensor {name!r:.200} begins at {offset}, no multiple of {alignment}"
                )
            if start < end:
                raise self._error(f"tensor {name!r:.200} lies over tensor {before!r:.200}")
            if start + nbytes > self._size:
                raise self._error(
                    f"tensor {name!r:.200} ends at byte {start + nbytes}, the file at "
                    f"{self._size}; it is truncated: fetch it again"
                )
            found[name] = GGUFTensor(kind, shape, start, nbytes, self._path)
            end, before = start + nbytes, name
        return found

    def _counted(self, count: int, size: int, what: str) -> int:
        """count, where what is left of the head has room for that, each of `size` bytes."""
        if count * size > self._left:
            raise self._error(f"it is too short for {count} {what:.200}, or damaged")
        return count

    def _text(self, what: str, most: int = MOST_BYTES) -> str:
        return self._texts(1, what, most)[0]

    def _texts(self, count: int, what: str, most: int) -> list[str]:
        """A vocabulary has hundreds of thousands: no more is done for each than must be."""
        found: list[bytes] = []
        read, left = self._file.read, self._left
        for _ in range(count):
            head = read(8)
            length = int.from_bytes(head, "little")
            left -= 8 + length
            if length > most:
                raise self._error(f"{what!r:.200} has {length} bytes, more than {most}")
            found.append(read(length) if left >= 0 else b"")
            if left < 0 or len(head) < 8 or len(found[-1]) < length:
                raise self._ended(what)
        self._left = left
        try:
            return [text.decode() for text in found]
        except UnicodeDecodeError as error:
            raise self._error(f"{what!r:.200} is not valid UTF-8: {error}") from None

    def _integer(self, kind: str, what: str) -> int:
        found: int = struct.unpack(f"<{kind}", self._bytes(struct.calcsize(kind), what))[0]
        return found

    def _bytes(self, count: int, what: str) -> bytes:
        found = self._file.read(count) if count <= self._left else b""
        if len(found) != count:
            raise self._ended(what)
        self._left -= count
        return found

    def _ended(self, what: str) -> CheckpointError:
        return self._error(f"it ends within {what!r:.200}, or is damaged; fetch it again")

    def _error(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {text}")
