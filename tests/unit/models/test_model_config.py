from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.layers.rotary import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from radixlm.models.model_config import ModelConfig, load_config


def hf(model_type: str = "llama", **fields: Any) -> dict[str, Any]:
    base = {
        "model_type": model_type,
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
    }
    return base | fields


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}


def test_defaults() -> None:
    config = ModelConfig.from_hf(hf())
    assert (config.n_kv_heads, config.head_dim, config.context_length) == (4, 16, 2048)
    assert config.norm_eps == 1e-6
    assert config.rope == RopeConfig(10_000.0)
    assert config.dtype == torch.float32
    assert not config.tie_word_embeddings
    assert config.eos_token_ids == frozenset()
    assert config.bos_token_id is None
    assert ModelConfig.from_hf(hf(dtype="bfloat16", torch_dtype="int8")).dtype == torch.bfloat16


def test_both_spellings_mean_the_same() -> None:
    old = hf(rope_theta=5e5, rope_scaling=LLAMA3, torch_dtype="bfloat16")
    new = hf(rope_parameters=LLAMA3 | {"rope_theta": 5e5}, dtype="bfloat16", rope_scaling=None)
    assert ModelConfig.from_hf(old) == ModelConfig.from_hf(new)
    assert ModelConfig.from_hf(old).dtype == torch.bfloat16
    assert ModelConfig.from_hf(old).rope == RopeConfig(5e5, Llama3Scaling(8.0, 1.0, 4.0, 512))


def test_the_older_name_of_the_rope_type() -> None:
    config = ModelConfig.from_hf(hf(rope_scaling={"type": "linear", "factor": 4}))
    assert config.rope.scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "default"}, 2048),
        ({"rope_type": "default", "factor": 0, "beta_fast": "none"}, 2048),
        ({"rope_type": "dynamic", "factor": 0}, 2048),
        ({"rope_type": "linear", "factor": 4.0}, 8192),
        (LLAMA3, 2048),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}, 4096),
        ({"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024}, 2048),
        ({"rope_type": "dynamic", "factor": 4.0}, 2048),
        ({"rope_type": "dynamic", "factor": 4, "original_max_position_embeddings": 512}, 512),
    ],
)
def test_context_length(rope: dict[str, Any], length: int) -> None:
    assert ModelConfig.from_hf(hf(rope_scaling=rope)).context_length == length


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0.1 * 1.3862943611198906 + 1),
        ({"attention_factor": 1.5}, 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 1.0}, 0.1 * 1.3862943611198906 + 1),
        ({"factor": 1.0}, 1.0),
    ],
)
def test_yarn_attention_factor(fields: dict[str, Any], expected: float) -> None:
    config = ModelConfig.from_hf(hf(rope_scaling={"rope_type": "yarn", "factor": 4.0} | fields))
    assert isinstance(config.rope.scaling, YarnScaling)
    assert config.rope.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("config", "traits"),
    [
        (hf("llama"), (False, False, False, False)),
        (hf("llama", attention_bias=True), (True, True, False, False)),
        (hf("llama", mlp_bias=True), (False, False, True, False)),
        (hf("mistral", sliding_window=None), (False, False, False, False)),
        (hf("qwen2", attention_bias=False), (True, False, False, False)),
        (hf("qwen3"), (False, False, False, True)),
        (hf("qwen3", attention_bias=True), (True, True, False, True)),
    ],
)
def test_what_sets_architectures_apart(config: dict[str, Any], traits: tuple[bool, ...]) -> None:
    made = ModelConfig.from_hf(config).traits
    assert (made.qkv_bias, made.output_bias, made.mlp_bias, made.qk_norm is not None) == traits


def test_qwen3_names_its_head_dim_or_has_128() -> None:
    assert ModelConfig.from_hf(hf("qwen3")).head_dim == 128
    assert ModelConfig.from_hf(hf("qwen3", head_dim=32)).head_dim == 32


