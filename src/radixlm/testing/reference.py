"""Tiny random checkpoints, written and run by transformers: the reference for our own models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from radixlm.testing.checkpoints import EOS_TOKEN_ID, write_byte_tokenizer
from radixlm.testing.hybrids import HYBRIDS, SHARED_EXPERT

# Which it is, but it stands in no table of theirs.
transformers.AutoModelForCausalLM.register(
    transformers.Mistral4Config, transformers.Mistral4ForCausalLM, exist_ok=True
)
# By the names that transformers has for them.
ARCHITECTURES = (
    *("llama", "mistral", "qwen2", "qwen3", "phi3", "granite", "olmo2", "smollm3"),
    *("gemma", "stablelm", "starcoder2", "glm", "glm4", "cohere", "nemotron"),
    *("internlm3", "mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "gemma2"),
    *("gemma3_text", "cohere2", "olmo3", "gpt_oss", "deepseek_v2", "deepseek_v3"),
    *("glm4_moe", "glm4_moe_lite", "minimax_m2", "ministral3", "mistral4", "seed_oss"),
    *("exaone4", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense", "hunyuan_v1_moe"),
    *("apertus", "arcee", "llama4_text", "gemma4_text", "gemma4_unified_text", "mimo_v2_flash"),
)
_WINDOWS = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
# Rows of 32 numbers; layers without experts and with them, in groups.
_LATENTS = {
    "head_dim": 8,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "q_lora_rank": 20,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 4,
    "topk_group": 2,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 8.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 256,
        "rope_theta": 10_000.0,
    },
}
_GROUPS = {
    name: _LATENTS[name]
    for name in (
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "n_group",
        "topk_group",
        "first_k_dense_replace",
    )
}
# Queries of tokens 20, 40, .. are longer.
_GROWING = {
    "rope_type": "yarn",
    "factor": 8.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 20,
    "rope_theta": 10_000.0,
    "llama_4_scaling_beta": 0.5,
}
# Two kinds of heads; the last three layers read the keys and values of layers 1 and 2.
_GEMMA4 = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 3,
    "sliding_window": 24,
    "head_dim": 16,
    "global_head_dim": 32,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "use_double_wide_mlp": True,
    "final_logit_softcapping": 6.0,
}
# What a family's checkpoints have beside the sizes: what sets it apart, and nothing that hides it.
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    **HYBRIDS,
    "mistral": {"sliding_window": None},
    "gptj": {"rotary_dim": 8},
    "codegen": {"rotary_dim": 8},
    "gpt_neo": {
        "num_hidden_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 9,
    },
    "longcat_flash": {
        **{name: its for name, its in _LATENTS.items() if name != "rope_parameters"},
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 32,
        "zero_expert_num": 2,
        "num_layers": 2,
    },
    "jetmoe": {"kv_channels": 16, "num_local_experts": 4},
    "dbrx": {
        "d_model": 64,
        "attn_config": {"rope_theta": 500_000.0, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "phi3": {"pad_token_id": None, "partial_rotary_factor": 0.75},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.7,
    },
    "olmo2": {"pad_token_id": None},
    "smollm3": {"pad_token_id": None, "no_rope_layers": [1, 0, 1]},
    "stablelm": {"use_qkv_bias": True, "partial_rotary_factor": 0.5},
    "glm": {"pad_token_id": None},
    "glm4": {"pad_token_id": None},
    "mixtral": {"num_local_experts": 6},
    "qwen2_moe": {**SHARED_EXPERT, "mlp_only_layers": [1]},
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "pad_token_id": None},
    "granitemoe": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.7,
        "num_local_experts": 5,
    },
    "internlm3": {"attention_bias": True, "mlp_bias": True},
    "gemma2": {
        **_WINDOWS,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 6.0,
    },
    "gpt_oss": {
        **_WINDOWS,
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "swiglu_limit": 1.5,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 8.0,
            "truncate": False,
            "original_max_position_embeddings": 256,
            "rope_theta": 10_000.0,
        },
    },
    "gemma3_text": {**_WINDOWS, "query_pre_attn_scalar": 24},
    "cohere2": _WINDOWS,
    "olmo3": {**_WINDOWS, "pad_token_id": None},
    "deepseek_v2": {
        **_LATENTS,
        "topk_method": "group_limited_greedy",
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.7,
    },
    "deepseek_v3": _LATENTS,
    "glm4_moe": {
        **_GROUPS,
        "attention_bias": True,
        "use_qk_norm": True,
        "routed_scaling_factor": 1.7,
    },
    "glm4_moe_lite": {**_LATENTS, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    "minimax_m2": {
        "num_local_experts": 6,
        "num_experts_per_tok": 3,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "ministral3": {"pad_token_id": None, "rope_parameters": _GROWING},
    "mistral4": {
        **_LATENTS,
        "head_dim": 24,
        "pad_token_id": None,
        "routed_scaling_factor": 1.7,
        "rope_parameters": _GROWING | {"mscale_all_dim": 0.7},
    },
    "exaone4": _WINDOWS,
    "ernie4_5": {"use_bias": True},
    "ernie4_5_moe": {
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
    },
    "hunyuan_v1_dense": {
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "dynamic",
            "alpha": 50.0,
            "factor": 1.0,
            "rope_theta": 10_000.0,
        },
    },
    "hunyuan_v1_moe": {"num_experts": 6, "moe_topk": 2},
    "apertus": {"pad_token_id": None},
    "arcee": {"mlp_bias": True},
    "llama4_text": {
        "intermediate_size": 48,
        "intermediate_size_mlp": 96,
        "num_local_experts": 6,
        "moe_layers": [1, 2],
        "attention_chunk_size": 24,
        "no_rope_layers": [1, 0, 1],
        "floor_scale": 20,
        "attn_scale": 0.5,
    },
    "gemma4_text": {
        **_GEMMA4,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 320,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 3,
        "moe_intermediate_size": 32,
    },
    "gemma4_unified_text": _GEMMA4,
    "mimo_v2_flash": {
        "sliding_window": 24,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "num_key_value_heads": 1,
        "head_dim": 24,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
            for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
        },
    },
}


@dataclass(frozen=True)
class Greedy:
    """Answers of transformers: (prompts, steps) tokens, and the gap between the two best logits of
    each step.
    """

    tokens: list[list[int]]
    gaps: list[list[float]]


def make_checkpoint(
    folder: Path, architecture: str, *, seed: int = 0, max_shard_size: str = "5GB", **overrides: Any
) -> Path:
    """Write a float32 checkpoint of 3 layers with tokenizer; `overrides` are config fields.

    Weights are wide enough that greedy output wanders, yet not so wide that attention turns into
    a choice of one token, which magnifies rounding. Biases and norms are random too: transformers'
    zeros and ones would hide a mistake. Returns the folder.
    """
    fields = sizes_of(architecture)
    config: Any = transformers.AutoConfig.for_model(architecture, **fields | overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        fill(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    write_byte_tokenizer(folder, config.vocab_size, config.max_position_embeddings)
    return folder


def sizes_of(architecture: str) -> dict[str, Any]:
    """The fields of a tiny config."""
    fields: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "eos_token_id": EOS_TOKEN_ID,
        "bos_token_id": None,
        "dtype": "float32",
    }
    if architecture == "falcon":
        del fields["head_dim"]  # which it derives
    return {**fields, **_FIELDS.get(architecture, {})}


def fill(model: Any) -> None:
    """Make what transformers leaves at zeros and ones random, too."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("_bias"):
            mean = 0.0 if name.endswith("bias") else 1.0
            torch.nn.init.normal_(parameter, mean, 0.3)
        if name.endswith("A_log"):
            torch.nn.init.uniform_(parameter, -6.0, 0.0)  # some heads remember for long
        if "gemma4" in model.config.model_type and name.endswith("q_norm.weight"):
            torch.nn.init.normal_(parameter, 0.25, 0.1)  # there nothing divides scores
    for name, buffer in model.named_buffers():
        if name.endswith(("correction_bias", "expert_bias")):
            buffer.normal_(0.0, 0.3)
        if name.endswith("layer_scalar"):
            buffer.uniform_(0.5, 1.0)


def load_reference(folder: Path) -> transformers.PreTrainedModel:
    """The folder's model as transformers runs it, float32, ready for inference."""
    model: transformers.PreTrainedModel = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    model.eval()
    return model


@torch.inference_mode()
def reference_logits(
    model: transformers.PreTrainedModel, token_ids: Sequence[int], first_position: int = 0
) -> Tensor:
    """(tokens, vocab_size) logits of one sequence that begins at `first_position`."""
    positions = torch.arange(first_position, first_position + len(token_ids))[None]
    ids = torch.tensor([token_ids])
    logits: Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return logits[0].float()


@torch.inference_mode()
def greedy(model: Any, prompts: Sequence[Sequence[int]], steps: int) -> Greedy:
    """The greedy answers of transformers' `model` to each prompt, one at a time."""
    tokens, gaps = [], []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=steps,
            min_new_tokens=steps,
            eos_token_id=None,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens.append(out.sequences[0, len(prompt) :].tolist())
        best = torch.stack([step[0] for step in out.logits]).topk(2).values
        gaps.append((best[:, 0] - best[:, 1]).tolist())
    return Greedy(tokens, gaps)
