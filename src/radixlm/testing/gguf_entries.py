"""A config.json as entries of a GGUF file, by the `gguf` package's writer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gguf
import numpy as np

from radixlm.models import ModelConfig

# A method of the writer, and the names that a field has in configs, of which the first counts.
_FIELDS = {
    "add_block_count": ("num_hidden_layers",),
    "add_context_length": ("max_position_embeddings",),
    "add_embedding_length": ("hidden_size",),
    "add_feed_forward_length": ("intermediate_size_mlp", "intermediate_size"),
    "add_head_count": ("num_attention_heads",),
    "add_vocab_size": ("vocab_size",),
    "add_layer_norm_rms_eps": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "add_layer_norm_eps": ("layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon"),
    "add_expert_count": (
        *("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    ),
    "add_expert_used_count": ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"),
    "add_expert_feed_forward_length": ("moe_intermediate_size",),
    "add_expert_shared_feed_forward_length": (
        *("shared_expert_intermediate_size", "shared_intermediate_size"),
        "moe_shared_expert_intermediate_size",
    ),
    "add_expert_shared_count": ("n_shared_experts", "moe_num_shared_experts"),
    "add_expert_group_count": ("n_group",),
    "add_expert_group_used_count": ("topk_group",),
    "add_expert_weights_scale": ("routed_scaling_factor",),
    "add_leading_dense_block_count": (
        *("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    ),
    "add_interleave_moe_layer_step": ("moe_layer_interval", "interleave_moe_layer_step"),
    "add_q_lora_rank": ("q_lora_rank",),
    "add_kv_lora_rank": ("kv_lora_rank",),
    "add_attn_logit_softcapping": ("attn_logit_softcapping",),
    "add_final_logit_softcapping": ("final_logit_softcapping",),
    "add_attention_scale": ("attention_multiplier",),
    "add_embedding_scale": ("embedding_multiplier",),
    "add_residual_scale": ("residual_multiplier",),
    "add_logit_scale": ("logits_scaling", "logit_scale"),
    "add_parallel_residual": ("use_parallel_residual",),
    "add_shortconv_l_cache": ("conv_L_cache",),
    "add_moe_latent_size": ("moe_latent_size",),
    "add_ssm_conv_kernel": ("linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel"),
    "add_ssm_state_size": ("linear_key_head_dim", "mamba_d_state", "ssm_state_size"),
    "add_ssm_group_count": ("linear_num_key_heads", "mamba_n_groups", "n_groups"),
    "add_ssm_time_step_rank": ("linear_num_value_heads", "mamba_n_heads", "mamba_num_heads"),
}
_PARTIAL = (
    *("phi3", "glm", "glm4", "glm4v_text", "glm4_moe", "minimax_m2", "nemotron", "stablelm"),
    *("mimo_v2_flash", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "bamba"),
)
_FULL = ("attention", "full_attention")


def add_config(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Add all that a converter takes from a config.json of transformers 5."""
    if config["model_type"] == "falcon_h1":  # whose factors are in its weights
        config = {name: its for name, its in config.items() if "multiplier" not in name}
    for method, names in _FIELDS.items():
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is not None:
            getattr(writer, method)(value)
    kind, heads = config["model_type"], config["num_attention_heads"]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    base = rope.get("rope_theta") or config["rope_theta"]
    if rope.get("alpha") and kind == "hunyuan_vl_text":
        writer.add_rope_scaling_alpha(rope["alpha"])
    elif rope.get("alpha"):  # Hunyuan's
        size = config.get("head_dim") or config["hidden_size"] // heads
        base *= rope["alpha"] ** (size / (size - 2))
    writer.add_rope_freq_base(base)
    if local:
        writer.add_rope_freq_base_swa(local["rope_theta"])
    if "kv_lora_rank" in config:
        _add_latents(writer, config, rope)
    else:
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        writer.add_key_length(head_dim)
        writer.add_value_length(config.get("v_head_dim") or head_dim)
        writer.add_head_count_kv(_heads_of_keys(config))
        share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        if not kind.startswith("gemma"):
            writer.add_rope_dimension_count(int(head_dim * (share if kind in _PARTIAL else 1)))
    if kind.startswith("gemma4"):
        _add_layers(writer, config, rope)
    _add_states(writer, config)
    _add_experts(writer, config)
    _add_windows(writer, config)
    _add_scaling(writer, config, rope)


def _heads_of_keys(config: Mapping[str, Any]) -> int | list[int]:
    """One number, or where layers differ a list."""
    heads: int = config.get("num_key_value_heads") or config["num_attention_heads"]
    kinds = config.get("layer_types") or ()
    match config["model_type"]:
        case "mimo_v2_flash":
            return [heads * (1 + (kind == "sliding_attention")) for kind in kinds]
        case "bamba":
            attentive = config["attn_layer_indices"]
            return [heads * (layer in attentive) for layer in range(config["num_hidden_layers"])]
        case "nemotron_h":
            return [heads * (its in _FULL) for its in config["layers_block_type"]]
        case "lfm2" | "lfm2_moe" | "granitemoehybrid":
            return [heads * (kind in _FULL) for kind in kinds]
    return heads


