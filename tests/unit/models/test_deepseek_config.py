"""DeepSeek's configs as they are published, and those that contradict themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from radixlm.core.errors import UnsupportedModelError
from radixlm.layers.expansion import LatentSizes
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.models.families.grouped_experts import SIGMOIDS
from radixlm.models.model_config import ModelConfig

# Of DeepSeek-V3's config.json, but for what weights are stored in; R1's is the same.
V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
# Of DeepSeek-V2-Lite's, what is different.
LITE = V3 | {
    "architectures": ["DeepseekV2ForCausalLM"],
    "bos_token_id": 100000,
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "rope_scaling": {**V3["rope_scaling"], "mscale": 0.707, "mscale_all_dim": 0.707},
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "vocab_size": 102400,
}


def test_v3_as_published() -> None:
    config = ModelConfig.from_hf(V3)
    traits, experts = config.traits, config.traits.experts
    assert traits.latents == LatentSizes(512, 64, 128, 128, queries=1536)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (128, 1, 576)
    assert (config.turning_dim, config.context_length) == (64, 163840)
    assert config.rope.attention_factor == 1.0
    assert config.rope.score_factor == pytest.approx(0.1 * math.log(40) + 1)
    assert experts is not None
    assert (experts.number, experts.chosen, experts.size, experts.shared) == (256, 8, 2048, 2048)
    assert experts.layers == (False,) * 3 + (True,) * 58
    assert (experts.scale, experts.renormalised) == (2.5, True)
    assert experts.routing == SIGMOIDS._replace(groups=8, chosen_groups=4)
    assert traits.spare_layers == 1


def test_v2_lite_as_published() -> None:
    config = ModelConfig.from_hf(LITE)
    assert config.traits.latents == LatentSizes(512, 64, 128, 128, queries=0)
    experts = config.traits.experts
    assert experts is not None
    assert (experts.number, experts.chosen, experts.shared) == (64, 6, 2 * 1408)
    assert experts.routing == GroupedRouting()
    assert config.traits.spare_layers == 0
    groups = {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}
    full = ModelConfig.from_hf(LITE | groups).traits.experts
    assert full is not None
    assert full.routing == GroupedRouting(groups=8, chosen_groups=3)


def test_q_lora_rank_that_is_left_out_has_transformers_default() -> None:
    left_out = {name: value for name, value in LITE.items() if name != "q_lora_rank"}
    latents = ModelConfig.from_hf(left_out).traits.latents
    assert latents is not None
    assert latents.queries == 1536


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (V3 | {"n_group": 7}, "n_group", "7"),
        (V3 | {"n_group": 256, "topk_group": 8}, "n_group", "at least 2 of 256 experts"),
        (V3 | {"topk_group": 9}, "topk_group", "1 to n_group, 8"),
        (V3 | {"topk_group": 1, "num_experts_per_tok": 33}, "num_experts_per_tok", "the 32 of 1"),
        (V3 | {"num_experts_per_tok": 257, "topk_group": 8}, "num_experts_per_tok", "257"),
        (V3 | {"topk_method": "greedy"}, "topk_method", "noaux_tc"),
        (V3 | {"scoring_func": "softmax"}, "scoring_func", "sigmoid"),
        (V3 | {"moe_layer_freq": 2}, "moe_layer_freq", "2"),
        (V3 | {"num_key_value_heads": 8}, "num_key_value_heads", "128"),
        (V3 | {"qk_rope_head_dim": 63}, "qk_rope_head_dim", "63"),
        (V3 | {"kv_lora_rank": 0}, "kv_lora_rank", "0"),
        (V3 | {"kv_lora_rank": "512"}, "kv_lora_rank", "'512'"),
        (V3 | {"first_k_dense_replace": -1}, "first_k_dense_replace", "-1"),
        (LITE | {"topk_method": "noaux_tc"}, "topk_method", "greedy, group_limited_greedy"),
        (LITE | {"topk_method": "group_limited_greedy", "n_group": None}, "n_group", "None"),
        (LITE | {"scoring_func": "sigmoid"}, "scoring_func", "softmax"),
        (LITE | {"num_experts_per_tok": 65}, "num_experts_per_tok", "at most its 64 experts"),
        (LITE | {"norm_topk_prob": True}, "norm_topk_prob", "True"),
        (LITE | {"attention_bias": True}, "attention_bias", "q_lora_rank is null"),
        (LITE | {"v_head_dim": 0}, "v_head_dim", "0"),
    ],
)
def test_contradictions_name_field_and_value(
    config: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        ModelConfig.from_hf(config)
    assert repr(field) in str(refused.value)
    assert value in str(refused.value)
