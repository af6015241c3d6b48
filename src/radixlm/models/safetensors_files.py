"""A checkpoint's safetensors files: what their headers say, and its tensors one by one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import open_regular
from radixlm.formats.weight_files import weight_files
from radixlm.models.cuts import Cut
from radixlm.products.quantized import QuantizedWeight

FLOATS = ("F32", "BF16", "F16", "F64")


class Checkpoint(Protocol):
    """A source of a model's weights, by the names that transformers gives them.

    where: for messages. is_quantized: whether some weights are.
    """

    where: str

    @property
    def is_quantized(self) -> bool: ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of all weights, in the order in which they are best read."""
        ...

    def read(self, name: str) -> Tensor | QuantizedWeight:
        """Raises CheckpointError that names the tensor or the file."""
        ...


class CutCheckpoint(Checkpoint, Protocol):
    """One of whose weights a part can be read."""

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        """Read a part of a weight; of those in floats no more than the part is read. Raises
        CheckpointError; ConfigError where the part is none.
        """
        ...


class StoredTensor(NamedTuple):
    """The place of a tensor, its shape in elements, and its type by safetensors' name."""

    shard: Path
    shape: tuple[int, ...]
    dtype: str

    def read(self, name: str) -> Tensor:
        # Opened anew for each tensor: a handle keeps every page that was read through it
        # mapped, so at its end a second copy of the shard would be resident.
        with open_shard(self.shard) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def read_cut(self, name: str, cut: Cut) -> Tensor:
        """No more than the part, from the file's mapped memory."""
        before = (slice(None),) * cut.dim
        with open_shard(self.shard) as file:
            lazy = file.get_slice(name)
            parts = [lazy[(*before, slice(start, stop))] for start, stop in cut.stretches]
        return torch.cat(parts, cut.dim) if len(parts) > 1 else parts[0]

    def read_part(self, name: str, part: int) -> Tensor:
        """Read a part of the first dimension."""
        with open_shard(self.shard) as file:
            tensor: Tensor = file.get_slice(name)[part]
            return tensor


class PlainCheckpoint:
    """A folder of safetensors files with weights in floats, see `Checkpoint`."""

    is_quantized = False

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._stored = survey(folder)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._stored.items()}

    def read(self, name: str) -> Tensor:
        return self._stored[name].read(name)

    def read_cut(self, name: str, cut: Cut) -> Tensor:
        return self._stored[name].read_cut(name, cut)


def survey(folder: Path, dtypes: Collection[str] = FLOATS) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by name, in the order of the files. dtypes: those that it may
    have, by safetensors' names.

    Raises CheckpointError for missing, unreadable or truncated files, files outside of the folder,
    tensors that are stored twice, and tensors of other types.
    """
    found: dict[str, StoredTensor] = {}
    for shard in weight_files(folder):
        with open_shard(shard) as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                if name in found:
                    other = found[name].shard.name
                    raise CheckpointError(f"tensor {name!r} is in {other} and in {shard.name}")
                header = file.get_slice(name)
                dtype = header.get_dtype()
                if dtype not in dtypes:
                    raise CheckpointError(
                        f"tensor {name!r} in {shard.name} is of type {dtype}; "
                        f"supported: {', '.join(dtypes)}"
                    )
                found[name] = StoredTensor(shard, tuple(header.get_shape()), dtype)
    return found


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """A safetensors handle; what goes wrong while it is open is a CheckpointError."""
    try:
        open_regular(path).close()  # the library would wait for a pipe's other end
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}); fetch it again"
        ) from error
