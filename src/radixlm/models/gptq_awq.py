"""Weights as GPTQ and AWQ store them: inputs by outputs, the other way round than elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import AliasChoices, BeforeValidator, Field
from torch import Tensor

from radixlm.core.errors import UnsupportedModelError
from radixlm.models.config_fields import Fields, Flag, read, supported, unsupported
from radixlm.models.quantized_parts import (
    PLACE,
    Bits,
    GroupSize,
    Packing,
    Scheme,
    Types,
    bytes_of,
    floats,
    typed,
    unpacked,
)
from radixlm.products.quantized import QuantizedWeight

_ONES = {4: 0x11111111, 8: 0x01010101}
# Which of its eight columns AWQ puts in each place of a word, the lowest bits first.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq(section: Mapping[str, Any]) -> Packing:
    return _Gptq(read(_GptqConfig, section, PLACE))


def awq(section: Mapping[str, Any]) -> Packing:
    config = read(_AwqConfig, section, PLACE)
    if config.backend == "llm-awq":
        raise unsupported(f"{PLACE}backend", config.backend, "autoawq")
    return _Awq(config)


class _GptqConfig(Fields):
    bits: Bits
    group_size: GroupSize
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
            self.codes: typed(("I32",), (inputs * bits // 32, outputs)),
            "qzeros": typed(("I32",), (groups, _words(outputs, bits))),
            "scales": floats(groups, outputs),
            "g_idx": typed(("I32", "I64"), (inputs,)),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = unpacked(parts[self.codes].t(), self._scheme.bits)
        inputs = codes.shape[1]
        numbers = torch.arange(inputs) // (self._scheme.group or inputs)
        if "g_idx" in parts and not torch.equal(parts["g_idx"].long(), numbers):
            raise UnsupportedModelError(
                f"the groups of tensor {name!r} are no stretches of its inputs (g_idx; act order, "
                "or desc_act), which is not supported; supported: desc_act false, or static groups"
            )
        points = unpacked(parts["qzeros"] + self._added, self._scheme.bits)
        return self._scheme.weight(name, codes, parts["scales"].t(), points.t())


class _AwqConfig(Fields):
    bits: Annotated[Literal[4], supported("4")] = Field(
        validation_alias=AliasChoices("bits", "w_bit")
    )
    group_size: GroupSize = Field(validation_alias=AliasChoices("group_size", "q_group_size"))
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
            self.codes: typed(("I32",), (inputs, outputs // 8)),
            "qzeros": typed(("I32",), (groups, outputs // 8)),
            "scales": floats(groups, outputs),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        points = None if "qzeros" not in parts else _columns(parts["qzeros"])
        return self._scheme.weight(name, _columns(parts[self.codes]), parts["scales"].t(), points)


def _columns(words: Tensor) -> Tensor:
    """AWQ's (rows, words) int32 -> (columns, rows) uint8."""
    rows, count = words.shape
    packed = bytes_of(words.t())
    codes = packed.new_empty(count, 8, rows)
    for byte in range(4):
        low, high = _AWQ_ORDER[2 * byte : 2 * byte + 2]
        torch.bitwise_and(packed[:, :, byte], 15, out=codes[:, low])
        torch.bitwise_right_shift(packed[:, :, byte], 4, out=codes[:, high])
    return codes.flatten(0, 1)


def _words(codes: int, bits: int) -> int:
    if codes * bits % 32:
        raise ValueError(f"{codes} outputs do not fill whole words of 32 bits")
    return codes * bits // 32
