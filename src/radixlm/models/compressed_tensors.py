"""Weights as compressed-tensors stores them, and llm-compressor with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.models.config_fields import Fields, Flag, Size, read, supported, unsupported
from radixlm.models.float_weights import OF_ALL, OF_OUTPUTS, Block, Float4, Float8
from radixlm.models.quantized_parts import (
    PLACE,
    Bits,
    GroupSize,
    Packing,
    Scheme,
    Types,
    floats,
    typed,
    unpacked,
)
from radixlm.products.quantized import MIDDLE, QuantizedWeight

_Unused = Annotated[None, supported("null")]


def compressed_tensors(section: Mapping[str, Any]) -> Packing:
    config = read(_CompressedTensors, section, PLACE)
    [(key, values)] = config.config_groups.items()
    place = f"{PLACE}config_groups.{key:.50}."
    group = read(_ConfigGroup, values, place)
    its = group.format or config.format
    if its in _IN_FLOATS or (its == "naive-quantized" and group.weights.get("type") == "float"):
        return read(_FloatWeights, group.weights, f"{place}weights.").packing(its)
    read(_Activations, group.input_activations, f"{place}input_activations.")
    scheme, one_scale = read(_Weights, group.weights, f"{place}weights.").scheme()
    return (_PackQuantized if its == "pack-quantized" else _IntQuantized)(
        scheme, one_scale=one_scale
    )


class _Activations(Fields):
    """They are rounded as the products here do it, which is finer than or the same as by token."""

    num_bits: Annotated[Literal[8], supported("8")] = 8
    type: Annotated[Literal["int"], supported("int")] = "int"
    dynamic: Annotated[Literal[True], supported("true")] = True


class _Weights(Fields):
    num_bits: Bits
    type: Annotated[Literal["int"], supported("int")] = "int"
    symmetric: Flag = True
    strategy: Annotated[
        Literal["group", "channel", "tensor"] | None, supported("group, channel, tensor")
    ] = None
    group_size: GroupSize | None = None
    block_structure: _Unused = None
    actorder: Annotated[
        Literal["weight", "static", False] | None, supported("weight, static or null")
    ] = None
    dynamic: Annotated[Literal[False], supported("false")] = False

    def scheme(self) -> tuple[Scheme, bool]:
        """The scheme of a weight, and whether there is one scale for all of it."""
        size = self.group_size
        by_size = "tensor" if size is None else "channel" if size == -1 else "group"
        strategy = self.strategy or by_size
        if (strategy == "group") != (by_size == "group"):
            raise unsupported(
                f"{PLACE}config_groups.weights.group_size", size, f"what is of strategy {strategy}"
            )
        group = size or 0 if strategy == "group" else 0
        return Scheme(self.num_bits, group, self.symmetric), strategy == "tensor"


_Format = Annotated[
    Literal[
        "pack-quantized",
        "int-quantized",
        "naive-quantized",
        "float-quantized",
        "nvfp4-pack-quantized",
        "mxfp4-pack-quantized",
    ],
    supported(
        "pack-quantized, int-quantized, naive-quantized, float-quantized, nvfp4-pack-quantized, "
        "mxfp4-pack-quantized"
    ),
]
_IN_FLOATS = ("float-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized")


class _FloatWeights(Fields):
    """Activations are multiplied as they are, whatever they were to be rounded to."""

    num_bits: Bits
    type: Annotated[Literal["float"], supported("float")]
    symmetric: Annotated[Literal[True], supported("true")] = True
    strategy: Annotated[
        Literal["tensor", "channel", "group", "block", "tensor_group"],
        supported("tensor, channel, group, block, tensor_group"),
    ]
    group_size: Annotated[Size, supported("a number of inputs")] | None = None
    block_structure: Block | None = None

    def packing(self, its: str) -> Packing:
        codes = "weight_packed"
        if its == "nvfp4-pack-quantized":
            return Float4(codes, self.group_size or 16, "weight_global_scale", divides=True)
        if its == "mxfp4-pack-quantized":
            return Float4(codes, self.group_size or 32)
        if self.num_bits != 8:
            raise unsupported(f"{PLACE}config_groups.weights.num_bits", self.num_bits, "8")
        block = {"tensor": OF_ALL, "channel": OF_OUTPUTS, "block": self.block_structure}.get(
            self.strategy, (1, self.group_size) if self.group_size else None
        )
        if block is None:
            raise unsupported(
                f"{PLACE}config_groups.weights.strategy", self.strategy, "one with its sizes"
            )
        return Float8(block, "weight_scale")


class _ConfigGroup(Fields):
    weights: dict[str, Any]
    input_activations: dict[str, Any] | None = None
    output_activations: _Unused = None
    format: _Format | None = None


class _Sparsity(Fields):
    format: Annotated[Literal["dense"], supported("dense")] = "dense"


class _CompressedTensors(Fields):
    """A reader of compressed-tensors' formats. The modules that are meant (`targets`, `ignore`) are
    known by their tensors. Keys and values are kept as `--kv-cache-dtype` says.
    """

    format: _Format
    config_groups: Annotated[
        dict[str, Any], Field(min_length=1, max_length=1), supported("one group")
    ]
    sparsity_config: _Sparsity | None = None
    moe_sparsity_config: _Unused = None
    transform_config: Annotated[
        Annotated[dict[str, Any], Field(max_length=0)] | None, supported("null")
    ] = None


class _PackQuantized:
    """Zero points are packed along outputs, or plain, as older versions wrote them."""

    codes = "weight_packed"
    optional: frozenset[str] = frozenset()

    def __init__(self, scheme: Scheme, *, one_scale: bool) -> None:
        self._scheme, self._one_scale = scheme, one_scale

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner * 32 // self._scheme.bits

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        bits = self._scheme.bits
        return {
            self.codes: typed(("I32",), (outputs, inputs * bits // 32)),
            "weight_shape": typed(("I64", "I32"), (2,)),
            **self.scales(outputs, inputs, -(-outputs * bits // 32)),
        }

    def scales(self, outputs: int, inputs: int, words: int = 0) -> dict[str, Types]:
        """words: that the zero points of all outputs take; 0: they are never packed."""
        groups = self._scheme.groups(inputs)
        shape = (1,) if self._one_scale else (outputs, groups)
        made: dict[str, Types] = {"weight_scale": floats(*shape)}
        if not self._scheme.symmetric:
            packed = typed(("I32",), (words, groups)) if words and not self._one_scale else {}
            made["weight_zero_point"] = {**typed(("I8",), shape), **packed}
        return made

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = unpacked(parts[self.codes], self._scheme.bits)
        if parts["weight_shape"].tolist() != list(codes.shape):
            raise CheckpointError(
                f"tensor {name!r} has the shape {tuple(codes.shape)}, but weight_shape says "
                f"{tuple(parts['weight_shape'].tolist())}"
            )
        return self._weight(name, codes, parts)

    def _weight(self, name: str, codes: Tensor, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        scales, points = parts["weight_scale"], parts.get("weight_zero_point")
        outputs, bits = codes.shape[0], self._scheme.bits
        if points is not None:
            if points.dtype == torch.int8:
                points = _unsigned(f"{name}_zero_point", points, bits)
            else:
                points = unpacked(points.t(), bits)[:, :outputs].t()
        if self._one_scale:
            scales = scales.expand(outputs, 1)
            points = None if points is None else points.expand(outputs, 1)
        return self._scheme.weight(name, codes, scales, points)


class _IntQuantized(_PackQuantized):
    codes = "weight"

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        return {self.codes: typed(("I8",), (outputs, inputs)), **self.scales(outputs, inputs)}

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = _unsigned(name, parts[self.codes], self._scheme.bits)
        return self._weight(name, codes, parts)


def _unsigned(name: str, signed: Tensor, bits: int) -> Tensor:
    """int8 around 0 -> uint8 around the middle."""
    codes = signed.view(torch.uint8) + MIDDLE[bits]
    if bits < 8 and (codes >= 1 << bits).any():
        raise CheckpointError(f"tensor {name!r} holds numbers of more than {bits} bits")
    return codes