@pytest.mark.parametrize(
    ("own", "generation", "expected"),
    [
        (7, None, {7}),
        ([7, 8], None, {7, 8}),
        (7, {"eos_token_id": [7, 9]}, {7, 9}),
        (None, {"eos_token_id": 9}, {9}),
        (7, {}, {7}),
    ],
)
def test_eos_token_ids(own: Any, generation: Any, expected: set[int]) -> None:
    assert ModelConfig.from_hf(hf(eos_token_id=own), generation).eos_token_ids == expected


@pytest.mark.parametrize(
    "config",
    [
        hf("mistral", sliding_window=2048),
        hf("qwen2", sliding_window=64, use_sliding_window=False),
        hf("qwen2", sliding_window=0, use_sliding_window=False, max_window_layers="28"),
        hf("qwen3", sliding_window=0, use_sliding_window=True, max_window_layers=3),
        hf("qwen2", sliding_window=None, use_sliding_window=True),
        hf("qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=3),
        hf("qwen2", sliding_window=64, use_sliding_window=True, layer_types=["full_attention"] * 3),
        hf("qwen3", sliding_window=2048, use_sliding_window=True, max_window_layers=0),
    ],
)
def test_a_sliding_window_that_cuts_nothing_off_is_none(config: dict[str, Any]) -> None:
    assert ModelConfig.from_hf(config).windows == ()


WINDOWED = {"sliding_window": 64, "use_sliding_window": True}


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        (hf("mistral", max_position_embeddings=8192), (4096,) * 3),
        (hf("mistral", sliding_window=64), (64,) * 3),
        (hf("qwen2", **WINDOWED, max_window_layers=2), (None, None, 64)),
        (
            hf("qwen3", **WINDOWED, layer_types=["sliding_attention"] + ["full_attention"] * 2),
            (64, None, None),
        ),
        (hf("gemma3_text", sliding_window=64, sliding_window_pattern=2), (64, None, 64)),
        (hf("cohere2", sliding_window=64, sliding_window_pattern=3), (64, 64, None)),
        (hf("gemma2", sliding_window=64), (64, None, 64)),
        (hf("gpt_oss", sliding_window=64), (64, None, 64)),
        (hf("olmo3", sliding_window=64, num_hidden_layers=4), (64, 64, 64, None)),
        (
            hf("qwen2", **{**WINDOWED, "sliding_window": 2048}, max_window_layers=0)
            | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            (2048,) * 3,
        ),
    ],
)
def test_layers_with_a_window(config, windows) -> None:
    model = ModelConfig.from_hf(config)
    assert model.windows == windows
    assert replace(model, context_length=64).windows == ()


