"""Fields of tiny checkpoints of models that carry states, by the names that transformers has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Heads of states that several heads of values share, and sizes that are all different.
_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "pad_token_id": None,
}
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "mamba_expand": 2,
    "pad_token_id": None,
}
SHARED_EXPERT = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
_NEMOTRON = {
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "n_groups": 2,
    "ssm_state_size": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
    "moe_latent_size": 40,
    "routed_scaling_factor": 1.7,
}
HYBRIDS: Mapping[str, Mapping[str, Any]] = {
    "qwen3_next": {**_DELTA, **SHARED_EXPERT, "mlp_only_layers": [1]},
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": {**_DELTA, **SHARED_EXPERT},
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "pad_token_id": None},
    "lfm2_moe": {
        "layer_types": ["conv", "full_attention", "conv"],
        "pad_token_id": None,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "num_dense_layers": 1,
        "routed_scaling_factor": 1.7,
    },
    "lfm3": {
        "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
        "num_hidden_layers": 4,
        "sliding_window": 24,
        "pad_token_id": None,
    },
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **_MAMBA,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.7,
        "num_local_experts": 5,
        "shared_intermediate_size": 48,
    },
    "nemotron_h": {
        **_NEMOTRON,
        "layers_block_type": [
            *("linear_attention", "moe", "full_attention", "mlp", "linear_attention"),
        ],
    },
    "olmo_hybrid": _DELTA,
    "kimi_linear": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "linear_head_dim": 12,
        "linear_num_heads": 4,
        "num_key_value_heads": 4,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "kv_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 12,
        "pad_token_id": None,
    },
    "jamba": {
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 5,
        "mamba_dt_rank": 5,
        "mamba_d_state": 6,
        "pad_token_id": None,
    },
    "mamba": {"state_size": 6, "intermediate_size": 112},
    "falcon_mamba": {"state_size": 6, "intermediate_size": 112},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2, "state_size": 12},
    "zamba2": {
        **_MAMBA,
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
        "n_mamba_heads": 8,
        "mamba_ngroups": 2,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "adapter_rank": 6,
        "use_mem_rope": True,
        "time_step_min": 1e-30,
        "initializer_range": 0.12,
    },
    "falcon_h1": {
        **_MAMBA,
        "mamba_d_ssm": 96,
        "mamba_rms_norm": True,
        "lm_head_multiplier": 0.7,
        "embedding_multiplier": 2.0,
        "mlp_multipliers": [0.8, 1.2],
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.9,
        "ssm_multipliers": [0.5, 0.9, 1.1, 1.2, 0.8],
        "ssm_in_multiplier": 1.1,
        "ssm_out_multiplier": 0.6,
    },
}
