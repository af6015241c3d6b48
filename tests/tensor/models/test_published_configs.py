"""Configs as they are published, of transformers 4 and earlier, beside those that 5 writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlm.core.errors import UnsupportedModelError
from radixlm.models import ModelConfig, load_config
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.models.test_model_parity import load, logits, tokens

# Of a family what its config has beside what both versions write; None: it has not.
PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "glm4_moe": {"num_nextn_predict_layers": 1, "use_qk_norm": True},
    "glm4_moe_lite": {
        "mlp_layer_types": None,
        "first_k_dense_replace": 1,
        "topk_method": "noaux_tc",
        "partial_rotary_factor": 1.0,
        "num_nextn_predict_layers": 1,
    },
    "minimax_m2": {
        "partial_rotary_factor": None,
        "rotary_dim": 8,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "attn_type_list": [1, 1, 1],
        "shared_intermediate_size": 0,
        "num_mtp_modules": 3,
    },
    "ministral3": {},
    "seed_oss": {"residual_dropout": 0.1},
    "exaone4": {"sliding_window_pattern": "LLLG"},
    "ernie4_5": {"use_bias": False},
    "ernie4_5_moe": {
        "moe_layer_end_index": 2,
        "moe_use_aux_free": True,
        "moe_capacity": [64, 64, 64],
        "moe_gate": "topk",
        "num_nextn_predict_layers": 1,
    },
    "hunyuan_v1_dense": {"attention_head_dim": 16, "use_qk_norm": True, "use_cla": False},
    "hunyuan_v1_moe": {
        "moe_topk": [2, 2, 2],
        "moe_intermediate_size": [96, 96, 96],
        "num_shared_expert": [1, 1, 1],
        "use_mixed_mlp_shared_mlp": True,
    },
    "apertus": {"mlp_bias": False, "qk_norm": True, "post_norm": False},
    "arcee": {"mlp_bias": True},
    "llama4_text": {"attn_temperature_tuning": 4, "for_llm_compressor": False},
    "deepseek_v3": {
        "model_type": "kimi_k2",
        "num_nextn_predict_layers": 0,
        "rope_interleave": None,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
        "ep_size": 1,
        "seq_aux": True,
    },
}
# What the checkpoint is made with, where the config would not be one of its family.
MADE: Mapping[str, Mapping[str, Any]] = {
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "ernie4_5": {"use_bias": False},
}
# Weights that only propose tokens.
SPARE = {
    "glm4_moe": "model.layers.3.eh_proj.weight",
    "glm4_moe_lite": "model.layers.3.shared_head.norm.weight",
    "ernie4_5_moe": "model.mtp_block.0.mlp.down_proj.weight",
}


def published(config: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The config as transformers 4 has it: what is said of rope is no part of its own."""
    rope = config.pop("rope_parameters")
    config["torch_dtype"] = config.pop("dtype")
    config["rope_theta"] = rope.pop("rope_theta")
    kind = rope.pop("rope_type")
    if "partial_rotary_factor" in rope:
        config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    return {name: its for name, its in {**config, **more}.items() if its is not None}


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_the_same_model(tmp_path: Path, architecture: str) -> None:
    folder = make_checkpoint(tmp_path, architecture, **MADE.get(architecture, {}))
    expected = reference_logits(load_reference(folder), tokens(50))
    path, weights = folder / "config.json", folder / "model.safetensors"
    config = published(json.loads(path.read_text()), PUBLISHED[architecture])
    path.write_text(json.dumps(config))
    if architecture in SPARE:
        save_file({**load_file(weights), SPARE[architecture]: torch.ones(2)}, weights)
    assert (logits(load(folder), tokens(50)) - expected).abs().max() <= 1e-4


