"""Weights as bitsandbytes stores them, in 4 bits and in 8.

weight (bytes, 1) uint8     codes of all outputs in one row, two in a byte, the first one in the
                            upper half; what they stand for is `quant_map`, NF4's or FP4's
weight.absmax               a scale for each block of that row, float32; or in 8 bits, codes of
                            `nested_quant_map` times `nested_absmax`, by blocks, plus an offset
weight.quant_state...       JSON: the shape, the blocks' sizes, the offset

weight (out, in) int8       LLM.int8(): SCB (out,) has what 127 stands for
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import parsed_object
from radixlm.models.config_fields import Fields, Size, read, supported
from radixlm.models.quantized_parts import Types, WeightInParts, check_part, taken, typed
from radixlm.models.safetensors_files import StoredTensor
from radixlm.products.quantized import LEVELS, MIDDLE, QuantizedWeight

_STATE = ".quant_state.bitsandbytes__"
_MOST_STATE = 1 << 16  # bytes
_ROW_MAJOR = 0


class _State(Fields):
    quant_type: Annotated[Literal["nf4", "fp4"], supported("nf4, fp4")]
    shape: Annotated[tuple[Size, Size], Field(strict=False), supported("two sizes")]
    blocksize: Size
    nested_blocksize: Size | None = None
    nested_offset: float = 0.0

    def parts(self) -> dict[str, Types]:
        """The parts of a weight, by what follows its name; the first one has its codes."""
        count = math.prod(self.shape)
        blocks = -(-count // self.blocksize)
        parts = {
            "": typed(("U8",), (-(-count // 2), 1)),
            ".quant_map": typed(("F32",), (16,)),
            ".absmax": typed(("U8" if self.nested_blocksize else "F32",), (blocks,)),
        }
        if self.nested_blocksize:
            outer = -(-blocks // self.nested_blocksize)
            parts[".nested_absmax"] = typed(("F32",), (outer,))
            parts[".nested_quant_map"] = typed(("F32",), (256,))
        return parts

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        levels = torch.tensor(LEVELS[self.quant_type])
        if not torch.allclose(parts[".quant_map"], levels, rtol=0, atol=1e-6):
            raise CheckpointError(f"the quant_map of tensor {name!r} is not {self.quant_type}'s")
        (outputs, inputs), packed = self.shape, parts[""].flatten()
        codes = torch.stack([packed >> 4, packed & 15], 1).flatten()[: outputs * inputs]
        scales = parts[".absmax"]
        if self.nested_blocksize:
            outer = parts[".nested_absmax"][torch.arange(len(scales)) // self.nested_blocksize]
            scales = parts[".nested_quant_map"][scales.long()] * outer + self.nested_offset
        # A block may begin within an output: groups are what divides both.
        group = math.gcd(self.blocksize, inputs)
        first = torch.arange(0, outputs * inputs, group)
        scales, codes = (
            each.view(outputs, -1) for each in (scales[first // self.blocksize], codes)
        )
        return QuantizedWeight(codes, scales, None, 4, 0, self.quant_type)


def in_4_bits(stored: dict[str, StoredTensor]) -> dict[str, WeightInParts]:
    """Take the weights in 4 bits, and their parts, from a folder's tensors."""
    found = {}
    for place in [name for name in stored if _STATE in name]:
        name, kind = place.split(_STATE)
        state = _state_of(place, kind, stored.pop(place))
        parts = {
            part: taken(stored, name + part, place, types) for part, types in state.parts().items()
        }
        found[name] = WeightInParts(state.shape, partial(_weight, name, state, parts))
    return found


def _weight(name: str, state: _State, parts: Mapping[str, StoredTensor]) -> QuantizedWeight:
    return state.weight(name, {part: tensor.read() for part, tensor in parts.items()})


def _state_of(place: str, kind: str, tensor: StoredTensor) -> _State:
    check_part(place, tensor, typed(("U8",), (min(math.prod(tensor.shape), _MOST_STATE),)))
    content = parsed_object(Path(place), tensor.read().numpy().tobytes())
    return read(_State, {**content, "quant_type": kind}, f"{place}.")


class Int8:
    """A `Packing` of LLM.int8()'s weights. Rows are rounded as products with int8 do it here, large
    numbers in them, too.
    """

    codes = "weight"
    optional = frozenset({"weight_format"})

    def whole(self, outer: int, inner: int) -> tuple[int, int]:
        return outer, inner

    def parts(self, outputs: int, inputs: int) -> Mapping[str, Types]:
        return {
            "weight": typed(("I8",), (outputs, inputs)),
            "SCB": typed(("F32",), (outputs,)),
            "weight_format": typed(("U8",), ()),
        }

    def weight(self, name: str, parts: Mapping[str, Tensor]) -> QuantizedWeight:
        if int(parts.get("weight_format", torch.tensor(_ROW_MAJOR))) != _ROW_MAJOR:
            raise CheckpointError(f"tensor {name!r} is not stored by rows; save it anew")
        codes = parts["weight"].view(torch.uint8) + MIDDLE[8]
        scales = parts["SCB"].unsqueeze(1) / 127
        return QuantizedWeight(codes, scales, None, 8, MIDDLE[8])
