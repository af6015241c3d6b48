"""The weights of a GGUF file, by the names and in the forms that transformers gives them.

Which tensor a weight is in, the `gguf` package's tables say, with which llama.cpp's converters name
tensors; what these change beside names is undone here and in `gguf_changes`:

    experts, a norm for each head         one tensor has them all
    gate and up, or q, k and v, in one    are made of several tensors, or q, k, v of one
    kv_b_proj                             is made of a tensor of keys, whose heads are transposed,
                                          and one of values
    xielu's weights                       are entries
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, MODEL_TENSOR, TENSOR_NAMES, Keys, TensorNameMap
from torch import Tensor

from radixlm.formats.gguf_config import family_of
from radixlm.formats.gguf_file import GGUFFile
from radixlm.models.cuts import Cut
from radixlm.models.decoder import described
from radixlm.models.gguf_blocks import DECODERS, quantized_weight, widened
from radixlm.models.gguf_changes import Converted, floats
from radixlm.models.model_config import ModelConfig
from radixlm.products.quantized import QuantizedWeight, stacked

_PLAIN = {"F32": (np.float32, torch.float32), "F16": (np.int16, torch.float16)}
_PLAIN["BF16"] = np.int16, torch.bfloat16
_ARCHITECTURES = {name: number for number, name in MODEL_ARCH_NAMES.items()}
_GATE_UP_OF_EXPERTS = (MODEL_TENSOR.FFN_GATE_EXP, MODEL_TENSOR.FFN_UP_EXP)
_SHARED = (MODEL_TENSOR.FFN_GATE_SHEXP, MODEL_TENSOR.FFN_UP_SHEXP)
# By the ends of names: weights that files may have in several tensors, or in others.
_JOINED = {
    "qkv_proj": ((MODEL_TENSOR.ATTN_Q, MODEL_TENSOR.ATTN_K, MODEL_TENSOR.ATTN_V),),
    "gate_up_proj": (_GATE_UP_OF_EXPERTS,),
    "input_linear": (_GATE_UP_OF_EXPERTS,),
    "shared_mlp.input_linear": (_SHARED, (MODEL_TENSOR.FFN_GATE, MODEL_TENSOR.FFN_UP)),
    "shared_mlp.output_linear": ((MODEL_TENSOR.FFN_DOWN,),),
    "kv_b_proj": ((MODEL_TENSOR.ATTN_K_B, MODEL_TENSOR.ATTN_V_B),),
    "in_proj_qkvz": ((MODEL_TENSOR.ATTN_QKV, MODEL_TENSOR.ATTN_GATE),),
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
    entry: the number that it is, of the file's metadata.
    """

    tensors: tuple[str, ...]
    part: int | None = None
    rows: slice | None = None
    entry: float = 0.0