def _add_states(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    kind = config["model_type"]
    if "linear_key_head_dim" in config:
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        writer.add_ssm_inner_size(values)
        writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    if kind == "nemotron_h":
        writer.add_ssm_inner_size(config["mamba_num_heads"] * config["mamba_head_dim"])
    if "mamba_expand" in config:
        inner = config.get("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
        writer.add_ssm_inner_size(inner)
        writer.add_rope_scaling_finetuned(kind != "granitemoehybrid")
    length = gguf.Keys.LLM.FEED_FORWARD_LENGTH.format(arch=writer.arch)
    if kind == "nemotron_h":
        sizes = {"mlp": config["intermediate_size"], "moe": config["moe_intermediate_size"]}
        writer.kv_data[0].pop(length)
        writer.add_feed_forward_length([sizes.get(its, 0) for its in config["layers_block_type"]])
    if config.get("block_auto_adjust_ff_dim"):
        size, multiple = int(2 * config["intermediate_size"] / 3), config["block_multiple_of"]
        size = int(config["block_ffn_dim_multiplier"] * size)
        writer.kv_data[0].pop(length)
        writer.add_feed_forward_length(-(-size // multiple) * multiple)
    if config.get("attention_value_scale"):
        key = f"{writer.arch}.attention.value_scale"
        writer.add_float32(key, config["attention_value_scale"])


def _add_experts(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    kind, width = config["model_type"], config["intermediate_size"]
    if kind in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "mistral4", "nemotron_h"):
        writer.add_expert_weights_norm(config["norm_topk_prob"])
    if kind in ("deepseek_v3", "glm4_moe", "glm4_moe_lite", "minimax_m2", "lfm2_moe"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind in ("gpt_oss", "hunyuan_v1_moe", "minimax_m2", "llama4_text"):
        writer.add_expert_feed_forward_length(width)
    if kind == "hunyuan_v1_moe":
        writer.add_expert_shared_count(1)
        writer.add_expert_shared_feed_forward_length(width)
    if kind == "ernie4_5_moe":
        shared = config["moe_num_shared_experts"] * config["moe_intermediate_size"]
        writer.add_expert_shared_feed_forward_length(shared)


def _add_latents(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
    turned, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + turned)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(turned)
    if rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def _add_layers(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
    """Add what is of layers with heads of two sizes. rope: of those without a window."""
    shared, layers = config["num_kv_shared_layers"], config["num_hidden_layers"]
    of_layers = {int(layer): its for layer, its in config["per_layer_config"].items()}
    own = {"head_dim": config["head_dim"], "num_key_value_heads": config["num_key_value_heads"]}
    each = [own | of_layers.get(layer, {}) for layer in range(layers)]
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input") or 0)
    writer.add_head_count_kv([its["num_key_value_heads"] for its in each])
    wide = 1 + config["use_double_wide_mlp"]
    size = config["intermediate_size"]
    writer.add_feed_forward_length([size] * (layers - shared) + [size * wide] * shared)
    large = each[config["layer_types"].index("full_attention")]["head_dim"]
    for ending, head_dim in (("", large), ("_swa", config["head_dim"])):
        getattr(writer, f"add_key_length{ending}")(head_dim)
        getattr(writer, f"add_value_length{ending}")(head_dim)
        getattr(writer, f"add_rope_dimension_count{ending}")(head_dim)
    turning = int(large * rope["partial_rotary_factor"] / 2)
    factors = [1.0] * turning + [1e30] * (large // 2 - turning)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def _add_windows(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    window, kind = config.get("sliding_window"), config["model_type"]
    if kind == "phi3":
        window = window or 0
    if window is None or config.get("use_sliding_window") is False:
        return
    # Published configs of MiMo leave the token itself out.
    writer.add_sliding_window(window - (kind == "mimo_v2_flash"))
    if kind != "phi3" and config.get("layer_types"):
        writer.add_sliding_window_pattern(
            [each == "sliding_attention" for each in config["layer_types"]]
        )


def _add_scaling(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
    kind = rope.get("rope_type")
    sections = config.get("mrope_section")
    if config["model_type"].startswith("qwen3_5"):
        sections = rope.get("mrope_section") or [1, 1]
    if sections:
        writer.add_rope_dimension_sections([*sections, 0, 0][:4])
    _add_factors(writer, config, rope)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("llama_4_scaling_beta"):
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if config["model_type"] == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    if config["model_type"] == "mistral4" and kind == "yarn":
        writer.add_attn_temperature_length(rope["original_max_position_embeddings"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name in ("beta_fast", "beta_slow"):
            if rope.get(name) is not None:
                getattr(writer, f"add_rope_scaling_yarn_{name}")(rope[name])


def _add_factors(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
    """Add tensors by which frequencies are divided."""
    if rope.get("rope_type") == "longrope":
        length = config["max_position_embeddings"]
        original = config.get("original_max_position_embeddings") or 4096
        scale = length / original
        by = np.sqrt(1 + np.log(scale) / np.log(original)) if scale > 1 else 1.0
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(by))
        for name in ("long", "short"):
            values = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", values)
    if rope.get("rope_type") == "llama3":
        size = config["head_dim"]
        its = ModelConfig.from_hf(config).rope
        factors = replace(its, scaling=None).frequencies(size) / its.frequencies(size)
        writer.add_tensor("rope_freqs.weight", factors.numpy())
