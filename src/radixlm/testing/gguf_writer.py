"""GGUF files from folders in Hugging Face format, as llama.cpp's converter would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file
from torch import Tensor

from radixlm.models import ModelConfig, load_config

# Where a block of these begins with the numbers that all others are multiplied by, in halves; the
# last one's stands at its end.
_HALVES = {Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path,
    path: Path,
    kind: str = "Q8_0",
    *,
    pre: str = "gpt-2",
    kinds: Mapping[str, str] | None = None,
    further: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> dict[str, Tensor]:
    """Write a folder's model and tokenizer; returns the weights that it then has, float32, by the
    names that transformers gives them.

    kind: of all matrices, one of llama.cpp's types. The K types' blocks are random: nothing in
    Python makes them from weights. kinds: of single tensors, by their names in the file. pre: how a
    byte-level tokenizer parts texts. further: entries that replace those from the folder, None for
    no such entry. tensors: more of them.
    """
    config = load_config(folder)
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    entries = _config_entries(config, architecture) | _tokenizer_entries(folder, pre)
    entries |= {"general.name": folder.name} | dict(further or {})
    for key, value in entries.items():
        if value is not None:
            _add(writer, key, value)
    made = {}
    random = np.random.default_rng(0)
    for name, weight in _weights(folder).items():
        turned = architecture == "llama" and name.split(".")[-2] in ("q_proj", "k_proj")
        own = weight if not turned else _turned(weight, config.head_dim)
        default = kind if weight.dim() == 2 else "F32"
        type_ = Type[(kinds or {}).get(_name(name), default)]
        data = _encoded(own, type_, random)
        writer.add_tensor(_name(name), data, raw_dtype=type_)
        back = torch.from_numpy(gguf.dequantize(data, type_).copy()).view(weight.shape)
        made[name] = _turned(back, config.head_dim, back=True) if turned else back
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: weight.float() for name, weight in load_file(file).items()}
    return found


def _encoded(weight: Tensor, kind: Type, random: np.random.Generator) -> np.ndarray[Any, Any]:
    values = weight.contiguous().numpy()
    if kind not in _HALVES:
        return gguf.quantize(values, kind)
    per_block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (values.size // per_block, nbytes), dtype=np.uint8)
    for place in _HALVES[kind]:
        size = random.uniform(0.5, 1.0, len(blocks)) * float(weight.std()) / 900
        blocks[:, place : place + 2] = size.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(len(values), -1)


def _turned(weight: Tensor, head_dim: int, *, back: bool = False) -> Tensor:
    """A head's rows in the order of llama.cpp's rotation, which turns neighbours."""
    halves = (head_dim // 2, 2) if back else (2, head_dim // 2)
    heads = weight.view(-1, *halves, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def _name(name: str) -> str:
    stem, end = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{_NAMES[stem]}.{end}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[part]}.{end}"


def _config_entries(config: ModelConfig, architecture: str) -> dict[str, Any]:
    window = next(iter(config.traits.windows), None)
    entries = {
        "vocab_size": config.vocab_size,
        "block_count": config.n_layers,
        "context_length": config.context_length,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.n_heads,
        "attention.head_count_kv": config.n_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "attention.sliding_window": window,
        "rope.freq_base": config.rope.theta,
        "rope.dimension_count": config.head_dim if architecture == "llama" else None,
    }
    return {f"{architecture}.{name}": value for name, value in entries.items()}


def _tokenizer_entries(folder: Path, pre: str) -> dict[str, Any]:
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = dict(state["model"]["vocab"])
    added = {entry["content"]: entry for entry in state["added_tokens"]}
    vocab |= {text: entry["id"] for text, entry in added.items()}
    size = load_config(folder).vocab_size
    tokens = [f"[PAD{at}]" for at in range(size)]
    kinds = [int(gguf.TokenType.UNUSED)] * size
    for text, at in vocab.items():
        tokens[at], kinds[at] = text, int(_kind(text, added, state["model"].get("unk_token")))
    like_sentencepiece = state["model"].get("byte_fallback", False)
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    entries: dict[str, Any] = {
        "tokenizer.ggml.model": "llama" if like_sentencepiece else "gpt2",
        "tokenizer.ggml.pre": "default" if like_sentencepiece else pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": (merges or None) if not like_sentencepiece else None,
        "tokenizer.ggml.scores": _scores(tokens, merges) if like_sentencepiece else None,
        "tokenizer.chat_template": config.get("chat_template"),
        "tokenizer.ggml.add_bos_token": config.get("add_bos_token"),
    }
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        text = config.get(f"{name}_token")
        entries[f"tokenizer.ggml.{key}_token_id"] = None if text is None else vocab[text]
    return entries


def _kind(text: str, added: Mapping[str, Any], unknown: str | None) -> gguf.TokenType:
    if text == unknown:
        return gguf.TokenType.UNKNOWN
    if text in added:
        special = added[text]["special"]
        return gguf.TokenType.CONTROL if special else gguf.TokenType.USER_DEFINED
    byte = len(text) == len("<0x00>") and text.startswith("<0x")
    return gguf.TokenType.BYTE if byte else gguf.TokenType.NORMAL


def _scores(tokens: list[str], merges: list[str]) -> list[float]:
    """The earlier it is merged, the higher."""
    ranks: dict[str, float] = {}
    for merge in merges:
        ranks.setdefault(merge.replace(" ", "", 1), float(-len(ranks)))
    return [ranks.get(text, -1e6) for text in tokens]


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
