"""What published configs have beside the fields of `testing.reference`'s models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TIED, _WINDOW = {"tie_word_embeddings": True}, {"sliding_window": 24}
_BASE = {"factor": 8.0, "rope_theta": 5e5, "original_max_position_embeddings": 64}
_STEPS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA_3 = {"rope_parameters": _BASE | _STEPS | {"rope_type": "llama3"}}
_YARN = _BASE | {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.2}
_PLAIN = {"rope_type": "default", "rope_theta": 5e5}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 256,
    "short_factor": [1.0 + at / 4 for at in range(6)],
    "long_factor": [2.0 + at / 2 for at in range(6)],
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    "llama": _TIED | _LLAMA_3,
    "mistral": _WINDOW,
    "qwen2": _TIED | _WINDOW | {"use_sliding_window": False, "max_window_layers": 2},
    "qwen3": _TIED | {"use_sliding_window": False, "max_window_layers": 3},
    "phi3": _TIED | {"original_max_position_embeddings": 256, "rope_parameters": _LONG},
    "stablelm": {"qk_layernorm": True, "use_parallel_residual": True},
    "starcoder2": _TIED | _WINDOW,
    "cohere": {"use_qk_norm": True},
    "internlm3": {"rope_parameters": {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 5e7}},
    "olmo3": {"rope_parameters": {"sliding_attention": _PLAIN, "full_attention": _YARN}},
    "gpt_oss": {"swiglu_limit": 7.0},
    "deepseek_v2": {"q_lora_rank": None},
    "seed_oss": {"attention_bias": True, "attention_out_bias": False},
    "ernie4_5": _TIED | {"use_bias": False},
    "arcee": {"rope_parameters": _YARN},
    **dict.fromkeys(("granite", "smollm3", "hunyuan_v1_dense"), _TIED),
    **dict.fromkeys(("exaone4", "apertus", "llama4_text"), _LLAMA_3),
}
_ALIKE = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
# As llama.cpp runs them: it has no such biases, a norm of all keys, windows in exaone4 of 64 layers
# only, groups of experts by their two best as in deepseek_v3, heads of one size in a delta rule,
# turns all of Bamba's heads or none, and rounds the ends of YaRN.
RUN_BY_LLAMA: Mapping[str, Mapping[str, Any]] = {
    "olmoe": {"num_key_value_heads": 4},
    "deepseek_v2": {"n_group": None, "topk_group": None, "topk_method": "greedy"},
    # Its windows leave the token itself in, where MiMo's do not.
    "mimo_v2_flash": {"sliding_window": 500},
    **dict.fromkeys(("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"), _ALIKE),
    "bamba": {"rope_parameters": {**_PLAIN, "partial_rotary_factor": 1.0}},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 3},
    "gpt_oss": {"rope_parameters": {"rope_type": "default", "rope_theta": 150_000.0}},
    "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {"use_bias": False},
    "hunyuan_v1_dense": {"attention_bias": False},
    "arcee": {"mlp_bias": False},
}


def _rope(*sections: int) -> Mapping[str, Any]:
    """Of several axes, which are one where there is text alone."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [*sections]}
    return {"rope_parameters": rope}


_MROPE = _rope(2, 3, 3)
# Models of text and images: the family that their text is like, and its fields.
WHOLE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gemma3": ("gemma3_text", {}),
    "gemma4": ("gemma4_text", {}),
    "gemma4_unified": ("gemma4_unified_text", {}),
    "mistral3": ("mistral", {}),
    "mistral3 (ministral3)": ("ministral3", {"model_type": "ministral3"}),
    "llama4": ("llama4_text", {}),
    "internvl": ("qwen2", {}),
    "llava": ("llama", {}),
    "qwen2_vl": ("qwen2", _MROPE),
    "qwen2_5_vl": ("qwen2", _MROPE),
    "qwen3_vl": ("qwen3", _MROPE),
    "qwen3_vl_moe": ("qwen3_moe", {**_MROPE, "moe_intermediate_size": 40}),
    "glm4v": ("glm4", _MROPE),
    "glm4v_moe": ("glm4_moe", {**_rope(1, 1, 2), "use_qk_norm": False}),
    "glm_ocr": ("glm4", _MROPE),
    "hunyuan_vl": ("hunyuan_v1_dense", _rope(2, 2, 2, 2)),
    "paddleocr_vl": ("ernie4_5", _MROPE),
    # The whole's class, not its text's, leaves the scale out.
    "cohere2_vision": ("cohere2", {"logit_scale": 1.0}),
}
# Model_types that transformers has no class for, and the one that their layers are.
ALIASES: Mapping[str, str] = {"kimi_k2": "deepseek_v3"}
