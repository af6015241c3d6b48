"""The weights of a GGUF file, by the names that transformers gives them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.gguf_config import ROPE_FACTORS
from radixlm.formats.gguf_file import GGUFFile
from radixlm.models.cuts import Cut
from radixlm.models.gguf_blocks import DECODERS, quantized_weight
from radixlm.products.quantized import QuantizedWeight

_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,8})\.(\w+)\.(weight|bias)", re.ASCII)
_PLAIN = {"F32": (np.float32, torch.float32), "F16": (np.int16, torch.float16)}
_PLAIN["BF16"] = np.int16, torch.bfloat16
_TURNED = re.compile(r"blk\.\d+\.attn_[qk]\.(weight|bias)", re.ASCII)


class GGUFCheckpoint:
    """See `Checkpoint`. head_dim: of the model that the file describes.

    In files of the architecture `llama` the rows of a head's queries and keys are in the order of
    llama.cpp's rotation, which turns neighbours: they are put back.
    """

    def __init__(self, file: GGUFFile, head_dim: int) -> None:
        """Raises CheckpointError for a tensor that no model has."""
        self.where = str(file.path)
        self._file, self._head_dim = file, head_dim
        self._turned = file.get("general.architecture", str) == "llama"
        self._stored = {_name(name): name for name in file.tensors if name != ROPE_FACTORS}

    @property
    def is_quantized(self) -> bool:
        return any(tensor.type.name in DECODERS for tensor in self._file.tensors.values())

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: self._file.tensors[own].shape for name, own in self._stored.items()}

    def read(self, name: str) -> Tensor | QuantizedWeight:
        own = self._stored[name]
        weight = self._weight(own)
        if not self._turned or not _TURNED.fullmatch(own):
            return weight
        order = torch.arange(weight.shape[0]).view(-1, self._head_dim // 2, 2)
        order = order.transpose(1, 2).flatten()
        return weight.rows(order) if isinstance(weight, QuantizedWeight) else weight[order]

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        return cut.of(name, self.read(name))

    def _weight(self, own: str) -> Tensor | QuantizedWeight:
        kind, shape, *_ = self._file.tensors[own]
        data = self._file.data(own)
        if kind.name not in DECODERS:
            of_numpy, of_torch = _PLAIN[kind.name]
            return torch.from_numpy(data.view(of_numpy)).view(of_torch).view(shape)
        inputs = shape[-1]
        weight = quantized_weight(
            kind, data, data.size // kind.nbytes * kind.values // inputs, inputs
        )
        weight.check(own)
        return weight if len(shape) == 2 else weight.dequantized().view(shape)


def _name(own: str) -> str:
    found = _LAYER.fullmatch(own)
    known = _WHOLE.get(own)
    if found is not None and found[2] in _OF_A_LAYER:
        known = f"model.layers.{found[1]}.{_OF_A_LAYER[found[2]]}.{found[3]}"
    if known is None:
        raise CheckpointError(f"tensor {own!r:.200} is none that a model has that is supported")
    return known
