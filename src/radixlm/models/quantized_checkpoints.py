"""Safetensors folders of either kind: weights in floats, or quantized already."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import MODELOPT_FILE, read_json_object
from radixlm.formats.text_part import text_config
from radixlm.models.bitsandbytes import Int8, in_4_bits
from radixlm.models.compressed_tensors import compressed_tensors
from radixlm.models.config_fields import unsupported
from radixlm.models.cuts import Cut
from radixlm.models.float_weights import fbgemm_fp8, fp8, modelopt
from radixlm.models.gptq_awq import awq, gptq
from radixlm.models.mxfp4 import experts_in_blocks
from radixlm.models.quantized_parts import PLACE, Packing, WeightInParts, taken
from radixlm.models.safetensors_files import (
    FLOATS,
    CutCheckpoint,
    PlainCheckpoint,
    StoredTensor,
    survey,
)
from radixlm.products.quantized import QuantizedWeight

# No `Packing`: one tensor has the weights of all experts; the tensors give the shapes.
_MXFP4, _BITS_AND_BYTES = "mxfp4", "bitsandbytes"
_OTHERS = ("I8", "I32", "I64", "U8", "F8_E4M3", "F8_E8M0")
_Take = Callable[[dict[str, StoredTensor]], dict[str, WeightInParts]]
# By `quant_method`: of `quantization_config`.
_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Packing]] = {
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    _BITS_AND_BYTES: lambda _section: Int8(),
}
# What some tools store for keys and values in 8 bits, which are not kept so.
_OF_KEYS_AND_VALUES = (".q_scale", ".k_scale", ".v_scale", ".kv_scale")


def open_checkpoint(folder: Path, beside: tuple[str, ...] = ()) -> CutCheckpoint:
    """Open a quantized checkpoint by the folder's config.json. beside: see `surveyed`. Raises
    UnsupportedModelError that names its field, CheckpointError that names the tensor or the file.
    """
    config = text_config(read_json_object(folder / "config.json"))
    section = config.get("quantization_config")
    written = folder / MODELOPT_FILE
    if section is None and written.is_file():
        section = {**read_json_object(written), "quant_method": "modelopt"}
    if section is None:
        return PlainCheckpoint(folder, beside)
    if not isinstance(section, Mapping):
        raise unsupported("quantization_config", section, "an object or null")
    method = str(section.get("quant_method")).lower()
    if method == _MXFP4:
        return QuantizedCheckpoint(folder, experts_in_blocks, beside)
    if method == _BITS_AND_BYTES and section.get("load_in_8bit") is not True:
        return QuantizedCheckpoint(folder, in_4_bits, beside)
    if method not in _METHODS:
        raise unsupported(f"{PLACE}quant_method", method, ", ".join((*_METHODS, _MXFP4)))
    return QuantizedCheckpoint(folder, partial(_packed, _METHODS[method](section)), beside)


class QuantizedCheckpoint:
    """A folder of safetensors files with some weights in parts, see `Checkpoint`. Which they are
    the tensors say: what config.json leaves out (`ignore`, ...) is there in floats.

    The types and shapes of all parts are checked before any is read. take: takes the weights in
    parts out of the tensors.
    """

    is_quantized = True

    def __init__(self, folder: Path, take: _Take, beside: tuple[str, ...] = ()) -> None:
        self.where = str(folder)
        self._plain = survey(folder, (*FLOATS, *_OTHERS), beside)
        self._in_parts = take(self._plain)
        for name, tensor in self._plain.items():
            if tensor.dtype not in FLOATS:
                raise CheckpointError(
                    f"tensor {name!r} is of type {tensor.dtype}, and no part of a weight that is "
                    f"quantized as config.json says; supported: {', '.join(FLOATS)}"
                )
            if name in self._in_parts:
                raise CheckpointError(f"tensor {name!r} is there in floats and quantized")

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: its.shape for name, its in (self._in_parts | self._plain).items()}

    def read(self, name: str) -> Tensor | QuantizedWeight:
        if name not in self._in_parts:
            return self._plain[name].read()
        weight = self._in_parts[name].read()
        weight.check(name)
        return weight

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        if name in self._in_parts:
            return cut.of(name, self.read(name))
        return self._plain[name].read_cut(cut)


def _packed(packing: Packing, stored: dict[str, StoredTensor]) -> dict[str, WeightInParts]:
    """Take the weights of a packing from a folder's tensors, and drop scales of a cache."""
    found = {}
    for name in list(stored):
        tensor = stored.get(name)
        if tensor is None:
            continue
        if name.endswith(_OF_KEYS_AND_VALUES) and math.prod(tensor.shape) == 1:
            del stored[name]
        elif _holds_codes(packing, name, tensor):
            module = name.removesuffix(packing.codes)
            found[f"{module}weight"] = _packed_weight(packing, module, stored)
    return found


def _holds_codes(packing: Packing, name: str, tensor: StoredTensor) -> bool:
    part = name.rpartition(".")[2]
    if part == "weight":
        return packing.codes == part and tensor.dtype not in FLOATS
    return part == packing.codes


def _packed_weight(packing: Packing, module: str, stored: dict[str, StoredTensor]) -> WeightInParts:
    codes = module + packing.codes
    if len(stored[codes].shape) != 2:
        raise CheckpointError(f"tensor {codes!r} has shape {stored[codes].shape}, not two sizes")
    outputs, inputs = shape = packing.whole(*stored[codes].shape)
    try:
        wanted = packing.parts(outputs, inputs)
    except ValueError as error:
        raise CheckpointError(f"tensor {codes!r} can not be: {error}") from None
    parts = {
        part: taken(stored, module + part, codes, types)
        for part, types in wanted.items()
        if module + part in stored or part not in packing.optional
    }
    return WeightInParts(shape, partial(_read_packed, packing, f"{module}weight", parts))


def _read_packed(packing: Packing, name: str, parts: Mapping[str, StoredTensor]) -> QuantizedWeight:
    return packing.weight(name, {part: tensor.read() for part, tensor in parts.items()})
