"""A checkpoint's safetensors files: what their headers say, and its tensors one by one."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from radixlm.core.errors import CheckpointError, counted
from radixlm.formats.files import open_regular
from radixlm.formats.weight_files import text_tensors, weight_files, weight_map
from radixlm.models.cuts import Cut
from radixlm.products.quantized import QuantizedWeight

_logger = logging.getLogger("radixlm.models")

_NAMES_SHOWN = 5
FLOATS = ("F32", "BF16", "F16", "F64")
# Tensors without a part in the next token: buffers that the config implies, scales of a cache in 8
# bits, heads of training and of classifiers, layers that propose further tokens.
_STRAY = re.compile(
    r"(.*\.)?(rotary_emb\.\w+|[kvq]_scale|kv_scale|position_ids|masked_bias"
    r"|slope_rate|(query|key|diagonal)_decay)|(model\.)?(mtp|v_head|value_head|score)\..*"
)

# What models of states alone call a decoder, and Nemotron-H.
_BACKBONE = re.compile(r"(?:backbone|model)\.(embeddings?\.)?")
_DIGITS = re.compile(r"\d+", re.ASCII)


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
    """The place of a tensor, its name there, its shape in elements, and its type by safetensors'
    name.
    """

    shard: Path
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        bits = _DIGITS.search(self.dtype)
        return math.prod(self.shape) * (8 if bits is None else int(bits[0])) // 8

    def read(self) -> Tensor:
        # Opened anew for each tensor: a handle keeps every page that was read through it
        # mapped, so at its end a second copy of the shard would be resident.
        with open_shard(self.shard) as file:
            tensor: Tensor = file.get_tensor(self.name)
            return tensor

    def read_cut(self, cut: Cut) -> Tensor:
        """No more than the part, from the file's mapped memory."""
        before = (slice(None),) * cut.dim
        with open_shard(self.shard) as file:
            lazy = file.get_slice(self.name)
            parts = [lazy[(*before, slice(start, stop))] for start, stop in cut.stretches]
        return torch.cat(parts, cut.dim) if len(parts) > 1 else parts[0]

    def read_part(self, part: int) -> Tensor:
        """Read a part of the first dimension."""
        with open_shard(self.shard) as file:
            tensor: Tensor = file.get_slice(self.name)[part]
            return tensor


class PlainCheckpoint:
    """A folder of safetensors files with weights in floats, see `Checkpoint`."""

    is_quantized = False

    def __init__(self, folder: Path, beside: tuple[str, ...] = ()) -> None:
        """beside: see `surveyed`."""
        self.where = str(folder)
        self._stored = survey(folder, beside=beside)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._stored.items()}

    def read(self, name: str) -> Tensor:
        return self._stored[name].read()

    def read_cut(self, name: str, cut: Cut) -> Tensor:
        return self._stored[name].read_cut(cut)


def survey(
    folder: Path, dtypes: Collection[str] = FLOATS, beside: tuple[str, ...] = ()
) -> dict[str, StoredTensor]:
    """Survey the checkpoint as `surveyed`, with a line in the log on what is left out."""
    found, stray = surveyed(folder, dtypes, beside)
    if stray:
        _logger.info("not needed, and not read: %s", listed(stray))
    return found


def surveyed(
    folder: Path, dtypes: Collection[str] = (), beside: tuple[str, ...] = ()
) -> tuple[dict[str, StoredTensor], list[str]]:
    """Every tensor of the checkpoint by name, in the order of the files; and the names of those
    that are left out: stray ones, and those of what is no text. dtypes: those that tensors may
    have, by safetensors' names; empty: any. beside: where names begin that are kept all the same.

    Where there is an index, a tensor is in the shard that this names. Raises CheckpointError for
    missing, unreadable or truncated files, files outside of the folder, tensors of other types, and
    two of one weight.
    """
    found: dict[str, StoredTensor] = {}
    stray = []
    indexed, wanted = weight_map(folder), text_tensors(folder, beside)
    for shard in weight_files(folder, beside):
        with open_shard(shard) as file:
            for stored in file.keys():  # noqa: SIM118 - a handle, not a dict
                name = _usual(stored if wanted is None else wanted.get(stored, ""))
                if not name or (_STRAY.fullmatch(name) and not stored.startswith(beside)):
                    stray.append(stored)
                elif indexed is None or indexed.get(stored) == shard:
                    if name in found and found[name].name != stored:
                        both = f"{found[name].name!r} and {stored!r}"
                        raise CheckpointError(f"tensors {both} are the same weight")
                    found[name] = _stored(shard, stored, file.get_slice(stored), dtypes)
    # Those of shards that have no text, which are not opened.
    read = {*stray, *(its.name for its in found.values())}
    return found, stray + [name for name in indexed or () if name not in read]


def _usual(name: str) -> str:
    match = _BACKBONE.match(name)
    if match is None:
        return name
    return f"model.{'embed_tokens.' if match[1] else ''}{name[match.end() :]}"


def listed(names: Sequence[str]) -> str:
    """The number of tensors, and the first names."""
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{counted(len(names), 'tensor')}: {shown}" + (f" and {more} more" if more > 0 else "")


def _stored(shard: Path, name: str, header: Any, dtypes: Collection[str]) -> StoredTensor:
    dtype = header.get_dtype()
    if dtypes and dtype not in dtypes:
        raise CheckpointError(
            f"tensor {name!r} in {shard.name} is of type {dtype}; supported: {', '.join(dtypes)}"
        )
    return StoredTensor(shard, name, tuple(header.get_shape()), dtype)


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
