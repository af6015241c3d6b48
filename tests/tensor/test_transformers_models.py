"""Architectures that transformers computes, with attention over our pool and tree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from radixlm import Engine, SamplingParams
from radixlm.assembly.model_impl import load_foreign, unloaded
from radixlm.core.errors import ConfigError, ModelError
from radixlm.formats.model_files import files_of
from radixlm.products.gemm_choice import one_way
from radixlm.testing.reference import greedy, load_reference, make_checkpoint

STEPS = 12
PARAMS = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
FLAGS: dict[str, Any] = {"kv_tokens": 600, "dtype": "float32"}
SMALL_VALUES = {
    "head_dim": 8,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
# Of two families, whose prompts begin alike.
PROMPTS = [
    [*range(start, start + 25), *range(7 * i, 7 * i + 3 + i)] for start in (9, 90) for i in range(3)
]


def answers(engine: Engine) -> list[list[int]]:
    return [list(output.token_ids) for output in engine.generate(PROMPTS, PARAMS)]


_EXPERTS = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 1,
    "topk_group": 1,
}
_ROPES = {
    kind: {"rope_type": "default", "rope_theta": 10_000.0}
    for kind in ("full_attention", "sliding_attention")
}
_WINDOWED = {"sliding_window": 17, "layer_types": ["full_attention", "sliding_attention"] * 2}


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("gpt2", {}),
        ("gpt_neox", {}),
        ("qwen3", {}),
        ("mistral", {"sliding_window": 17}),
        ("gpt_oss", {}),
        ("youtu", SMALL_VALUES),
        pytest.param("axk1", SMALL_VALUES, marks=pytest.mark.slow),
        pytest.param("minicpm3", SMALL_VALUES, marks=pytest.mark.slow),
        # A layer asks twice; layers have heads of their own, and are
        # run several times; a window is of no layer.
        ("diffllama", {}),
        # Attention of their own; some layers have a window; scores grow with positions.
        ("gpt_neo", {}),
        ("bloom", {}),
        # Of each key a number that is added to its scores.
        ("doge", {"keep_window_size": 48}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
        *(
            pytest.param(name, fields, marks=pytest.mark.slow)
            for name, fields in (
                ("mimo_v2_flash", _WINDOWED | _EXPERTS | {"num_hidden_layers": 4}),
                ("hrm_text", {}),
                ("dots1", {"sliding_window": 17, "n_shared_experts": 1} | _EXPERTS),
                ("falcon", {"alibi": True}),
                ("bloom", {"hidden_size": 96, "n_head": 6}),
                ("git", {"initializer_range": 0.8}),
                ("cohere_compass_text", {"rope_parameters": _ROPES}),
            )
        ),
        *(
            pytest.param(name, {}, marks=pytest.mark.slow)
            for name in (
                *("phi", "opt", "gpt_bigcode", "persimmon", "olmo", "helium", "gemma2"),
                *("falcon", "gptj", "codegen", "mpt", "openai-gpt", "gpt_neox_japanese", "xglm"),
                *("jetmoe", "dbrx", "longcat_flash", "moshi", "hunyuan_v1_moe"),
            )
        ),
    ],
)
def test_the_tokens_of_transformers(
    tmp_path: Path, architecture: str, fields: dict[str, Any]
) -> None:
    folder = make_checkpoint(tmp_path, architecture, **fields)
    wanted = greedy(load_reference(folder), PROMPTS, STEPS).tokens
    flags = FLAGS | {"model": str(folder), "model_impl": "transformers"}
    for more in ({}, {"chunked_prefill_size": 16}, {"page_size": 16}):
        with Engine(**(flags | more)) as engine:
            assert answers(engine) == wanted
            before = engine.stats().cached_tokens
            assert answers(engine) == wanted
            assert engine.stats().cached_tokens > before
            assert engine.stats().leaks == 0


@pytest.mark.parametrize(
    ("architecture", "fields", "said"),
    [
        ("glm_moe_dsa", {}, "'glm_moe_dsa'.* indexed_attention"),
        ("deepseek_v32", {}, "'deepseek_v32'.* indexed_attention"),
        ("llama4_text", {}, "'llama4_text'.* chunked_attention"),
        ("xlnet", {}, "other orders"),
        ("big_bird", {}, "encoder"),
        ("mamba", {}, "layers of linear_attention"),
        ("t5", {}, "no causal language model"),
        ("unheard_of", {}, "unheard_of"),
        (
            "gpt_neox",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}},
            "'dynamic'",
        ),
        (
            "gemma3_text",
            {
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                    "full_attention": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e6},
                }
            },
            "'dynamic'",
        ),
        ("doge", {"is_moe": True}, "'doge'.* experts"),
        ("gpt2", {"transformers_weights": "others.safetensors"}, "'others.safetensors'"),
        ("gpt2", {"n_embd": "wide"}, "can not read .*n_embd"),
        ("gpt2", {"n_layer": 10**9}, "'n_layer' is 1000000000.* up to 1000"),
        ("llava", {"text_config": {"model_type": "gpt2", "n_layer": 10**9}}, "up to 1000"),
    ],
)
def test_what_it_can_not_do_is_refused_by_name(
    tmp_path: Path, architecture: str, fields: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture} | fields))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match=said):
        Engine(str(tmp_path), model_impl="transformers", **FLAGS)


def test_modules_that_do_not_run_here_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    monkeypatch.setattr("transformers.models.gpt2.modeling_gpt2.GPT2MLP.forward", lambda its: its)
    with pytest.raises(ModelError, match=r"'gpt2'.* TypeError"):
        Engine(str(folder), model_impl="transformers", **FLAGS)


def test_an_adapter_beside_the_weights_is_refused(tmp_path: Path) -> None:
    """Where peft is there, transformers adds it unasked."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ModelError, match="merge_and_unload"):
        Engine(str(tmp_path), **FLAGS)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    config = transformers.AutoConfig.from_pretrained(folder)
    config.n_layer = 4
    config.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"missing_keys: .*h\.3"):
        Engine(str(folder), **FLAGS)


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"'gpt2'.*not installed:\n.*radixlm\[transformers\]"):
        Engine(str(folder), **FLAGS)


