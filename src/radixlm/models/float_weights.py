"""Weights in floats of 8 and 4 bits, by the names that tools give their parts.

    format                       codes                        scales
    fp8                          weight (out, in) E4M3        weight_scale_inv, of blocks or of all
    compressed-tensors,          weight                       weight_scale, of all, outputs, groups
      float-quantized                                           or blocks
    fbgemm_fp8                   weight                       weight_scale, of outputs
    ModelOpt, FP8                weight                       weight_scale, of all, outputs, blocks
    compressed-tensors, NVFP4    weight_packed (out, in / 2)  weight_scale (out, in / 16), E4M3,
                                                                over weight_global_scale
    ModelOpt, NVFP4              weight                       weight_scale, times weight_scale_2
    compressed-tensors, MXFP4    weight_packed                weight_scale (out, in / 32), powers of
                                                                two

Everywhere weight = scale * number. What tools store of activations is not read: rows are multiplied
as they are, and keys and values kept as `--kv-cache-dtype` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.models.config_fields import Fields, Size, read, supported
from radixlm.models.quantized_parts import PLACE, Packing, Types, typed
from radixlm.products.quantized import QuantizedWeight, from_e2m1

# Of activations: `input_scale` and so on, of one number.
_UNREAD = ("input_scale", "activation_scale", "input_global_scale", "input_scale_ub")
_FLOATS = ("F32", "BF16", "F16")
_NVFP4_GROUP = 16
# Outputs and inputs that share a scale; 0: all.
OF_ALL, OF_OUTPUTS = (0, 0), (1, 0)


Block = Annotated[tuple[Size, Size], Field(strict=False), supported("two sizes")]


class Float8:
    """E4M3. scales: the names that their part may have. block: outputs and inputs that share one,
    0: all.
    """

    codes = "weight"

    def __init__(self, block: tuple[int, int], *scales: str) -> None:
        self._block, self._scales = block, scales
        self.optional = frozenset((*_UNREAD, *(scales if len(scales) > 1 else ())))

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        return {
            self.codes: typed(("F8_E4M3",), (outputs, inputs)),
            **{name: self._types(outputs, inputs) for name in self._scales},
            **_unread(),
        }

    def _types(self, outputs: int, inputs: int) -> Types:
        """Sizes of 1 may be left out, and ModelOpt has some between."""
        rows, columns = shape = self._shape(outputs, inputs)
        shapes = [shape, (rows, 1, columns, 1)]
        if columns == 1:
            shapes += [(rows,)] if rows > 1 else [(1,), ()]
        return typed((*_FLOATS, "F8_E8M0"), *shapes)

    def _shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        high, wide = self._block
        return -(-outputs // high) if high else 1, -(-inputs // wide) if wide else 1

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        codes = parts[self.codes].view(torch.uint8)
        given = [parts[part] for part in self._scales if part in parts]
        if len(given) != 1:
            module = name.removesuffix("weight")
            raise CheckpointError(
                f"of {' and '.join(module + part for part in self._scales)} there are "
                f"{len(given)}: the weight needs one"
            )
        (outputs, inputs), (high, wide) = codes.shape, self._block
        scales = given[0].float().view(self._shape(outputs, inputs))
        scales = scales.repeat_interleave(high or outputs, 0)[:outputs]
        # Groups have one size: where the last block is cut, a part of it.
        group = math.gcd(wide, inputs)
        if wide:
            scales = scales.repeat_interleave(wide // group, 1)[:, : inputs // group]
        return QuantizedWeight(codes, scales.contiguous(), None, 8, 0, "e4m3")


class Float4:
    """E2M1, two in a byte, the first in the low half. overall: the name of the scale of all scales;
    empty: these are powers of two. divides: whether scales are over it.
    """

    def __init__(self, codes: str, group: int, overall: str = "", *, divides: bool = False) -> None:
        self.codes, self._group = codes, group
        self._overall, self._divides = overall, divides
        self.optional = frozenset(_UNREAD)

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner * 2

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        if inputs % self._group:
            raise ValueError(f"{inputs} inputs are no whole number of groups of {self._group}")
        scales = ("F8_E4M3",) if self._overall else ("U8", "F8_E8M0")
        overall = {self._overall: typed(("F32",), (1,), ())} if self._overall else {}
        return {
            self.codes: typed(("U8",), (outputs, inputs // 2)),
            "weight_scale": typed(scales, (outputs, inputs // self._group)),
            **overall,
            **_unread(),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:  # noqa: ARG002
        scales = parts["weight_scale"]
        if scales.dtype == torch.uint8:
            scales = scales.view(torch.float8_e8m0fnu)
        scales = scales.float()
        if self._overall:
            overall = parts[self._overall].view(1)
            scales = scales / overall if self._divides else scales * overall
        return from_e2m1(parts[self.codes], scales.contiguous())


def _unread() -> dict[str, Types]:
    return dict.fromkeys(_UNREAD, typed(_FLOATS, (), (1,)))


class _Fp8Config(Fields):
    weight_block_size: Block | None = None
    fmt: Annotated[
        Literal["e4m3"], BeforeValidator(lambda value: str(value).lower()), supported("e4m3")
    ] = "e4m3"
    expert_dtype: Annotated[Literal["fp8"], supported("fp8")] = "fp8"


def fp8(section: Mapping[str, Any]) -> Packing:
    """DeepSeek V3's and Qwen3's, by block; or, without blocks, one scale of all of a weight."""
    block = read(_Fp8Config, section, PLACE).weight_block_size
    if block is not None:
        return Float8(block, "weight_scale_inv")
    return Float8(OF_ALL, "weight_scale", "weight_scale_inv")


def fbgemm_fp8(_section: Mapping[str, Any]) -> Packing:
    return Float8(OF_OUTPUTS, "weight_scale")


_Algorithm = Literal["FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4"]


class _ModelOptConfig(Fields):
    quant_algo: Annotated[
        _Algorithm,
        BeforeValidator(lambda value: str(value).upper()),
        supported("FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4"),
    ]
    group_size: Annotated[Literal[16], supported("16")] | None = None


def modelopt(section: Mapping[str, Any]) -> Packing:
    """section: of config.json, or of hf_quant_config.json, whose fields stand one level down."""
    inside = section.get("quantization")
    config = read(_ModelOptConfig, inside if isinstance(inside, Mapping) else section, PLACE)
    match config.quant_algo:
        case "FP8":
            return Float8(OF_ALL, "weight_scale")
        case "FP8_PER_CHANNEL_PER_TOKEN":
            return Float8(OF_OUTPUTS, "weight_scale")
        case "FP8_PB_WO":
            return Float8((128, 128), "weight_scale")
        case _:
            return Float4("weight", _NVFP4_GROUP, "weight_scale_2")