YARN = {"rope_type": "yarn", "factor": 4.0}


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (hf("gpt2"), "model_type", "gpt2"),
        (hf("gpt_oss", sliding_window=0), "sliding_window", "0"),
        (hf("gpt_oss", num_local_experts=2), "num_experts_per_tok", "at most its 2 experts"),
        (hf("gpt_oss", swiglu_limit=-1.0), "swiglu_limit", "-1.0"),
        (hf("gpt_oss", layer_types=["full_attention"]), "layer_types", "each of 3 layers"),
        (hf("gemma2", attn_logit_softcapping=0), "attn_logit_softcapping", "0"),
        (hf("gemma2", final_logit_softcapping="30"), "final_logit_softcapping", "30"),
        (hf("gemma2", query_pre_attn_scalar=-1), "query_pre_attn_scalar", "-1"),
        (hf(model_type=["llama"]), "model_type", "llama"),
        (hf(hidden_act="gelu"), "hidden_act", "gelu"),
        (hf(num_local_experts=8), "num_experts", "8"),
        (hf("gemma", num_experts=8), "num_experts", "8"),
        (hf("mixtral", num_local_experts=0), "num_experts", "missing"),
        (hf("mixtral", num_local_experts=-1), "num_local_experts", "-1"),
        (
            hf("qwen3_moe", num_experts=4, num_experts_per_tok=5),
            "num_experts_per_tok",
            "at most its 4 experts",
        ),
        (hf("qwen2_moe", mlp_only_layers=[3]), "mlp_only_layers", "below 3"),
        (hf("qwen2_moe", mlp_only_layers=["0"]), "mlp_only_layers", "'0'"),
        (hf("qwen3_moe", decoder_sparse_step=0), "decoder_sparse_step", "0"),
        (hf("olmoe", clip_qkv=8.0), "clip_qkv", "8.0"),
        (hf("gemma", hidden_act="silu"), "hidden_act", "gelu_pytorch_tanh"),
        (hf("nemotron", hidden_act=3), "hidden_act", "relu2"),
        (hf("starcoder2", norm_epsilon="small"), "norm_epsilon", "small"),
        (hf("cohere", layer_norm_eps=-1), "layer_norm_eps", "-1"),
        (hf("glm", partial_rotary_factor=1.5), "partial_rotary_factor", "1.5"),
        (hf("glm", head_dim=16, partial_rotary_factor=0.2), "partial_rotary_factor", "0.2"),
        (hf("smollm3", no_rope_layers=[1, 2, 1]), "no_rope_layers", "[1, 2, 1]"),
        (hf("smollm3", no_rope_layers=[1, 0]), "no_rope_layers", "one for each of 3 layers"),
        (
            hf("smollm3", use_sliding_window=True, sliding_window=8, layer_types=["other"]),
            "layer_types",
            "other",
        ),
        (hf("gemma3_text", sliding_window=0), "sliding_window", "0"),
        (hf("gemma3_text", layer_types=["full_attention"]), "layer_types", "each of 3 layers"),
        (hf("gemma3_text", layer_types=["chunked"] * 3), "layer_types", "chunked"),
        (hf("gemma3_text", final_logit_softcapping=30.0), "final_logit_softcapping", "30.0"),
        (hf("cohere2", sliding_window_pattern=0), "sliding_window_pattern", "0"),
        (hf("olmo3", layer_types=[]), "layer_types", "each of 3 layers"),
        (
            hf("olmo3", rope_parameters={"full_attention": {}, "other": {}}),
            "rope_parameters",
            "other",
        ),
        (
            hf("olmo3", rope_parameters={"sliding_attention": {"rope_type": "yarn"}}),
            "rope_parameters.sliding_attention.rope_type",
            "yarn",
        ),
        (hf("granite", logits_scaling=0), "logits_scaling", "0"),
        (hf("gemma", use_bidirectional_attention=True), "use_bidirectional_attention", "True"),
        (hf("phi3", rope_scaling={"type": "longrope"}), "rope_scaling.short_factor", "missing"),
        (
            hf(
                "phi3",
                rope_scaling={"type": "su", "short_factor": [1.0], "long_factor": [1.0] * 8},
            ),
            "rope_scaling.short_factor",
            "8 numbers",
        ),
        (hf(architectures=["LlamaForSequenceClassification"]), "architectures", "Sequence"),
        (hf(architectures=5), "architectures", "5"),
        (hf(rms_norm_eps=10**400), "rms_norm_eps", "1000"),
        (hf(partial_rotary_factor=0.5), "partial_rotary_factor", "0.5"),
        (
            hf(rope_parameters={"partial_rotary_factor": 0.5}),
            "rope_parameters.partial_rotary_factor",
            "0.5",
        ),
        (hf(rope_scaling={"type": "longrope"}), "rope_scaling.type", "longrope"),
        (hf(rope_scaling={"rope_type": "su"}), "rope_scaling.rope_type", "su"),
        (hf(rope_parameters={"full_attention": {}}), "rope_parameters.full_attention", "{}"),
        (
            hf(rope_scaling={"rope_type": "factors", "factors": [2.0]}),
            "rope_scaling.factors",
            "2.0",
        ),
        (hf(rope_scaling={"rope_type": "linear"}), "rope_scaling.factor", "missing"),
        (hf(rope_scaling=YARN | {"factor": -1}), "rope_scaling.factor", "-1"),
        (
            hf("qwen2", sliding_window=0, use_sliding_window=True, max_window_layers=0),
            "window",
            "0",
        ),
        (hf(rope_scaling=LLAMA3 | {"factor": None}), "'rope_scaling.factor'", "missing"),
        (hf(rope_scaling=YARN | {"truncate": 3}), "rope_scaling.truncate", "3"),
        (hf(rope_scaling=LLAMA3 | {"high_freq_factor": 1.0}), "high_freq_factor", "1.0"),
        (hf(rope_scaling="linear"), "rope_scaling", "linear"),
        (hf(rope_theta=float("nan")), "rope_theta", "nan"),
        (hf(rope_theta=1), "rope_theta", "1.0"),
        (hf(rope_theta=1e300), "rope_theta", "1e+300"),
        (hf(rope_theta=1e-300), "rope_theta", "1e-300"),
        (hf(rope_scaling={"rope_type": "linear", "factor": 1e300}), "factor", "1e+300"),
        (hf(rope_scaling={"rope_type": "linear", "factor": 0.5}), "factor", "0.5"),
        (hf(rope_scaling=YARN | {"factor": float("inf")}), "factor", "inf"),
        (hf(rope_scaling=YARN | {"beta_fast": 1e-310}), "beta_fast", "1e-310"),
        (hf(vocab_size=10**30), "vocab_size", "1000"),
        (hf(num_hidden_layers=2**31), "num_hidden_layers", "2147483648"),
        (hf("mistral", num_hidden_layers=1_000_001), "num_hidden_layers", "1000001"),
        (hf(max_position_embeddings=10**30), "max_position_embeddings", "1000"),
        (hf(eos_token_id=10**30), "eos_token_id", "1000"),
        (hf(eos_token_id=list(range(2_000))), "eos_token_id", "0, 1, 2"),
        (hf("qwen2", layer_types=["linear_attention"]), "layer_types", "linear_attention"),
        (hf("qwen3", layer_types=3), "layer_types", "3"),
        (
            hf("qwen3", **{**WINDOWED, "layer_types": ["sliding_attention"]}),
            "layer_types",
            "one for each of 3 layers",
        ),
        (
            hf("qwen2", sliding_window=64, use_sliding_window=True, max_window_layers="28"),
            "max_window_layers",
            "28",
        ),
        (hf("deepseek_v2"), "num_experts_per_tok", "missing"),
        (hf(hidden_size="64"), "hidden_size", "64"),
        (hf(vocab_size=0), "vocab_size", "0"),
        (hf(vocab_size=True), "vocab_size", "True"),
        (hf(num_key_value_heads=3), "num_key_value_heads", "3"),
        (hf(head_dim=15), "head_dim", "15"),
        (hf(attention_bias="yes"), "attention_bias", "yes"),
        (hf(torch_dtype="int8"), "'torch_dtype'", "int8"),
        (hf(dtype="float8_e4m3fn"), "'dtype'", "float8"),
        (hf(eos_token_id=[1, 2.5]), "eos_token_id", "2.5"),
        (hf(bos_token_id=-1.5), "bos_token_id", "-1.5"),
    ],
)
def test_what_is_not_supported_is_named(config: dict[str, Any], field: str, value: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        ModelConfig.from_hf(config)
    assert field in str(caught.value)
    assert value in str(caught.value)


def test_load_config_reads_both_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf(eos_token_id=1)))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert load_config(tmp_path) == ModelConfig.from_hf(hf(eos_token_id=[1, 2]))


@pytest.mark.parametrize(
    "content",
    [None, "{", "[]", "\xff", '{"a":' + "[" * 100_000, '{"a": ' + "1" * 10_000 + "}"],
    ids=["none", "half", "a list", "no UTF-8", "deep", "a long number"],
)
def test_load_config_names_the_file_it_cannot_read(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_config(tmp_path)


def test_load_config_of_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a folder"):
        load_config(tmp_path / "nowhere")
