"""Safetensors folders of either kind: weights in floats, or quantized already."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import MODELOPT_FILE, read_json_object
from radixlm.formats.text_part import text_config
from radixlm.models.bitsandbytes import BitsAndBytesCheckpoint, Int8
from radixlm.models.compressed_tensors import compressed_tensors
from radixlm.models.config_fields import unsupported
from radixlm.models.cuts import Cut
from radixlm.models.float_weights import fbgemm_fp8, fp8, modelopt
from radixlm.models.gptq_awq import awq, gptq
from radixlm.models.mxfp4 import MXFP4Checkpoint
from radixlm.models.quantized_parts import PLACE, Packing, check_part
from radixlm.models.safetensors_files import (
    FLOATS,
    CutCheckpoint,
    PlainCheckpoint,
    StoredTensor,
    survey,
)
from radixlm.products.quantized import QuantizedWeight

# Have a class of their own: one tensor has the weights of all experts; the tensors give the shapes.
_MXFP4, _BITS_AND_BYTES = "mxfp4", "bitsandbytes"
_OTHERS = ("I8", "I32", "I64", "U8", "F8_E4M3", "F8_E8M0")
# By `quant_method`: of `quantization_config`.
_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Packing]] = {
    "compressed-tensors": compressed_tensors,
    "gptq": gptq,
    "awq": awq,
    "fp8": fp8,
    "fbgemm_fp8": fbgemm_fp8,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
}
# What some tools store for keys and values in 8 bits, which are not kept so.
_OF_KEYS_AND_VALUES = (".q_scale", ".k_scale", ".v_scale", ".kv_scale")


def open_checkpoint(folder: Path) -> CutCheckpoint:
    """Open a quantized checkpoint by the folder's config.json. Raises UnsupportedModelError that
    names its field, CheckpointError that names the tensor or the file.
    """
    config = text_config(read_json_object(folder / "config.json"))
    section = config.get("quantization_config")
    beside = folder / MODELOPT_FILE
    if section is None and beside.is_file():
        section = {**read_json_object(beside), "quant_method": "modelopt"}
    if section is None:
        return PlainCheckpoint(folder)
    if not isinstance(section, Mapping):
        raise unsupported("quantization_config", section, "an object or null")
    method = str(section.get("quant_method")).lower()
    if method == _MXFP4:
        return MXFP4Checkpoint(folder)
    if method == _BITS_AND_BYTES:
        in_8_bits = section.get("load_in_8bit") is True
        return QuantizedCheckpoint(folder, Int8()) if in_8_bits else BitsAndBytesCheckpoint(folder)
    if method not in _METHODS:
        raise unsupported(
            f"{PLACE}quant_method", method, ", ".join((*_METHODS, _MXFP4, _BITS_AND_BYTES))
        )
    return QuantizedCheckpoint(folder, _METHODS[method](section))


class QuantizedCheckpoint:
    """A folder of safetensors files with some weights in parts, see `Checkpoint`. Which they are
    the tensors say: what config.json leaves out (`ignore`, ...) is there in floats.

    The types and shapes of all parts are checked before any is read.
    """

    is_quantized = True

    def __init__(self, folder: Path, packing: Packing) -> None:
        self.where = str(folder)
        self._packing = packing
        self._plain = survey(folder, (*FLOATS, *_OTHERS))
        self._parts: dict[str, dict[str, StoredTensor]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name in list(self._plain):
            if name.endswith(_OF_KEYS_AND_VALUES) and math.prod(self._plain[name].shape) == 1:
                del self._plain[name]
            elif self._holds_codes(name):
                self._take(name)
        for name, tensor in self._plain.items():
            if tensor.dtype not in FLOATS:
                raise CheckpointError(
                    f"tensor {name!r} is of type {tensor.dtype}, and no part of a weight that is "
                    f"quantized as config.json says; supported: {', '.join(FLOATS)}"
                )
            if name in self._shapes:
                raise CheckpointError(f"tensor {name!r} is there in floats and quantized")
            self._shapes[name] = tensor.shape

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor | QuantizedWeight:
        if name not in self._parts:
            return self._plain[name].read()
        parts = {part: stored.read() for part, stored in self._parts[name].items()}
        return self._packing.weight(name, parts)

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        if name in self._parts:
            return cut.of(name, self.read(name))
        return self._plain[name].read_cut(cut)

    def _holds_codes(self, name: str) -> bool:
        part = name.rpartition(".")[2]
        if part == "weight":
            return self._packing.codes == part and self._plain[name].dtype not in FLOATS
        return part == self._packing.codes

    def _take(self, codes: str) -> None:
        """The weight to which codes belong, from the plain tensors to those in parts."""
        stored = self._plain[codes]
        if len(stored.shape) != 2:
            raise CheckpointError(f"tensor {codes!r} has shape {stored.shape}, not two sizes")
        module = codes.removesuffix(self._packing.codes)
        outputs, inputs = shape = self._packing.whole(*stored.shape)
        try:
            wanted = self._packing.parts(outputs, inputs)
        except ValueError as error:
            raise CheckpointError(f"tensor {codes!r} can not be: {error}") from None
        parts = {}
        for part, types in wanted.items():
            if (tensor := self._plain.pop(module + part, None)) is not None:
                check_part(module + part, tensor, types)
                parts[part] = tensor
            elif part not in self._packing.optional:
                raise CheckpointError(f"tensor {module + part!r} is missing: {codes!r} needs it")
        self._parts[f"{module}weight"], self._shapes[f"{module}weight"] = parts, shape
