"""GGUF files from folders in Hugging Face format, as llama.cpp's converters would write them: names
by the `gguf` package, rows and norms changed as they do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_TENSOR, TENSOR_NAMES
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from radixlm.testing.gguf_conversion import changed
from radixlm.testing.gguf_entries import add_config

_Array = NDArray[Any]
# Where a block of these has the numbers that all others are multiplied by, in halves: nothing in
# Python makes such blocks from weights.
HALVES: Mapping[Type, tuple[int, ...]] = {
    **dict.fromkeys((Type.Q4_K, Type.Q5_K), (0, 2)),
    **dict.fromkeys((Type.IQ4_NL, Type.IQ4_XS, Type.IQ1_S, Type.IQ2_XXS, Type.IQ2_XS), (0,)),
    **dict.fromkeys((Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S), (0,)),
    Type.Q2_K: (80, 82),
    Type.Q3_K: (108,),
    Type.Q6_K: (208,),
}
_MIDDLES = {Type.Q2_K: 1.5, Type.Q4_K: 7.5, Type.Q5_K: 15.5}
_ARCHITECTURES = {
    **dict.fromkeys(("mistral", "mixtral", "internlm3"), MODEL_ARCH.LLAMA),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "glm4_moe_lite"), MODEL_ARCH.DEEPSEEK2),
    "llama4_text": MODEL_ARCH.LLAMA4,
    "mimo_v2_flash": MODEL_ARCH.MIMO2,
    "qwen2_vl_text": MODEL_ARCH.QWEN2VL,
    "qwen3_vl_text": MODEL_ARCH.QWEN3VL,
    "qwen3_vl_moe_text": MODEL_ARCH.QWEN3VLMOE,
    "glm4v_text": MODEL_ARCH.GLM4,
    "hunyuan_vl_text": MODEL_ARCH.HUNYUAN_VL,
    "paddleocr_vl_text": MODEL_ARCH.PADDLEOCR,
    "qwen3_5_text": MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
    **dict.fromkeys(("granitemoehybrid", "bamba"), MODEL_ARCH.GRANITE_HYBRID),
    "cohere": MODEL_ARCH.COMMAND_R,
    "hunyuan_v1_dense": MODEL_ARCH.HUNYUAN_DENSE,
    "hunyuan_v1_moe": MODEL_ARCH.HUNYUAN_MOE,
    "minimax_m2": MODEL_ARCH.MINIMAXM2,
    "ministral3": MODEL_ARCH.MISTRAL3,
    "gemma3_text": MODEL_ARCH.GEMMA3,
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), MODEL_ARCH.GEMMA4),
    "glm": MODEL_ARCH.CHATGLM,
    "gpt_oss": MODEL_ARCH.GPT_OSS,
    "granitemoe": MODEL_ARCH.GRANITE_MOE,
    "olmo3": MODEL_ARCH.OLMO2,
    "qwen2_moe": MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": MODEL_ARCH.QWEN3MOE,
}
# Whose converters are llama's, or do the same.
_PERMUTED = (
    *("llama", "mistral", "mixtral", "internlm3", "granite", "granitemoe", "smollm3"),
    *("arcee", "ministral3", "granitemoehybrid", "bamba"),
)
_DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_LESS_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron", *_DELTA)
# Fields of `make_checkpoint`'s models that no file can say: llama.cpp has these values in its code.
_LATENT: Mapping[str, Any] = {
    "num_nextn_predict_layers": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 8.0,
        "mscale": 0.7,
        "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 256,
        "rope_theta": 10_000.0,
    },
}
UNSAID: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "glm4_moe_lite": {
        "num_nextn_predict_layers": 0,
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    "glm4_moe": {"num_nextn_predict_layers": 0},
    "gpt_oss": {"swiglu_limit": 7.0},
    "mistral4": {
        "rope_parameters": {
            **_LATENT["rope_parameters"],
            **dict.fromkeys(("mscale", "mscale_all_dim"), 1.0),
            "llama_4_scaling_beta": 0.5,
            "original_max_position_embeddings": 20,
        },
    },
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 12e6}},
    "llama4_text": {
        "num_hidden_layers": 4,
        "interleave_moe_layer_step": 2,
        "moe_layers": [1, 3],
        "attention_chunk_size": 8192,
        "no_rope_layers": None,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    },
    "mimo_v2_flash": {
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 1 / 3}
            for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
        },
    },
    "lfm2_moe": {"routed_scaling_factor": 1.0},
    "falcon_h1": {"mamba_norm_before_gate": False},
    "qwen3_next": {"mlp_only_layers": []},
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3_moe": {"decoder_sparse_step": 1},
    "smollm3": {"no_rope_layers": None},
}
_NUMBERED = re.compile(r"(model\.layers\.\d+\..*?)\.(?:norms\.)?(\d+)(\..*|)")


def write_gguf(
    folder: Path,
    path: Path,
    kind: str = "Q8_0",
    *,
    pre: str = "gpt-2",
    kinds: Mapping[str, str] | None = None,
    further: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray[Any, Any]] | None = None,
    without: Iterable[str] = (),
    most_tensors: int = 0,
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Tensor]:
    """Write a folder's model and tokenizer; returns the weights that it then has, float32, by the
    names that transformers gives them.

    kind: of all matrices, one of llama.cpp's types; F16 where rows are no whole blocks. Of types in
    HALVES blocks are random. kinds: of single tensors, by their names in the file. pre: how a
    byte-level tokenizer parts texts. further: entries that replace those from the folder, None for
    no such entry. tensors: more of them. without: those left out. most_tensors: in a part of a
    split file; 0: it is whole. fields: that replace those of the config.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8")) | dict(fields or {})
    architecture = _architecture(config["model_type"])
    writer = gguf.GGUFWriter(
        path, gguf.MODEL_ARCH_NAMES[architecture], split_max_tensors=most_tensors
    )
    add_config(writer, config)
    entries = _tokenizer_entries(folder, pre, config["vocab_size"])
    for key, value in (entries | {"general.name": folder.name} | dict(further or {})).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            _add(writer, key, value)
    made: dict[str, Tensor] = {}
    pieces: dict[str, list[tuple[_Array, Type]]] = {}
    converter = _Converter(config, architecture)
    random = np.random.default_rng(0)
    weights = _weights(folder)
    for name, weight in weights.items():
        if ".act_fn." in name:
            made[name] = weight
            continue
        rows, back = changed(config, name, weight)
        own = converter.names(name)
        type_ = _type_of(own[0], rows, Type[(kinds or {}).get(own[0], kind)], kinds or {})
        data = _encoded(rows, type_, random)
        made[name] = back(torch.from_numpy(gguf.dequantize(data, type_).copy()).view(rows.shape))
        for tensor, part in converter.pieces(name, own, data, rows.shape):
            pieces.setdefault(tensor, []).append((part, type_))
    _add_activations(writer, weights)
    _add_tensors(writer, {name: its for name, its in pieces.items() if name not in without})
    for tensor, values in (tensors or {}).items():
        writer.add_tensor(tensor, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def _add_activations(writer: gguf.GGUFWriter, weights: Mapping[str, Tensor]) -> None:
    """Add the weights of xielu, of which an entry has those of all layers."""
    numbers: dict[str, list[float]] = {}
    for name, weight in weights.items():
        if ".act_fn." in name:
            numbers.setdefault(f"xielu.{name.split('.')[-1]}", []).append(float(weight))
    for key, each in numbers.items():
        writer.add_array(key, each)


def _add_tensors(writer: gguf.GGUFWriter, pieces: Mapping[str, list[tuple[_Array, Type]]]) -> None:
    for tensor, parts in pieces.items():
        whole = parts[0][0] if len(parts) == 1 else np.stack([part for part, _ in parts])
        one = whole[0] if whole.shape[0] == 1 and tensor.endswith("inp_shexp.weight") else whole
        writer.add_tensor(tensor, np.ascontiguousarray(one), raw_dtype=parts[0][1])


def _architecture(model_type: str) -> MODEL_ARCH:
    return _ARCHITECTURES.get(model_type) or MODEL_ARCH[model_type.upper()]


class _Converter:
    """The changes that llama.cpp's converter makes to a model of a config.json."""

    def __init__(self, config: Mapping[str, Any], architecture: MODEL_ARCH) -> None:
        self._config, self._type = config, config["model_type"]
        self._map = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])

    def names(self, name: str) -> list[str]:
        """The tensors of a file that a weight's rows go to."""
        numbered = _NUMBERED.fullmatch(name)
        if numbered is not None:  # an expert's, or a head's
            name = numbered[1] + numbered[3]
            if self._type in ("mixtral", "lfm2_moe"):
                name = name.replace("block_sparse_moe.experts", "feed_forward.experts")
                name = name.removeprefix("model.")
        layer = name.split(".")[2] if name.startswith("model.layers.") else ""
        pair = MODEL_TENSOR.FFN_GATE_EXP, MODEL_TENSOR.FFN_UP_EXP
        if name.endswith("kv_b_proj.weight"):
            pair = MODEL_TENSOR.ATTN_K_B, MODEL_TENSOR.ATTN_V_B
        if "in_proj_qkvz" in name:
            pair = MODEL_TENSOR.ATTN_QKV, MODEL_TENSOR.ATTN_GATE
        if "shared_mlp" in name and self._config.get("num_local_experts"):
            pair = MODEL_TENSOR.FFN_GATE_SHEXP, MODEL_TENSOR.FFN_UP_SHEXP
        elif "shared_mlp" in name:
            name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
            pair = MODEL_TENSOR.FFN_GATE, MODEL_TENSOR.FFN_UP
        whole = self._type in ("gemma4_text", "mistral4") and "experts" in name
        if re.search(r"input_linear|experts\.gate_up_proj|kv_b_proj|qkvz", name) and not whole:
            end = "bias" if name.endswith("bias") else "weight"
            return [f"{TENSOR_NAMES[each].format(bid=layer)}.{end}" for each in pair]
        scaled = re.fullmatch(r"(.*)\.router\.(scale|per_expert_scale)", name)
        if scaled is not None:
            kind = MODEL_TENSOR.FFN_GATE_INP if scaled[2] == "scale" else MODEL_TENSOR.FFN_DOWN_EXP
            return [f"{TENSOR_NAMES[kind].format(bid=layer)}.scale"]
        if name.endswith(
            ("sinks", "experts.down_proj", "experts.gate_up_proj", "layer_scalar", "sink_bias")
        ):
            name += ".weight"
        name = name.replace("dt_bias", "dt_proj.bias").replace("expert_bias", "expert_bias.bias")
        name = re.sub(r"_bias$", ".bias", name)
        found = self._map.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"llama.cpp has no tensor for {name}")
        return [found]

    def pieces(
        self, name: str, own: list[str], data: _Array, shape: tuple[int, ...]
    ) -> list[tuple[str, _Array]]:
        """The parts that go to these tensors, of rows of bytes or numbers. shape: of the weight."""
        heads = self._config["num_attention_heads"]
        if name.endswith("kv_b_proj.weight"):
            parted = data.reshape(heads, -1, shape[-1])
            keys = self._config["qk_nope_head_dim"]
            return [(own[0], parted[:, :keys].swapaxes(1, 2)), (own[1], parted[:, keys:])]
        if "qkvz" in name:
            gates = self._config["linear_num_value_heads"] * self._config["linear_value_head_dim"]
            return list(zip(own, np.split(data, [-gates]), strict=True))
        if len(own) == 2:
            axis = data.ndim - 2
            if self._type == "gpt_oss":
                return [(each, data[:, start::2]) for start, each in enumerate(own)]
            return list(zip(own, np.split(data, 2, axis), strict=True))
        if self._type in _PERMUTED and re.search(r"[qk]_proj\.", name):
            if "k_proj" in name:
                heads = self._config.get("num_key_value_heads") or heads
            split = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
            data = split.swapaxes(1, 2).reshape(data.shape)
        is_own = name.endswith("norm.weight") and "linear_attn" not in name
        if self._type in _LESS_ONE and is_own:
            data = data + 1
        return [(own[0], data)]


