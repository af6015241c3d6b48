"""What a config leaves out is what transformers' class of its model_type has there."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from radixlm.models import ModelConfig
from radixlm.models.config_defaults import TABLE_PATH, with_defaults
from radixlm.models.families import ARCHITECTURES
from radixlm.models.families.llama import Mistral
from scripts.class_defaults import class_defaults
from scripts.config_defaults import table_of, written

_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", "layer_norm_epsilon")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# DeepSeek V2's class has no number of chosen experts, and cannot do without.
# GLM-4.5's has heads of 42 dimensions, half of which can not be turned in pairs.
_GIVEN: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 8},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
}


def _first(config: Any, names: tuple[str, ...]) -> Any:
    return next(its for name in names if (its := getattr(config, name, None)) is not None)


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind != "kimi_k2"])
def test_a_config_that_says_nothing(kind: str) -> None:
    given = _GIVEN.get(kind, {})
    right = AutoConfig.for_model(kind, **given)
    right.allow_global_per_layer_attribute_access = True
    ours = ModelConfig.from_hf({"model_type": kind, **given})
    latent = ours.traits.latents is not None
    heads = getattr(right, "num_attention_heads", 1)  # of states alone there are none
    assert ours.n_heads == heads
    assert ours.hidden_size == right.hidden_size
    sizes = (getattr(right, f"intermediate_size{end}", None) for end in ("_mlp", ""))
    # Of a model without MLPs it is no size, or that of a state.
    if any(ours.traits.mlps or (True,)):
        assert ours.intermediate_size == next(filter(None, sizes), ours.intermediate_size)
    assert ours.n_layers == right.num_hidden_layers
    assert ours.vocab_size == right.vocab_size
    # Of the text of a model of more, the whole says it.
    assert ours.tie_word_embeddings == getattr(right, "tie_word_embeddings", False)
    assert ours.norm_eps == _first(right, _EPSILONS)
    if not latent:
        assert ours.n_kv_heads == (getattr(right, "num_key_value_heads", None) or heads)
        head_dim = getattr(right, "head_dim", None) or right.hidden_size // heads
        assert ours.head_dim == head_dim
    if ours.traits.experts is not None:
        assert ours.traits.experts.number == _first(right, _EXPERTS)
        assert ours.traits.experts.chosen == right.num_experts_per_tok
    _same_windows(ours, right)
    _same_ropes(ours, right)


def _same_windows(ours: ModelConfig, right: Any) -> None:
    window = getattr(right, "attention_chunk_size", getattr(right, "sliding_window", None))
    if getattr(right, "use_sliding_window", True) is False:
        window = None
    kinds = getattr(right, "layer_types", None) or ["sliding_attention"] * ours.n_layers
    found = ours.traits.windows or (None,) * ours.n_layers
    none = ("full_attention", "conv")
    assert list(found) == [None if each in none else window for each in kinds]


def _same_ropes(ours: ModelConfig, right: Any) -> None:
    ropes = ours.ropes or (ours.rope,) * ours.n_layers
    kinds = getattr(right, "layer_types", None) or [""] * ours.n_layers
    for layer, (rope, kind) in enumerate(zip(ropes, kinds, strict=True)):
        if rope is None or kind == "conv":
            continue
        its = right.rope_parameters.get(kind, right.rope_parameters)
        assert rope.theta == its["rope_theta"]
        if ours.traits.latents is not None and "partial_rotary_factor" in its:
            continue  # which its two sizes of heads say already
        if rope.share == 0:
            continue
        share = getattr(rope.scaling, "share", rope.share)  # of those that turn, or of frequencies
        assert share == its.get("partial_rotary_factor", 1.0)
        if its["rope_type"] != "default":
            of_kind = {"layer_type": kind} if its is not right.rope_parameters else {}
            wanted, factor = ROPE_INIT_FUNCTIONS[its["rope_type"]](right, "cpu", **of_kind)
            assert torch.allclose(rope.frequencies(ours.of_layer(layer).head_dim), wanted)
            assert rope.attention_factor == pytest.approx(factor)


def test_a_head_of_qwen3_s_experts_is_its_part_of_the_hidden_size() -> None:
    config = {"model_type": "qwen3_moe", "hidden_size": 256, "num_attention_heads": 4}
    assert ModelConfig.from_hf(config).head_dim == 64


def test_gemma_3_of_version_4_is_tied_and_olmo_3_has_its_epsilon() -> None:
    old = {"transformers_version": "4.51.3", "rope_theta": 1e6}
    gemma = ModelConfig.from_hf({"model_type": "gemma3_text", **old})
    assert gemma.tie_word_embeddings
    assert gemma.head_dim == 256
    assert ModelConfig.from_hf({"model_type": "olmo3", **old}).norm_eps == 1e-5


@pytest.mark.parametrize(
    ("fields", "theta"),
    [
        ({"transformers_version": "4.44.0"}, 1e4),
        ({"transformers_version": "5.0.0"}, 5e5),
        ({"transformers_version": "5.0.0", "torch_dtype": "float32"}, 5e5),
        ({"torch_dtype": "float32"}, 1e4),
        ({"rope_parameters": {"rope_type": "default"}, "torch_dtype": "float32"}, 5e5),
        ({}, 5e5),
        ({"rope_theta": 7e4}, 7e4),
        ({"rope_parameters": {"rope_theta": 7e4}}, 7e4),
    ],
)
def test_versions_of_transformers_differ(fields: dict[str, Any], theta: float) -> None:
    assert ModelConfig.from_hf({"model_type": "cohere", **fields}).rope.theta == theta


def test_null_is_a_value_where_it_may_be() -> None:
    config = {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": None}
    made = with_defaults(Mistral, config)
    assert made["sliding_window"] is None
    assert made["rms_norm_eps"] == 1e-6


def test_experts_and_ropes_have_several_names() -> None:
    mixtral = ModelConfig.from_hf({"model_type": "mixtral", "num_experts": 4})
    assert mixtral.traits.experts is not None
    assert mixtral.traits.experts.number == 4
    plain = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert ModelConfig.from_hf({"model_type": "gpt_oss", **plain}).rope.scaling is None


def test_the_table_is_what_the_script_makes() -> None:
    stored = json.loads(TABLE_PATH.read_text())
    assert TABLE_PATH.read_text() == written(stored)
    assert list(stored["5"]) == [*ARCHITECTURES]
    if not stored["made_with"].startswith(f"transformers {transformers.__version__},"):
        pytest.skip("made with another version of transformers")
    assert table_of(class_defaults(ARCHITECTURES), {})["5"] == stored["5"]
