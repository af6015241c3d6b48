"""A checkpoint of ours as a GGUF file, so that llama.cpp can be measured with the same weights.

As its own converter writes one: matrices as they are stored, vectors in float32, rows of queries
and keys of Llamas in the order of its rotary embedding. The vocabulary is that of a byte-level BPE
without merges, as random checkpoints have it.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from gguf.constants import MODEL_ARCH, GGMLQuantizationType, TokenType
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.layers.rotary import plain_frequencies
from radixlm.models import ModelConfig, PlainCheckpoint, load_config

_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen3": MODEL_ARCH.QWEN3}
_TYPES = {
    torch.float32: GGMLQuantizationType.F32,
    torch.float16: GGMLQuantizationType.F16,
    torch.bfloat16: GGMLQuantizationType.BF16,
}
# Some merge must be there, of tokens to a token: the last word becomes that.
_MERGE = ("Ġ", "w")


def write_gguf(folder: Path, path: Path) -> Path:
    """Write the checkpoint in `folder` to `path`; returns the path. Memory: the checkpoint.

    Raises ConfigError for a model of another kind than Llama and Qwen3.
    """
    config = load_config(folder)
    if config.model_type not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise ConfigError(f"no GGUF file can be written of {config.model_type!r}, only of {known}")
    writer = gguf.GGUFWriter(path, config.model_type)
    _add_sizes(writer, config)
    _add_vocabulary(writer, folder, config)
    _add_weights(writer, folder, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_name(config.model_type)
    writer.add_context_length(config.context_length)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.n_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: ModelConfig) -> None:
    found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = found["model"]["vocab"]
    special = {token["content"] for token in found["added_tokens"] if token["special"]}
    words = [*sorted(vocab, key=vocab.__getitem__)[:-1], "".join(_MERGE)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(words)
    writer.add_token_types(
        [TokenType.CONTROL if word in special else TokenType.NORMAL for word in words]
    )
    writer.add_token_merges([" ".join(_MERGE)])
    writer.add_eos_token_id(min(config.eos_token_ids))
    writer.add_add_bos_token(False)


def _add_weights(writer: gguf.GGUFWriter, folder: Path, config: ModelConfig) -> None:
    names = gguf.get_tensor_name_map(_ARCHITECTURES[config.model_type], config.n_layers)
    checkpoint = PlainCheckpoint(folder)
    for name in checkpoint.shapes:
        tensor = checkpoint.read(name)
        heads = {"q_proj": config.n_heads, "k_proj": config.n_kv_heads}.get(name.split(".")[-2])
        if heads and config.model_type == "llama":
            tensor = _neighbours(tensor, heads)
        if tensor.dim() == 1:
            tensor = tensor.float()
        _add(writer, names.get_name(name, (".weight",)) or name, tensor)
    if config.rope.scaling is not None:
        plain = plain_frequencies(config.rope.theta, config.head_dim)
        _add(writer, "rope_freqs.weight", plain / config.rope.frequencies(config.head_dim))


def _add(writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
    values = tensor.contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, values, raw_dtype=_TYPES[tensor.dtype])


def _neighbours(weight: Tensor, heads: int) -> Tensor:
    """Rows such that pairs that turn together, half a head apart here, are side by side."""
    outputs, inputs = weight.shape
    return weight.view(heads, 2, -1, inputs).transpose(1, 2).reshape(outputs, inputs)