def _type_of(own: str, weight: Tensor, kind: Type, kinds: Mapping[str, str]) -> Type:
    """The type of a tensor in the file: as llama.cpp's tool for that chooses it."""
    if own in kinds:
        return kind
    if weight.dim() < 2 or re.search(r"norm|gate_inp|bias|ssm_(a|d|conv1d)\b|conv\.conv", own):
        return Type.F32
    rest = weight.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]
    return Type.F16 if kind is not Type.F32 and (rest or "_k_b" in own) else kind


def _weights(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: weight.float() for name, weight in load_file(file).items()}
    return found


def _encoded(weight: Tensor, kind: Type, random: np.random.Generator) -> _Array:
    values = weight.contiguous().numpy()
    if kind not in HALVES:
        return gguf.quantize(values, kind)
    per_block = gguf.GGML_QUANT_SIZES[kind][0]
    blocks = random_blocks(kind, values.size // per_block, random, float(weight.std()))
    return blocks.reshape(*values.shape[:-1], -1)


def random_blocks(
    kind: Type, count: int, random: np.random.Generator, size: float
) -> NDArray[np.uint8]:
    """(count, bytes) of a type in HALVES. size: about that of the numbers that they stand for."""
    blocks = random.integers(0, 256, (count, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)

    def put(factor: float) -> None:
        # The second is of what is taken off, so that the middle code is about 0.
        for place, by in zip(HALVES[kind], (1.0, _MIDDLES.get(kind, 0.0)), strict=False):
            halves = (random.uniform(0.5, 1.0, count) * factor * by).astype("<f2")
            blocks[:, place : place + 2] = halves.view(np.uint8).reshape(-1, 2)

    put(1.0)
    put(size / float(gguf.dequantize(blocks[:64], kind).std()))
    return blocks


def _tokenizer_entries(folder: Path, pre: str, size: int) -> dict[str, Any]:
    state = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    vocab: dict[str, int] = dict(state["model"]["vocab"])
    added = {entry["content"]: entry for entry in state["added_tokens"]}
    vocab |= {text: entry["id"] for text, entry in added.items()}
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
