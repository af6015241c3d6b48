"""How compressed-tensors, GPTQ and AWQ store a weight, and what `quantization_config` says of it.

    format               codes                            what goes with them, by groups of inputs
    pack-quantized       weight_packed (out, in words)    weight_scale (out, groups), weight_shape
    int-, naive-...      weight (out, in), int8           weight_scale
    GPTQ                 qweight (in words, out)          scales (groups, out), qzeros, g_idx
    AWQ                  qweight (in, out words)          scales (groups, out), qzeros

A word is an int32 of 8 codes in 4 bits or 4 in 8 bits, the first in its lowest bits; AWQ has an
order of its own. Everywhere weight = scale * (code - zero point).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.models.config_fields import Size, supported
from radixlm.models.safetensors_files import StoredTensor
from radixlm.products.quantized import MIDDLE, QuantizedWeight

# Where the fields stand in config.json.
PLACE = "quantization_config."
# The shapes that a part may have, by each type that it may have, as safetensors names types.
Types = Mapping[str, Sequence[tuple[int, ...]]]
Bits = Annotated[Literal[4, 8], supported("4, 8")]
GroupSize = Annotated[
    Size | Annotated[int, Field(strict=True, ge=-1, le=-1)],
    supported("a number of inputs, or -1 for all"),
]


class Scheme(NamedTuple):
    """group: inputs that share a scale; 0: all of a row. symmetric: all zero points are the middle
    of the codes.
    """

    bits: int
    group: int
    symmetric: bool

    def groups(self, inputs: int) -> int:
        """Raises ValueError where they are not whole."""
        if self.group and inputs % self.group:
            raise ValueError(f"{inputs} inputs are no whole number of groups of {self.group}")
        return inputs // self.group if self.group else 1

    def weight(
        self, name: str, codes: Tensor, scales: Tensor, zero_points: Tensor | None
    ) -> QuantizedWeight:
        """codes: (out, in), uint8; scales, zero_points: (out, groups), these uint8 or None."""
        middle = MIDDLE[self.bits]
        if zero_points is not None and self.symmetric:
            if (zero_points != middle).any():
                raise CheckpointError(
                    f"the zero points of tensor {name!r} are not all {middle}, but config.json "
                    "says that it is symmetric"
                )
            zero_points = None
        scales, offsets = scales.float().contiguous(), None
        if zero_points is not None:
            offsets = (scales * (middle - zero_points.float())).contiguous()
        return QuantizedWeight(codes.contiguous(), scales, offsets, self.bits, middle)


class WeightInParts(NamedTuple):
    """A weight (out, in) of several tensors. read: makes it; raises CheckpointError."""

    shape: tuple[int, int]
    read: Callable[[], QuantizedWeight]


class Packing(Protocol):
    """How a format stores a weight, in tensors `<module>.<part>`."""

    @property
    def codes(self) -> str:
        """The part by which a quantized weight is known."""
        ...

    @property
    def optional(self) -> frozenset[str]:
        """The parts that may be missing."""
        ...

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        """(out, in), from the shape of the part with the codes."""
        ...

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        """All of a weight (out, in). Raises ValueError where such a weight can not be."""
        ...

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        """Make the weight of parts that have the right shapes. Raises CheckpointError,
        UnsupportedModelError.
        """
        ...


def check_part(name: str, tensor: StoredTensor, types: Types) -> None:
    """Raises CheckpointError, with the tensor's name, for another type or shape."""
    check_type(name, tensor, types)
    shapes = types[tensor.dtype]
    if tensor.shape not in shapes:
        raise CheckpointError(
            f"tensor {name!r} has shape {tensor.shape}; with the codes' shape and config.json it "
            f"should be {shapes[0]}"
        )


def taken(stored: dict[str, StoredTensor], name: str, needed_by: str, types: Types) -> StoredTensor:
    """A part of a weight, taken from the tensors. Raises CheckpointError as `check_part`, and where
    it is missing.
    """
    if (tensor := stored.pop(name, None)) is None:
        raise CheckpointError(f"tensor {name!r} is missing: {needed_by!r} needs it")
    check_part(name, tensor, types)
    return tensor


def check_type(name: str, tensor: StoredTensor, types: Collection[str]) -> None:
    if tensor.dtype not in types:
        raise CheckpointError(
            f"tensor {name!r} is of type {tensor.dtype}; supported: {', '.join(types)}"
        )


def typed(types: Collection[str], *shapes: tuple[int, ...]) -> Types:
    """A part of any of these types and shapes."""
    return dict.fromkeys(types, shapes)


def floats(*shape: int) -> Types:
    return typed(("F16", "BF16", "F32"), shape)


def bytes_of(words: Tensor) -> Tensor:
    """(rows, words) int32 -> (rows, words, 4) uint8, the lowest bits first."""
    # Of one row or column whatever stride it has counts as contiguous, but for `view` of a type.
    return words.flatten().view(torch.uint8).view(*words.shape, 4)


def unpacked(words: Tensor, bits: int) -> Tensor:
    """(rows, words) int32 -> (rows, codes) uint8."""
    packed = bytes_of(words)
    if bits == 8:
        return packed.flatten(1)
    codes = packed.new_empty(*packed.shape, 2)
    torch.bitwise_and(packed, 15, out=codes[..., 0])
    torch.bitwise_right_shift(packed, 4, out=codes[..., 1])
    return codes.flatten(1)
