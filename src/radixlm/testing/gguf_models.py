"""Tiny models as GGUF files, beside folders with the weights that these have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from radixlm.testing.gguf_writer import UNSAID, write_gguf
from radixlm.testing.reference import INDEXED, make_checkpoint

# Families whose files are refused.
UNREAD = frozenset(
    [
        *("emu3_text_model", "kimi_linear", "mamba", "falcon_mamba", "mamba2", "jamba", "lfm3"),
        *("olmo_hybrid", "minimax", "bailing_hybrid", "recurrent_gemma", "zamba", "zamba2"),
        *INDEXED,
    ]
)
# Texts of models of text and images that have an architecture of their own there: the family whose
# weights they have, and its fields.
TEXTS_LIKE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "qwen2_vl_text": ("qwen2", {}),
    "qwen3_vl_text": ("qwen3", {}),
    "qwen3_vl_moe_text": ("qwen3_moe", {"decoder_sparse_step": 1}),
    "glm4v_text": ("glm4", {"attention_bias": True}),
    "hunyuan_vl_text": ("hunyuan_v1_dense", {}),
    "paddleocr_vl_text": ("llama", {}),
}
# Rows of 256 numbers, as blocks of these types have them.
LARGE: Mapping[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
# llama.cpp's mixture: more bits for values and what goes back into the residual.
Q4_K_M: Mapping[str, str] = {
    f"blk.{layer}.{name}.weight": "Q6_K" for layer in range(2) for name in ("attn_v", "ffn_down")
}


def write_pair(root: Path, family: str, kind: str, **options: Any) -> tuple[Path, Path]:
    """Returns a folder with the weights that a GGUF file of a type has, and that file. options:
    fields of the config, and of `write_gguf`.
    """
    own: dict[str, Any] = {
        name: options.pop(name) for name in ("kinds", "further", "most_tensors") if name in options
    }
    if family in TEXTS_LIKE:
        own["fields"] = {"model_type": family, "mrope_section": [2, 1, 1]}
        family, fields = TEXTS_LIKE[family]
        options = dict(fields) | options
    folder = make_checkpoint(root / "m", family, **dict(UNSAID.get(family, {})) | options)
    path = root / "m.gguf"
    weights = write_gguf(folder, path, kind, **own)
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder, path


def of_256(family: str) -> dict[str, Any]:
    """The fields of a model whose rows are whole blocks of 256."""
    more = dict(LARGE)
    if family.startswith("deepseek") or family == "mistral4":
        more = {"hidden_size": 256, "intermediate_size": 256, "moe_intermediate_size": 256}
    if family in ("qwen2_moe", "qwen3_moe", "nemotron_h"):
        more["moe_intermediate_size"] = 256
    if family == "nemotron_h":
        more["time_step_min"] = 1e-30  # to which transformers holds steps of prompts alone
    if family == "llama4_text":
        more["intermediate_size_mlp"] = 256
    if family == "mimo_v2_flash":
        more |= {"head_dim": 96, "v_head_dim": 64}
    if family.startswith("qwen3_5"):
        more |= {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
    if family in ("gemma2", "gemma3_text"):
        more["query_pre_attn_scalar"] = 64
    return more
