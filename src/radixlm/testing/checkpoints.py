"""Checkpoints of known shapes with random weights: for measurements, nothing to download.

A folder holds all that serving needs. Its tokenizer has a token per byte, the ChatML marks, and
made-up words for the rest of the vocabulary, so that whatever such a model samples reads as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.models import CausalLM, ModelConfig
from radixlm.text.token_bytes import byte_alphabet

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
FIRST_WORD_ID = 256 + len(SPECIAL_TOKENS)
EOS_TOKEN_ID = FIRST_WORD_ID - 1
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SHARD_BYTES = 1 << 30


# fmt: off
_FIELDS = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings",
    "rms_norm_eps", "rope_theta", "tie_word_embeddings",
)
# tiny and 10m (parameters) are ours. The others are as published, save for the token ids:
# {HuggingFaceTB/SmolLM2-135M, Qwen/Qwen3-0.6B, meta-llama/Llama-3.2-1B, Qwen/Qwen3-8B}. SmolLM2
# has SmolLM's sizes and four times its context.
_SIZES: Mapping[str, tuple[Any, ...]] = {
    "tiny": ("llama", 512, 64, 192, 2, 4, 2, 16, 8192, 1e-5, 10_000.0, True),
    "10m": ("llama", 6144, 384, 768, 6, 6, 2, 64, 8192, 1e-5, 10_000.0, True),
    "smollm-135m": ("llama", 49_152, 576, 1536, 30, 9, 3, 64, 8192, 1e-5, 100_000.0, True),
    "qwen3-0.6b": ("qwen3", 151_936, 1024, 3072, 28, 16, 8, 128, 40_960, 1e-6, 1_000_000.0, True),
    "qwen3.5-0.8b": ("qwen3_5_text", 248_320, 1024, 3584, 24, 8, 2, 256, 262_144, 1e-6, 1e7, True),
    "llama-3.2-1b": ("llama", 128_256, 2048, 8192, 16, 32, 8, 64, 131_072, 1e-5, 500_000.0, True),
    "qwen3-8b": ("qwen3", 151_936, 4096, 12_288, 36, 32, 8, 128, 40_960, 1e-6, 1_000_000.0, False),
}
_FURTHER: Mapping[str, Mapping[str, Any]] = {
    "qwen3.5-0.8b": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "layer_types": ([*["linear_attention"] * 3, "full_attention"]) * 6,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "attn_output_gate": True, "partial_rotary_factor": 0.25,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
        },
    },
    "llama-3.2-1b": {
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    }
}
# fmt: on


def _shape(name: str) -> Mapping[str, Any]:
    sizes = dict(zip(_FIELDS, _SIZES[name], strict=True))
    common = {
        "architectures": [f"{sizes['model_type'].capitalize()}ForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": False,
        "eos_token_id": EOS_TOKEN_ID,
        "bos_token_id": None,
    }
    return MappingProxyType(common | sizes | dict(_FURTHER.get(name, {})))


SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType({name: _shape(name) for name in _SIZES})


def write_random_checkpoint(
    shape: str,
    folder: Path | str,
    *,
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
    seed: int = 0,
    shard_bytes: int = _SHARD_BYTES,
) -> Path:
    """Write a model of one of SHAPES into `folder`, which is new or empty; returns the folder.

    Equal seeds give equal weights. Memory: one shard, which holds `shard_bytes` or one tensor.
    config.json is written last, so that a folder that has one is complete.
    Raises ConfigError for an unknown shape or dtype, and for a folder that holds something.
    """
    if shape not in SHAPES:
        raise ConfigError(f"unknown shape {shape!r}; known are {', '.join(SHAPES)}")
    if dtype not in ("bfloat16", "float32"):
        raise ConfigError(f"dtype is bfloat16 or float32, got {dtype!r}")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty; a checkpoint is written into a new folder")
    config = dict(SHAPES[shape]) | {"torch_dtype": dtype}
    write_byte_tokenizer(folder, config["vocab_size"], config["max_position_embeddings"])
    _write_weights(folder, ModelConfig.from_hf(config), seed, shard_bytes)
    _write_json(folder / "generation_config.json", {"eos_token_id": EOS_TOKEN_ID})
    _write_json(folder / "config.json", config)
    return folder


def write_byte_tokenizer(folder: Path, vocab_size: int, context_length: int) -> None:
    """Write tokenizer.json and tokenizer_config.json for a vocabulary of `vocab_size` ids.

    Ids 0 to 255 are the bytes, then SPECIAL_TOKENS, then words that only decoding can give.
    """
    if vocab_size < FIRST_WORD_ID:
        raise ConfigError(f"a byte tokenizer needs {FIRST_WORD_ID} ids, got {vocab_size}")
    vocab = byte_alphabet()
    vocab |= {token: 256 + index for index, token in enumerate(SPECIAL_TOKENS)}
    vocab |= {f"Ġw{index}": index for index in range(FIRST_WORD_ID, vocab_size)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": context_length,
            "eos_token": TURN_END,
            "pad_token": END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _write_weights(folder: Path, config: ModelConfig, seed: int, shard_bytes: int) -> None:
    dtype = config.dtype
    shapes = CausalLM(config, dtype=dtype, device=torch.device("meta")).weights()
    shards = _planned(shapes, shard_bytes)
    generator = torch.Generator().manual_seed(seed)
    weight_map: dict[str, str] = {}
    for index, names in enumerate(shards, start=1):
        file = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        if len(shards) == 1:
            file = "model.safetensors"
        tensors = {
            name: _random(name, shapes[name].shape, config.hidden_size, dtype, generator)
            for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        total = sum(tensor.nbytes for tensor in shapes.values())
        index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
        _write_json(folder / "model.safetensors.index.json", index_json)


def _planned(shapes: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Names by shard, in order; a shard ends before it would outgrow `shard_bytes`."""
    shards: list[list[str]] = [[]]
    size = 0
    for name, tensor in shapes.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += tensor.nbytes
    return shards


def _random(
    name: str,
    shape: Iterable[int],
    hidden_size: int,
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    """Weights that keep activations at unit scale and give logits a spread of about 2."""
    tensor = torch.empty(tuple(shape), dtype=dtype)
    if tensor.dim() == 1:
        return tensor.fill_(1.0)
    vocabulary = name in ("model.embed_tokens.weight", "lm_head.weight")
    std = 2 / math.sqrt(hidden_size) if vocabulary else 1 / math.sqrt(tensor.shape[1])
    return tensor.normal_(0.0, std, generator=generator)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
