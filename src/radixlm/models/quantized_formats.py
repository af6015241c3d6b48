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

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from pydantic import AliasChoices, BeforeValidator, Field
from torch import Tensor

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.layers.quantized import MIDDLE, QuantizedWeight
from radixlm.models.hf_config import Fields, Flag, Size, read, supported, unsupported

PLACE = "quantization_config."
# A part's shape by each type that it may have, as safetensors names types.
Types = Mapping[str, tuple[int, ...]]
# Where AWQ puts the eight columns of a word: the first in its lowest bits, the second in the fifth
# place, and so on.
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
_ONES = {4: 0x11111111, 8: 0x01010101}

_Bits = Annotated[Literal[4, 8], supported("4, 8")]
_Group = Annotated[
    Size | Annotated[int, Field(strict=True, ge=-1, le=-1)],
    supported("a number of inputs, or -1 for all"),
]
_Unused = Annotated[None, supported("null")]


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
            offsets = scales * (middle - zero_points.float())
        weight = QuantizedWeight(codes.contiguous(), scales, offsets, self.bits, middle)
        weight.check(name)
        return weight


class Packing(Protocol):
    """How a format stores a weight, in tensors `<module>.<part>`."""

    @property
    def codes(self) -> str:
        """The part by which a quantized weight is known."""
        ...

    @property
    def optional(self) -> frozenset[str]: ...

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        """(out, in), from the shape of the part with the codes."""
        ...

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        """All of a weight (out, in). Raises ValueError where such a weight can not be."""
        ...

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        """Of parts that have the shapes. Raises CheckpointError, UnsupportedModelError."""
        ...


def packing_of(section: Mapping[str, Any]) -> Packing:
    """Read `quantization_config`. Raises UnsupportedModelError that names the field."""
    method = str(section.get("quant_method")).lower()
    if method not in _METHODS:
        raise unsupported(f"{PLACE}quant_method", method, ", ".join(_METHODS))
    return _METHODS[method](section)


def _floats(*shape: int) -> Types:
    return dict.fromkeys(("F16", "BF16", "F32"), shape)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """(rows, words) int32 -> (rows, codes) uint8."""
    packed = words.contiguous().view(torch.uint8)
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), dim=2).flatten(1)


def _unsigned(name: str, signed: Tensor, bits: int) -> Tensor:
    """int8 around 0 -> uint8 around the middle."""
    codes = signed.view(torch.uint8) + MIDDLE[bits]
    if bits < 8 and (codes >= 1 << bits).any():
        raise CheckpointError(f"tensor {name!r} holds numbers of more than {bits} bits")
    return codes


class _Activations(Fields):
    """They are rounded as the products here do it, which is finer than or the same as by token."""

    num_bits: Annotated[Literal[8], supported("8")]
    type: Annotated[Literal["int"], supported("int")] = "int"
    dynamic: Annotated[Literal[True], supported("true")] = True


class _Weights(Fields):
    num_bits: _Bits
    type: Annotated[Literal["int"], supported("int")] = "int"
    symmetric: Flag = True
    strategy: Annotated[
        Literal["group", "channel", "tensor"] | None, supported("group, channel, tensor")
    ] = None
    group_size: _Group | None = None
    block_structure: _Unused = None
    actorder: Annotated[
        Literal["weight", "static", False] | None, supported("weight, static or null")
    ] = None
    dynamic: Annotated[Literal[False], supported("false")] = False

    def scheme(self) -> tuple[Scheme, bool]:
        """And whether there is one scale for all of a weight."""
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
    Literal["pack-quantized", "int-quantized", "naive-quantized"],
    supported("pack-quantized, int-quantized, naive-quantized"),
]


class _ConfigGroup(Fields):
    weights: _Weights
    input_activations: _Activations | None = None
    output_activations: _Unused = None
    format: _Format | None = None


class _Sparsity(Fields):
    format: Annotated[Literal["dense"], supported("dense")] = "dense"


