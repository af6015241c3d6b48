"""The weights of a GGUF file, by the names and in the forms that transformers gives them.

Which tensor a weight is in, the `gguf` package's tables say, with which llama.cpp's converters name
tensors; what these change beside names is undone here:

    of an architecture that is `turned`   rows of queries and keys are put back in order
    norms that store their weight less 1  the 1 is taken off
    experts, a norm for each head         one tensor has them all
    gate and up, or q, k and v, in one    are made of several tensors, or q, k, v of one
    kv_b_proj                             is made of a tensor of keys, whose heads are transposed,
                                          and one of values
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, MODEL_TENSOR, TENSOR_NAMES, TensorNameMap
from torch import Tensor

from radixlm.formats.gguf_config import family_of
from radixlm.formats.gguf_file import GGUFFile
from radixlm.models.cuts import Cut
from radixlm.models.decoder import described
from radixlm.models.gguf_blocks import DECODERS, quantized_weight, widened
from radixlm.models.model_config import ModelConfig
from radixlm.products.quantized import QuantizedWeight, stacked

_PLAIN = {"F32": (np.float32, torch.float32), "F16": (np.int16, torch.float16)}
_PLAIN["BF16"] = np.int16, torch.bfloat16
_ARCHITECTURES = {name: number for number, name in MODEL_ARCH_NAMES.items()}
_GATE_UP_OF_EXPERTS = (MODEL_TENSOR.FFN_GATE_EXP, MODEL_TENSOR.FFN_UP_EXP)
# By the ends of names: weights that files may have in several tensors.
_JOINED = {
    "qkv_proj": (MODEL_TENSOR.ATTN_Q, MODEL_TENSOR.ATTN_K, MODEL_TENSOR.ATTN_V),
    "gate_up_proj": _GATE_UP_OF_EXPERTS,
    "input_linear": _GATE_UP_OF_EXPERTS,
    "kv_b_proj": (MODEL_TENSOR.ATTN_K_B, MODEL_TENSOR.ATTN_V_B),
}
_HEADS = ("q_proj", "k_proj", "v_proj")
# By the ends of names: weights that are called the scale of a tensor.
_SCALES = {
    "router.scale": MODEL_TENSOR.FFN_GATE_INP,
    "router.per_expert_scale": MODEL_TENSOR.FFN_DOWN_EXP,
}
# What configs say (`gguf_config`), or say anyway.
_NOT_READ = re.compile(r"(rope_\w+|blk\.\d+\.attn_rot_embd)\.weight", re.ASCII)

_OF_LAYER = re.compile(r"blk\.(\d{1,9})\.", re.ASCII)


class _Source(NamedTuple):
    """A weight's place in a file. tensors: the stored ones, whose rows follow one another. part: of
    their first dimension, an expert or a head; None: all. rows: of the one tensor; None: all.
    """

    tensors: tuple[str, ...]
    part: int | None = None
    rows: slice | None = None


class GGUFCheckpoint:
    """See `Checkpoint`. config: of the model that the file describes."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        """A tensor that is no weight of the model keeps its name, so that a loader names it; those
        that are not read are `unused`.
        Raises CheckpointError for parts that do not fit together.
        """
        self.where = str(file.path)
        self._file, self._config = file, config
        self._turned = family_of(file).turned
        self._map = TensorNameMap(_ARCHITECTURES[file.get("general.architecture", str)], 1)
        self._places: dict[str, _Source] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        shapes = (tensor.shape for tensor in file.tensors.values())
        stored = sum(shape[0] if len(shape) == 3 else 1 for shape in shapes)
        for name, memory in described(config, stored).items():
            if (place := self._find(name)) is not None:
                self._places[name] = place
                shape, wanted = self._shape(place), tuple(memory.shape)
                # Files leave sizes of 1 out.
                same = [size for size in wanted if size > 1] == list(shape)
                self.shapes[name] = wanted if same else shape
        spare = [self._find(f"{place}weight") for place in config.traits.spare]
        places = [*self._places.values(), *(place for place in spare if place is not None)]
        used = {tensor for place in places for tensor in place.tensors}
        self.unused: list[str] = []
        for name, tensor in file.tensors.items():
            if _NOT_READ.fullmatch(name) or self._is_spare(name):
                self.unused.append(name)
            elif name not in used:
                self.shapes[name] = tensor.shape

    @property
    def is_quantized(self) -> bool:
        return any(tensor.type.name in DECODERS for tensor in self._file.tensors.values())

    def read(self, name: str) -> Tensor | QuantizedWeight:
        place = self._places[name]
        parts = [self._weight(tensor, place.part) for tensor in place.tensors]
        weight = parts[0]
        if name.endswith("kv_b_proj.weight") and len(parts) > 1:
            keys, values = (_floats(part) for part in parts)
            weight = torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)
        elif len(parts) > 1:
            weight = _joined(parts)
        experts, kind = self._config.traits.experts, name.split(".")[-2:][0]
        order: Tensor | slice | None = place.rows
        if len(parts) > 1 and experts is not None and experts.paired:
            order = torch.arange(weight.shape[0]).view(2, -1).t().flatten()
        elif self._turned and kind in _HEADS[:2]:
            order = torch.arange(weight.shape[0]).view(-1, self._config.head_dim // 2, 2)
            order = order.transpose(1, 2).flatten()
        if order is not None:
            weight = weight.rows(order) if isinstance(weight, QuantizedWeight) else weight[order]
        base = self._config.traits.norms.base
        if base and name.endswith("norm.weight"):
            weight = _floats(weight) - base
        return weight.view(self.shapes[name]) if isinstance(weight, Tensor) else weight

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        return cut.of(name, self.read(name))

    def _find(self, name: str) -> _Source | None:
        """The place of a weight; None: the file has not all of it."""
        stem, _, end = name.rpartition(".")
        if end not in ("weight", "bias"):  # of one that is no module's
            stem, end = (name[:-5], "bias") if name.endswith("_bias") else (name, "weight")
        parts, layer, part = stem.split("."), "0", None
        if len(parts) > 2:
            layer, parts[2] = parts[2], "0"
            part = next((int(each) for each in parts[3:] if each.isdecimal()), None)
            parts = [*parts[:3], *(each for each in parts[3:] if not each.isdecimal())]
        scaled = _SCALES.get(".".join(parts[-2:]))
        if scaled is not None:
            tensor = f"{TENSOR_NAMES[scaled].format(bid=layer)}.scale"
            return _Source((tensor,)) if self._has(tensor, None) else None
        own = self._map.get_name(".".join(parts).removesuffix(".norms"))
        if own is not None:
            tensor = f"{own.replace('blk.0.', f'blk.{layer}.')}.{end}"
            if self._has(tensor, part):
                return _Source((tensor,), part)
        kinds = _JOINED.get(parts[-1], ())
        tensors = tuple(f"{TENSOR_NAMES[kind].format(bid=layer)}.{end}" for kind in kinds)
        if tensors and all(self._has(tensor, part) for tensor in tensors):
            return _Source(tensors, part)
        together = f"{TENSOR_NAMES[MODEL_TENSOR.ATTN_QKV].format(bid=layer)}.{end}"
        if parts[-1] not in _HEADS or not self._has(together, None):
            return None
        config = self._config
        edges = [0, config.n_heads, config.n_heads + config.n_kv_heads]
        at = edges[_HEADS.index(parts[-1])]
        count = config.n_heads if at == 0 else config.n_kv_heads
        rows = slice(at * config.head_dim, (at + count) * config.head_dim)
        return _Source((together,), None, rows)

    def _has(self, tensor: str, part: int | None) -> bool:
        if tensor not in self._file.tensors:
            return False
        shape = self._file.tensors[tensor].shape
        return part is None or (len(shape) > 1 and part < shape[0])

    def _shape(self, place: _Source) -> tuple[int, ...]:
        shapes = [self._file.tensors[tensor].shape for tensor in place.tensors]
        if place.part is not None:
            shapes = [shape[1:] for shape in shapes]
        first = shapes[0]
        if place.rows is not None:
            return (len(range(*place.rows.indices(first[0]))), *first[1:])
        if len(shapes) == 1:
            return first
        last = shapes[-1]
        if len(first) == 3 and len(last) == 3 and (first[0], first[1]) == (last[0], last[2]):
            return (first[0] * (first[2] + last[1]), first[1])
        if len(first) > 2 or any(shape[1:] != first[1:] for shape in shapes):
            raise self._file.wrong(place.tensors[0], f"{first}, and {place.tensors[-1]} is {last}")
        return (sum(shape[0] for shape in shapes), *first[1:])

    def _is_spare(self, tensor: str) -> bool:
        """Whether it is of a layer after the last one, which predicts further tokens."""
        layer, config = _OF_LAYER.match(tensor), self._config
        beyond = -1 if layer is None else int(layer[1]) - config.n_layers
        return 0 <= beyond < config.traits.spare_layers

    def _weight(self, own: str, part: int | None) -> Tensor | QuantizedWeight:
        kind, shape, *_ = self._file.tensors[own]
        data = self._file.data(own, part)
        shape = shape if part is None else shape[1:]
        if kind.name in _PLAIN:
            of_numpy, of_torch = _PLAIN[kind.name]
            return torch.from_numpy(data.view(of_numpy)).view(of_torch).view(shape)
        inputs = shape[-1]
        outputs = data.size // kind.nbytes * kind.values // inputs
        if kind.name not in DECODERS:
            return widened(kind, data, own).view(shape)
        weight = quantized_weight(kind, data, outputs, inputs)
        weight.check(own)
        return weight if len(shape) == 2 else weight.dequantized().view(shape)


def _floats(weight: Tensor | QuantizedWeight) -> Tensor:
    return weight.dequantized() if isinstance(weight, QuantizedWeight) else weight.float()


def _joined(parts: list[Tensor | QuantizedWeight]) -> Tensor | QuantizedWeight:
    """Parts one below the other, in floats where their types differ."""
    alike = [part for part in parts if isinstance(part, QuantizedWeight)]
    if len(alike) == len(parts) and len({part.kind for part in alike}) == 1:
        return stacked(alike)
    return torch.cat([_floats(part) for part in parts])