def of(model_type: str, **fields: Any) -> ModelConfig:
    sizes = {"vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 2048, "head_dim": 16}
    sizes |= {"num_key_value_heads": 4}
    return ModelConfig.from_hf({"model_type": model_type, **sizes, **fields})


def test_windows_by_letters() -> None:
    assert of("exaone4", sliding_window_pattern="LLLG", sliding_window=8).windows == (8, 8, 8, None)
    assert of("exaone4", sliding_window=None, sliding_window_pattern=None).windows == ()
    assert of("exaone4", sliding_window=None).ropes == ()


def test_chunks_that_hide_nothing_are_none() -> None:
    sizes = {"intermediate_size_mlp": 96, "num_local_experts": 2}
    made = of("llama4_text", **sizes, attention_chunk_size=64)
    assert made.windows == (64, 64, 64, None)
    assert replace(made, context_length=64).windows == ()
    assert of("llama4_text", **sizes, attention_chunk_size=None).windows == ()
    assert of("llama4_text", **sizes, no_rope_layers=[]).ropes[3].share == 0


def test_mimo_s_own_names(tmp_path: Path) -> None:
    """A window that leaves the token itself out; a factor of null is 1."""
    folder = make_checkpoint(tmp_path, "mimo_v2_flash", routed_scaling_factor=1.0)
    expected = reference_logits(load_reference(folder), tokens(50))
    path, weights = folder / "config.json", folder / "model.safetensors"
    names = ("layer_types", "mlp_layer_types", "rope_parameters", "sliding_window")
    config = {n: its for n, its in json.loads(path.read_text()).items() if n not in names}
    more = {
        "hybrid_layer_pattern": [0, 1, 1],
        "moe_layer_freq": [0, 1, 1],
        "swa_num_key_value_heads": 2,
        "rope_theta": 5_000_000,
        "swa_rope_theta": 10_000,
        "partial_rotary_factor": 0.334,
        "sliding_window_size": 23,
        "sliding_window": 23,
        "routed_scaling_factor": None,
        "n_shared_experts": None,
        "add_swa_attention_sink_bias": True,
    }
    path.write_text(json.dumps(config | more))
    spare = {"model.mtp.layers.0.eh_proj.weight": torch.ones(2)}
    save_file(load_file(weights) | spare, weights)
    assert (logits(load(folder), tokens(50)) - expected).abs().max() <= 1e-4


def test_what_mimo_is_without_lists() -> None:
    layers = {"num_hidden_layers": 7, "num_key_value_heads": 1, "sliding_window": 24}
    made = of("mimo_v2_flash", **layers, n_routed_experts=8, head_dim=24, v_head_dim=8)
    assert made.windows == (None, 24, 24, 24, 24, None, 24)
    assert [shape.n_kv_heads for shape in made.kv_shapes] == [1, 2, 2, 2, 2, 1, 2]
    assert made.traits.experts is not None
    assert made.traits.experts.layers == (False, *[True] * 6)


@pytest.mark.parametrize("kind", ["gemma3_text", "gemma4_text"])
def test_heads_that_turn_in_part_where_a_family_does_not(kind: str) -> None:
    ropes = {"full_attention": {"rope_type": "proportional"}}
    ropes["sliding_attention"] = {"partial_rotary_factor": 0.5}
    with pytest.raises(UnsupportedModelError, match=r"sliding_attention\.partial_rotary_factor"):
        of(kind, rope_parameters=ropes, vocab_size_per_layer_input=320)


def test_numbers_of_layers_have_leading_zeros(tmp_path: Path) -> None:
    """As transformers writes them, so that all are as long."""
    kinds = ["sliding_attention"] * 9 + ["full_attention"] * 2
    layers = {"num_hidden_layers": 11, "layer_types": kinds, "num_kv_shared_layers": 1}
    folder = make_checkpoint(tmp_path, "gemma4_unified_text", **layers)
    assert "09" in json.loads((folder / "config.json").read_text())["per_layer_config"]
    shapes = tuple(shape[:3] for shape in load_config(folder).kv_shapes)
    assert shapes == ((2, 16, None),) * 9 + ((1, 32, None), (1, 32, 9))


def test_heads_are_those_of_the_layer_that_is_read(tmp_path: Path) -> None:
    """Else kernels would read memory that is not theirs."""
    folder = make_checkpoint(tmp_path, "gemma4_unified_text")
    config = json.loads((folder / "config.json").read_text())
    for field, number in (("num_key_value_heads", 4), ("head_dim", 32)):
        config["per_layer_config"] = {"2": {"head_dim": 32}, "4": {field: number}}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(UnsupportedModelError, match=r"per_layer_config.* layer 4 .* layer 1"):
            load_config(folder)


def test_minimax_turns_what_its_rotary_dim_says() -> None:
    assert of("minimax", num_local_experts=6, rotary_dim=8).rope.share == 0.5


def test_mistral_4_turns_the_part_that_its_sizes_say() -> None:
    sizes = {"kv_lora_rank": 24, "q_lora_rank": 20, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
    rope = {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
    rope |= {"rope_theta": 1e4, "partial_rotary_factor": 1 / 3, "llama_4_scaling_beta": 0.1}
    made = of("mistral4", **sizes, n_routed_experts=8, rope_parameters=rope)
    assert made.turning_dim == made.rope.turned(made.turning_dim) == 8
    assert made.rope.queries == (0.1, 256, 0)