class _CompressedTensors(Fields):
    """Which modules are meant (`targets`, `ignore`) the tensors say themselves."""

    format: _Format
    config_groups: Annotated[
        dict[str, Any], Field(min_length=1, max_length=1), supported("one group")
    ]
    kv_cache_scheme: _Unused = None
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
            self.codes: {"I32": (outputs, inputs * bits // 32)},
            "weight_shape": dict.fromkeys(("I64", "I32"), (2,)),
            **self.scales(outputs, inputs, -(-outputs * bits // 32)),
        }

    def scales(self, outputs: int, inputs: int, words: int = 0) -> dict[str, Types]:
        """words: that the zero points of all outputs take; 0: they are never packed."""
        groups = self._scheme.groups(inputs)
        shape = (1,) if self._one_scale else (outputs, groups)
        made: dict[str, Types] = {"weight_scale": _floats(*shape)}
        if not self._scheme.symmetric:
            packed = {"I32": (words, groups)} if words and not self._one_scale else {}
            made["weight_zero_point"] = {"I8": shape, **packed}
        return made

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = _unpacked(parts[self.codes], self._scheme.bits)
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
                points = _unsigned(name, points, bits)
            else:
                points = _unpacked(points.t(), bits)[:, :outputs].t()
        if self._one_scale:
            scales = scales.expand(outputs, 1)
            points = None if points is None else points.expand(outputs, 1)
        return self._scheme.weight(name, codes, scales, points)


class _IntQuantized(_PackQuantized):
    codes = "weight"

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        return {self.codes: {"I8": (outputs, inputs)}, **self.scales(outputs, inputs)}

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = _unsigned(name, parts[self.codes], self._scheme.bits)
        return self._weight(name, codes, parts)


def _compressed_tensors(section: Mapping[str, Any]) -> Packing:
    config = read(_CompressedTensors, section, PLACE)
    [(key, values)] = config.config_groups.items()
    group = read(_ConfigGroup, values, f"{PLACE}config_groups.{key:.50}.")
    scheme, one_scale = group.weights.scheme()
    packed = (group.format or config.format) == "pack-quantized"
    return (_PackQuantized if packed else _IntQuantized)(scheme, one_scale=one_scale)


class _GptqConfig(Fields):
    bits: _Bits
    group_size: _Group
    sym: Flag = True
    desc_act: Flag = False
    checkpoint_format: Annotated[Literal["gptq", "gptq_v2"], supported("gptq, gptq_v2")] = Field(
        "gptq", validation_alias=AliasChoices("checkpoint_format", "format")
    )
    pack_dtype: Annotated[Literal["int32"], supported("int32")] = "int32"
    is_marlin_format: Annotated[Literal[False], supported("false")] = False
    # By names of modules; those that begin with "-:" are left in floats.
    dynamic: Annotated[
        dict[Annotated[str, Field(pattern="^-:")], Any] | Literal[False] | None,
        supported("modules that are not quantized"),
    ] = None


class _Gptq:
    """Zero points of the format `gptq` are one less than they should be: one is subtracted from
    all of a word by borrowing, so it is added in the same way.
    """

    codes = "qweight"

    def __init__(self, config: _GptqConfig) -> None:
        self._scheme = Scheme(config.bits, max(config.group_size, 0), config.sym)
        self._added = _ONES[config.bits] if config.checkpoint_format == "gptq" else 0
        self.optional = frozenset() if config.desc_act else frozenset({"g_idx"})

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return inner, outer * 32 // self._scheme.bits

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        bits, groups = self._scheme.bits, self._scheme.groups(inputs)
        return {
            self.codes: {"I32": (inputs * bits // 32, outputs)},
            "qzeros": {"I32": (groups, _words(outputs, bits))},
            "scales": _floats(groups, outputs),
            "g_idx": dict.fromkeys(("I32", "I64"), (inputs,)),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = _unpacked(parts[self.codes].t(), self._scheme.bits)
        inputs = codes.shape[1]
        numbers = torch.arange(inputs) // (self._scheme.group or inputs)
        if "g_idx" in parts and not torch.equal(parts["g_idx"].long(), numbers):
            raise UnsupportedModelError(
                f"the groups of tensor {name!r} are no stretches of its inputs (g_idx; act order, "
                "or desc_act), which is not supported; supported: desc_act false, or static groups"
            )
        points = _unpacked(parts["qzeros"] + self._added, self._scheme.bits)
        return self._scheme.weight(name, codes, parts["scales"].t(), points.t())


def _words(codes: int, bits: int) -> int:
    if codes * bits % 32:
        raise ValueError(f"{codes} outputs do not fill whole words of 32 bits")
    return codes * bits // 32


def _gptq(section: Mapping[str, Any]) -> Packing:
    return _Gptq(read(_GptqConfig, section, PLACE))


class _AwqConfig(Fields):
    bits: Annotated[Literal[4], supported("4")] = Field(
        validation_alias=AliasChoices("bits", "w_bit")
    )
    group_size: _Group = Field(validation_alias=AliasChoices("group_size", "q_group_size"))
    zero_point: Flag = True
    version: Annotated[
        Literal["gemm"], BeforeValidator(lambda value: str(value).lower()), supported("gemm")
    ] = Field("gemm", validation_alias=AliasChoices("version", "format"))
    backend: Any = None


class _Awq:
    codes = "qweight"

    def __init__(self, config: _AwqConfig) -> None:
        self._scheme = Scheme(config.bits, max(config.group_size, 0), not config.zero_point)
        self.optional = frozenset() if config.zero_point else frozenset({"qzeros"})

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return inner * 8, outer

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        groups = self._scheme.groups(inputs)
        return {
            self.codes: {"I32": (inputs, outputs // 8)},
            "qzeros": {"I32": (groups, outputs // 8)},
            "scales": _floats(groups, outputs),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        points = None if "qzeros" not in parts else _in_order(parts["qzeros"]).t()
        codes = _in_order(parts[self.codes]).t()
        return self._scheme.weight(name, codes, parts["scales"].t(), points)


def _in_order(words: Tensor) -> Tensor:
    """(rows, words) int32 -> (rows, codes) uint8."""
    codes = _unpacked(words, 4).view(words.shape[0], -1, 8)
    return codes[:, :, list(_AWQ_PLACES)].flatten(1)


def _awq(section: Mapping[str, Any]) -> Packing:
    config = read(_AwqConfig, section, PLACE)
    if config.backend == "llm-awq":
        raise unsupported(f"{PLACE}backend", config.backend, "autoawq")
    return _Awq(config)


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Packing]] = {
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
}
