"""The fields of config.json that a GGUF file's entries are, and what a family's files leave out.

Keys are those of the `gguf` package, with `{arch}` for the architecture. Most fields mean the same
in all families, so an entry is given under each name that some family has for it. A further family
is a row of FAMILIES.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from gguf import ExpertGatingFuncType, Keys

LLM, ATTENTION, ROPE, SSM = Keys.LLM, Keys.Attention, Keys.Rope, Keys.SSM
# Newer than the package.
VALUE_SCALE = "{arch}.attention.value_scale"


class Family(NamedTuple):
    """Facts that files of an architecture do not say.

    model_type: as transformers has it. instead: another one, if a file has the field.
    turned: the rows of a head's queries and keys are in the order of llama.cpp's rotation, which
        turns neighbours, where transformers turns halves.
    fields: values of fields that files have no entry for, or may have none for.
    rope: likewise, of a stretched rotation. log_scale: 1 / what `yarn_log_multiplier` is of mscale.
    deep: with how many layers scores are divided by the root of hidden size / heads.
    unnormed: with how many experts heads have no norm, of which files have no tensor.
    layered: what layers do not have alike: heads of their own sizes (sizes), how many heads of keys
        those with a window have (windows), or whether they have attention: by the name that
        configs have for those without.
    """

    model_type: str
    instead: Mapping[str, str] = MappingProxyType({})
    turned: bool = False
    fields: Mapping[str, Any] = MappingProxyType({})
    rope: Mapping[str, Any] = MappingProxyType({})
    log_scale: float = 1.0
    deep: int = 0
    unnormed: int = 0
    layered: Literal["", "sizes", "windows", "conv", "mamba"] = ""


_LATENT = {
    "first_k_dense_replace": 0,
    "norm_topk_prob": False,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": None,
    "routed_scaling_factor": 1.0,
}
# Falcon-H1's factors are in its weights.
_NO_FACTORS = {
    f"{name}_multiplier": 1.0
    for name in (
        "attention_in",
        "attention_out",
        "embedding",
        "key",
        "lm_head",
        "ssm_in",
        "ssm_out",
    )
}
_NO_INPUTS = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama", {"num_experts": "mixtral", "sliding_window": "mistral"}, turned=True),
    "mistral3": Family(
        "mistral", {"growing": "ministral3"}, turned=True, fields={"sliding_window": None}
    ),
    "arcee": Family("arcee", turned=True),
    "ernie4_5": Family("ernie4_5"),
    "ernie4_5-moe": Family("ernie4_5_moe"),
    "exaone4": Family("exaone4", fields={"sliding_window": None}),
    "glm4moe": Family("glm4_moe", fields={"norm_topk_prob": False}),
    "hunyuan-dense": Family("hunyuan_v1_dense"),
    "hunyuan-moe": Family("hunyuan_v1_moe"),
    "minimax-m2": Family("minimax_m2"),
    "seed_oss": Family("seed_oss"),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3"),
    "qwen2moe": Family("qwen2_moe"),
    "qwen3moe": Family("qwen3_moe", fields={"norm_topk_prob": True}),
    "phi3": Family("phi3"),
    "granite": Family("granite", turned=True),
    "granitemoe": Family("granitemoe", turned=True),
    "olmo2": Family("olmo2", {"sliding_window": "olmo3"}),
    "olmoe": Family("olmoe"),
    "smollm3": Family("smollm3", turned=True),
    "chatglm": Family("glm"),
    "glm4": Family("glm4", {"mrope_section": "glm4v_text"}),
    "command-r": Family("cohere"),
    "cohere2": Family("cohere2"),
    "starcoder2": Family("starcoder2"),
    "stablelm": Family("stablelm"),
    "nemotron": Family("nemotron"),
    "gemma": Family("gemma"),
    "gemma2": Family("gemma2", deep=46),
    "gemma3": Family("gemma3_text", deep=62),
    "gemma4": Family("gemma4_text", fields=_NO_INPUTS, layered="sizes"),
    "gpt-oss": Family("gpt_oss", rope={"truncate": False}),
    "deepseek2": Family(
        "deepseek_v2",
        {"corrected": "deepseek_v3", "growing": "mistral4"},
        fields=_LATENT,
        log_scale=10.0,
    ),
    "mistral4": Family("mistral4", fields={**_LATENT, "growing": 0.1}, log_scale=10.0),
    "apertus": Family("apertus"),
    "llama4": Family("llama4_text", unnormed=128),
    "mimo2": Family("mimo_v2_flash", fields={"routed_scaling_factor": 1.0}, layered="windows"),
    "qwen2vl": Family("qwen2_vl_text"),
    "qwen3vl": Family("qwen3_vl_text"),
    "qwen3vlmoe": Family("qwen3_vl_moe_text"),
    "hunyuan_vl": Family("hunyuan_vl_text"),
    "paddleocr": Family("paddleocr_vl_text"),
    "qwen35": Family("qwen3_5_text"),
    "qwen35moe": Family("qwen3_5_moe_text"),
    "qwen3next": Family("qwen3_next", fields={"norm_topk_prob": True}),
    "lfm2": Family("lfm2", fields={"block_auto_adjust_ff_dim": False}, layered="conv"),
    "lfm2moe": Family(
        "lfm2_moe",
        fields={"norm_topk_prob": True, "routed_scaling_factor": 1.0},
        layered="conv",
    ),
    "granitehybrid": Family(
        "granitemoehybrid",
        {"turning": "bamba"},
        turned=True,
        fields={"turning": True},
        layered="mamba",
    ),
    "falcon-h1": Family("falcon_h1", fields={"mamba_norm_before_gate": False, **_NO_FACTORS}),
}
# Sizes that a file must have; those of which 0 means none; numbers of something, from 0.
NEEDED = {
    LLM.CONTEXT_LENGTH: ("max_position_embeddings",),
    LLM.EMBEDDING_LENGTH: ("hidden_size",),
    LLM.FEED_FORWARD_LENGTH: ("intermediate_size", "intermediate_size_mlp", "block_ff_dim"),
    ATTENTION.HEAD_COUNT: ("num_attention_heads",),
}
SIZES = {
    ATTENTION.HEAD_COUNT_KV: ("num_key_value_heads",),
    ATTENTION.SLIDING_WINDOW: ("sliding_window",),
    ATTENTION.Q_LORA_RANK: ("q_lora_rank",),
    ATTENTION.KV_LORA_RANK: ("kv_lora_rank",),
    LLM.EXPERT_USED_COUNT: ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"),
    LLM.EXPERT_FEED_FORWARD_LENGTH: ("moe_intermediate_size",),
    LLM.EXPERT_SHARED_FEED_FORWARD_LENGTH: (
        *("shared_expert_intermediate_size", "shared_intermediate_size"),
    ),
    LLM.EXPERT_GROUP_COUNT: ("n_group",),
    LLM.EXPERT_GROUP_USED_COUNT: ("topk_group",),
    LLM.FULL_ATTENTION_INTERVAL: ("full_attention_interval",),
    ROPE.SCALING_ORIG_CTX_LEN: ("original_max_position_embeddings",),
    Keys.ShortConv.L_CACHE: ("conv_L_cache",),
    SSM.CONV_KERNEL: ("linear_conv_kernel_dim", "mamba_d_conv"),
    SSM.STATE_SIZE: ("linear_key_head_dim", "mamba_d_state"),
    SSM.GROUP_COUNT: ("linear_num_key_heads", "mamba_n_groups"),
    SSM.TIME_STEP_RANK: ("linear_num_value_heads", "mamba_n_heads"),
    SSM.INNER_SIZE: ("mamba_d_ssm",),
}
COUNTS = {
    ATTENTION.SHARED_KV_LAYERS: ("num_kv_shared_layers",),
    LLM.EMBD_LENGTH_PER_LAYER_INP: ("hidden_size_per_layer_input",),
    LLM.EXPERT_COUNT: ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    LLM.EXPERT_SHARED_COUNT: ("n_shared_experts", "moe_num_shared_experts"),
    LLM.LEADING_DENSE_BLOCK_COUNT: (
        *("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"),
    ),
    LLM.INTERLEAVE_MOE_LAYER_STEP: ("moe_layer_interval", "interleave_moe_layer_step"),
}
_EPSILON = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps")
NUMBERS = {
    ATTENTION.LAYERNORM_EPS: _EPSILON,
    ATTENTION.LAYERNORM_RMS_EPS: _EPSILON,
    ATTENTION.SCALE: ("attention_multiplier",),
    ATTENTION.CLAMP_KQV: ("clip_qkv",),
    ATTENTION.TEMPERATURE_SCALE: ("growing",),
    VALUE_SCALE: ("attention_value_scale",),
    LLM.ATTN_LOGIT_SOFTCAPPING: ("attn_logit_softcapping",),
    LLM.FINAL_LOGIT_SOFTCAPPING: ("final_logit_softcapping",),
    LLM.EMBEDDING_SCALE: ("embedding_multiplier",),
    LLM.RESIDUAL_SCALE: ("residual_multiplier",),
    LLM.LOGIT_SCALE: ("logit_scale", "logits_scaling"),
    LLM.EXPERT_WEIGHTS_SCALE: ("routed_scaling_factor",),
    ROPE.FREQ_BASE: ("rope_theta",),
    ROPE.FREQ_BASE_SWA: ("rope_local_base_freq",),
}
FLAGS = {
    LLM.USE_PARALLEL_RESIDUAL: ("use_parallel_residual",),
    LLM.EXPERT_WEIGHTS_NORM: ("norm_topk_prob",),
    ROPE.SCALING_FINETUNED: ("turning",),
}
# Of `layered` families there may be one for each layer.
OF_LAYERS = (LLM.FEED_FORWARD_LENGTH, ATTENTION.HEAD_COUNT_KV)
# Fields that a tensor of some layer says.
TENSORS = {
    "attn_q.bias": ("attention_bias", "qkv_bias", "use_bias", "use_qkv_bias"),
    "attn_qkv.bias": ("attention_bias", "qkv_bias", "use_bias", "use_qkv_bias"),
    "attn_output.bias": ("attention_out_bias",),
    "attn_q_norm.weight": ("use_qk_norm", "qk_layernorm"),
    "exp_probs_b.bias": ("corrected", "use_expert_bias"),
    "ffn_down.bias": ("mlp_bias",),
    "shortconv.in_proj.bias": ("conv_bias",),
    "ssm_conv1d.bias": ("mamba_conv_bias",),
    "ssm_in.bias": ("mamba_proj_bias",),
    "ssm_norm.weight": ("mamba_rms_norm",),
}
SCORES: Mapping[int, str] = {
    ExpertGatingFuncType.SOFTMAX: "softmax",
    ExpertGatingFuncType.SIGMOID: "sigmoid",
}
