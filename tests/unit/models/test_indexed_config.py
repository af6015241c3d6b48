"""Configs of DeepSeek V3.2 and GLM-5 as published, and those that contradict themselves."""

from __future__ import annotations

from typing import Any

import pytest

from radixlm.core.errors import UnsupportedModelError
from radixlm.layers.expansion import LatentSizes
from radixlm.layers.index_keys import IndexSizes
from radixlm.models.families.grouped_experts import SIGMOIDS
from radixlm.models.model_config import ModelConfig
from tests.unit.models.test_deepseek_config import V3

# Of DeepSeek-V3.2's config.json, what is not as V3's.
V32 = V3 | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "index_head_dim": 128,
    "index_n_heads": 64,
    "index_topk": 2048,
    "model_type": "deepseek_v32",
}
GLM = V32 | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "index_n_heads": 32,
    "kv_lora_rank": 512,
    "model_type": "glm_moe_dsa",
    "n_group": 1,
    "num_attention_heads": 64,
    "num_hidden_layers": 8,
    "num_key_value_heads": 64,
    "q_lora_rank": 2048,
    "qk_nope_head_dim": 192,
    "rope_interleave": True,
    "rope_scaling": None,
    "topk_group": 1,
    "v_head_dim": 256,
}


def test_deepseek_v3_2() -> None:
    config = ModelConfig.from_hf(V32)
    assert config.traits.indexer == IndexSizes(64, 128, 2048, False, (True,) * 61)
    assert config.traits.latents == LatentSizes(512, 64, 128, 128, queries=1536)
    assert config.traits.interleaved
    its = ModelConfig.from_hf(V32 | {"indexer_rope_interleave": True}).traits.indexer
    assert its is not None
    assert its.interleaved
    assert {shape.index_dim for shape in config.kv_shapes} == {128}


def full(**fields: Any) -> str:
    """Which layers of GLM-5 have an index."""
    indexer = ModelConfig.from_hf(GLM | fields).traits.indexer
    assert indexer is not None
    assert indexer.interleaved
    return "".join("F" if its else "S" for its in indexer.layers)


def test_layers_that_share() -> None:
    assert full() == "F" * 8
    assert full(index_topk_freq=4) == "FFSSSFSS"
    assert full(index_topk_freq=4, index_skip_topk_offset=3) == "FFFSSSFS"
    assert full(index_topk_pattern="FFSSFSSS") == "FFSSFSSS"
    assert full(indexer_types=["full", *["shared"] * 7]) == "FSSSSSSS"


def test_ax_k2_without_groups_and_with() -> None:
    fields = {"model_type": "axk2", "architectures": ["AXK2ForCausalLM"]}
    config = ModelConfig.from_hf(fields)
    assert config.traits.latents == LatentSizes(128, 32, 64, 64, queries=384, gated=True)
    assert config.traits.indexer == IndexSizes(16, 128, 2048, False, (True,) * 48)
    assert (config.traits.norms.gates, config.traits.spare_layers) == (16, 0)
    for groups in (None, 8):
        its = ModelConfig.from_hf(fields | {"n_group": groups, "topk_group": groups}).traits.experts
        assert its is not None
        assert its.layers == (False, *(True,) * 47)
        assert its.routing == (SIGMOIDS._replace(groups=8, chosen_groups=8) if groups else SIGMOIDS)


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (V32 | {"index_topk": 0}, "index_topk", "0"),
        (V32 | {"index_head_dim": 62}, "index_head_dim", "at least qk_rope_head_dim, 64"),
        (V32 | {"index_head_dim": 129}, "index_head_dim", "an even number"),
        (V32 | {"q_lora_rank": None}, "q_lora_rank", "the index has its queries of it"),
        (V32 | {"rope_interleave": False}, "rope_interleave", "true"),
        (V32 | {"attention_bias": True}, "attention_bias", "false"),
        (GLM | {"indexer_types": ["shared"] * 8}, "indexer_types", "the first full"),
        (GLM | {"indexer_types": ["full"] * 7}, "indexer_types", "each of 8 layers"),
        (GLM | {"index_topk_pattern": "FFXXFSSS"}, "index_topk_pattern", "full or shared"),
        (GLM | {"index_topk_freq": 4, "index_skip_topk_offset": 0}, "index_skip_topk_offset", "0"),
    ],
)
def test_contradictions_name_field_and_value(
    config: dict[str, Any], field: str, value: str
) -> None:
    with pytest.raises(UnsupportedModelError) as refused:
        ModelConfig.from_hf(config)
    assert repr(field) in str(refused.value)
    assert value in str(refused.value)