@pytest.mark.parametrize("flag", [{"quantization": "int8"}, {"deterministic": True}])
def test_flags_that_need_our_own_code(tmp_path: Path, flag: dict[str, Any]) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    with pytest.raises(ConfigError, match=next(iter(flag))):
        Engine(str(folder), **FLAGS, **flag)


@pytest.mark.parametrize("architecture", ["bloom", "doge", "falcon", "gpt_neo", "jetmoe"])
def test_the_shape_is_known_without_weights(tmp_path: Path, architecture: str) -> None:
    files = files_of(make_checkpoint(tmp_path, architecture))
    shape = unloaded(files)
    loaded = load_foreign(files, shape, torch.float32, torch.device("cpu"), one_way).config
    assert loaded == shape
    assert bool(shape.traits.windows) == (architecture == "gpt_neo")


def test_the_context_ends_before_keys_are_dropped(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "doge", keep_window_size=48)
    with Engine(str(folder), **FLAGS) as engine:
        assert engine.info.context_length == 48


def test_the_context_ends_where_alibi_s_positions_are_not_exact(tmp_path: Path) -> None:
    lengths = {1000: 1000, 65_792: 65_792, 100_000: 65_792}
    for length, expected in lengths.items():
        files = files_of(
            make_checkpoint(tmp_path / str(length), "mpt", max_position_embeddings=length)
        )
        assert unloaded(files).context_length == expected


@pytest.mark.parametrize("architecture", ["bloom", "doge"])
def test_numbers_beside_keys_are_not_rounded(tmp_path: Path, architecture: str) -> None:
    folder = make_checkpoint(tmp_path, architecture)
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype int8 is not for {architecture}"):
        Engine(str(folder), **FLAGS, kv_cache_dtype="int8")


def test_our_own_code_alone_does_not_know_it(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    with pytest.raises(ModelError, match="--model-impl transformers"):
        Engine(str(folder), model_impl="radixlm", **FLAGS)


def test_what_our_own_code_stored_is_not_read(tmp_path: Path) -> None:
    """GLM's heads have their numbers in another order there."""
    folder = make_checkpoint(tmp_path / "model", "glm")
    disk = {"disk_cache": str(tmp_path / "disk"), "disk_block_tokens": 8, "disk_cache_gb": 0.1}
    disk |= {"disk_write_policy": "all"}
    outputs = []
    for model_impl in ("radixlm", "transformers"):
        with Engine(str(folder), model_impl=model_impl, **FLAGS, **disk) as engine:
            outputs += engine.generate(PROMPTS[:1], PARAMS)
    assert outputs[0].token_ids == outputs[1].token_ids
    assert outputs[1].cached_tokens == 0