class GGUFCheckpoint:
    """See `Checkpoint`. config: of the model that the file describes."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        """A tensor that is no weight of the model keeps its name, so that a loader names it; those
        that are not read are `unused`.
        Raises CheckpointError for parts that do not fit together.
        """
        self.where = str(file.path)
        self._file, self._config = file, config
        self._converted = Converted(config, turned=family_of(file).turned)
        architecture = file.get("general.architecture", str)
        self._map = TensorNameMap(_ARCHITECTURES[architecture], 1)
        self._layers: int = file.get(Keys.LLM.BLOCK_COUNT.format(arch=architecture), int)
        self._places: dict[str, _Source] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        shapes = (tensor.shape for tensor in file.tensors.values())
        stored = sum(shape[0] if len(shape) == 3 else 1 for shape in shapes)
        for name, memory in described(config, stored).items():
            if (place := self._find(name)) is not None:
                self._places[name] = place
                wanted = tuple(memory.shape)
                shape = self._shape(place) if place.tensors else wanted
                # Files leave sizes of 1 out, or have more of them; groups of a norm are rows.
                same = _sizes(wanted) in (_sizes(shape), [math.prod(shape)])
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
        if not place.tensors:
            return torch.full(self.shapes[name], place.entry)
        parts = [self._weight(tensor, place.part) for tensor in place.tensors]
        weight = parts[0]
        if name.endswith("kv_b_proj.weight") and len(parts) > 1:
            keys, values = (floats(part) for part in parts)
            weight = torch.cat((keys.transpose(1, 2), values), dim=1).flatten(0, 1)
        elif len(parts) > 1:
            weight = _joined(parts)
        if (rows := place.rows) is not None:
            weight = weight.rows(rows) if isinstance(weight, QuantizedWeight) else weight[rows]
        shape = self.shapes[name]  # which files may have in other dimensions
        if tuple(weight.shape) != shape:
            weight = floats(weight).view(shape)
        return self._converted.undone(name, weight, joined=len(parts) > 1)

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        return cut.of(name, self.read(name))

    def _find(self, name: str) -> _Source | None:
        """The place of a weight; None: the file has not all of it."""
        parts, layer, part = name.split("."), "0", None
        if len(parts) > 3:
            layer, parts[2] = parts[2], "0"
            part = next((int(each) for each in parts[3:] if each.isdecimal()), None)
            parts = [*parts[:3], *(each for each in parts[3:] if not each.isdecimal())]
        own = self._named(".".join(parts), layer, part)
        if own is not None:
            return _Source((own,), part)
        end = parts.pop() if parts[-1] in ("weight", "bias") else "weight"
        if parts[-2:-1] == ["act_fn"]:
            return self._entry(parts[-1], int(layer))
        whole = ".".join(parts[-2:])
        for kinds in _JOINED.get(whole) or _JOINED.get(parts[-1], ()):
            tensors = tuple(f"{TENSOR_NAMES[kind].format(bid=layer)}.{end}" for kind in kinds)
            if all(self._has(tensor, part) for tensor in tensors):
                return _Source(tensors, part)
        if part is not None and parts[-1] in ("gate_proj", "up_proj"):
            return self._half(layer, part, second=parts[-1] == "up_proj")
        together = f"{TENSOR_NAMES[MODEL_TENSOR.ATTN_QKV].format(bid=layer)}.{end}"
        if parts[-1] not in _HEADS or not self._has(together, None):
            return None
        config = self._config
        edges = [0, config.n_heads, config.n_heads + config.n_kv_heads]
        at = edges[_HEADS.index(parts[-1])]
        count = config.n_heads if at == 0 else config.n_kv_heads
        rows = slice(at * config.head_dim, (at + count) * config.head_dim)
        return _Source((together,), None, rows)

    def _named(self, name: str, layer: str, part: int | None) -> str | None:
        """The tensor that the tables have for a name, of layer 0 and without numbers."""
        stem, _, end = name.rpartition(".")
        scaled = _SCALES.get(f"{stem.rpartition('.')[2]}.{end}")
        if scaled is not None:
            own = f"{TENSOR_NAMES[scaled].format(bid=layer)}.scale"
            return own if self._has(own, part) else None
        name = name.replace("dt_bias", "dt_proj")
        tries = [(name, each) for each in ("", ".weight", ".bias")]
        if end in ("weight", "bias"):
            tries.insert(0, (stem.removesuffix(".norms"), f".{end}"))
        elif name.endswith("_bias"):
            tries.insert(0, (name[:-5], ".bias"))
        for whole, ending in tries:
            names = (
                *(whole, whole.removeprefix("model."), whole.replace("model.", "backbone.", 1)),
                whole.replace(".mixer.experts", ".mlp.experts"),
            )
            found = next(filter(None, map(self._map.get_name, names)), None)
            own = "" if found is None else found.replace("blk.0.", f"blk.{layer}.") + ending
            if self._has(own, part):
                return own
        return None

    def _half(self, layer: str, part: int, *, second: bool) -> _Source | None:
        """The rows of a gate of an expert, or of its up, where one tensor has both."""
        tensor = f"{TENSOR_NAMES[MODEL_TENSOR.FFN_GATE_UP_EXP].format(bid=layer)}.weight"
        if not self._has(tensor, part):
            return None
        size = self._file.tensors[tensor].shape[1] // 2
        return _Source((tensor,), part, slice(size * second, size * (1 + second)))

    def _entry(self, name: str, layer: int) -> _Source | None:
        """A weight of the activation xielu, of which the metadata has those of all layers."""
        key = f"xielu.{name}"
        values = self._file.metadata.get(key)
        if not isinstance(values, np.ndarray) or layer >= len(values):
            return None
        return _Source((), entry=float(values[layer]))

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
        layer, first = _OF_LAYER.match(tensor), self._config.n_layers
        return layer is not None and first <= int(layer[1]) < self._layers

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


def _sizes(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size > 1]


def _joined(parts: list[Tensor | QuantizedWeight]) -> Tensor | QuantizedWeight:
    """Parts one below the other, in floats where their types differ."""
    alike = [part for part in parts if isinstance(part, QuantizedWeight)]
    if len(alike) == len(parts) and len({part.kind for part in alike}) == 1:
        return stacked(alike)
    return torch.cat([floats(part) for part in parts])
