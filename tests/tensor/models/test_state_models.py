"""Models that carry states against transformers: logits of prompts at once, and in parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.memory.state_pool import StatePool
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.attention_cases import dense_for

CPU = torch.device("cpu")
# Scans add up in another order than transformers', over 150 tokens and logits of up to 15.
TOLERANCE = 5e-4
TOKENS = torch.randint(0, 320, (150,), generator=torch.Generator().manual_seed(1))
QUICK = ("qwen3_5_text",)


def load(folder: Path) -> CausalLM:
    checkpoint, config = PlainCheckpoint(folder), load_config(folder)
    return load_model(checkpoint, config, dtype=torch.float32, device=CPU, progress=False)


@torch.inference_mode()
def logits(model: CausalLM, token_ids: Tensor = TOKENS) -> Tensor:
    rows = torch.arange(token_ids.numel())
    pool = StatePool(model.config.state_shapes, 1, torch.float32)
    states = StepStates([StateRow(0, rows.numel(), 0, 0)], pool.conv, pool.matrices)
    return model.forward(token_ids, rows, dense_for(model), rows, states=states)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        *(
            pytest.param(name, {}, marks=[] if name in QUICK else pytest.mark.slow)
            for name in HYBRIDS
        ),
        ("qwen3_next", {"mlp_only_layers": [0, 1, 2], "linear_num_value_heads": 2}),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 2, "attention_bias": True}),
        ("qwen3_5_text", {"layer_types": None, "num_hidden_layers": 4}),
        ("falcon_h1", {"mamba_rms_norm": False}),
        ("lfm3", {"use_sandwich_norm": False, "conv_bias": True}),
        ("lfm3", {"layer_types": None, "num_hidden_layers": 6, "use_attention_gate": False}),
        ("mamba", {"time_step_rank": "auto", "use_bias": True, "use_conv_bias": False}),
        ("bailing_hybrid", {"kda_safe_gate": False, "layer_group_size": 2, "layer_types": None}),
        ("recurrent_gemma", {"attention_bias": True, "lru_width": 96}),
        ("jamba", {"num_experts": 1, "mamba_proj_bias": True}),
        ("falcon_h1", {"mamba_norm_before_gate": False, "mlp_bias": True}),
        ("zamba", {"n_mamba_heads": 4, "mamba_dt_rank": "auto", "mamba_conv_bias": False}),
        (
            "zamba2",
            {
                "use_shared_attention_adapter": False,
                "num_key_value_heads": 2,
                "add_bias_linear": True,
                "use_mem_rope": False,
            },
        ),
        ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": False}),
        ("bamba", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_n_groups": 1}),
        ("granitemoehybrid", {"num_local_experts": 0, "position_embedding_type": "rope"}),
    ],
)
def test_logits_equal_transformers(
    tmp_path: Path, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    expected = reference_logits(load_reference(folder), TOKENS.tolist())
    assert (logits(load(folder)) - expected).abs().max() <= TOLERANCE
    assert expected.argmax(-1).unique().numel() > 20, "the reference says the same all the time"


@pytest.mark.parametrize("architecture", HYBRIDS)
@torch.inference_mode()
def test_a_layer_goes_on_from_its_state(tmp_path: Path, architecture: str) -> None:
    """Two prompts side by side, by several tokens and by one, are as each alone at once."""
    model = load(make_checkpoint(tmp_path, architecture))
    [layer] = [each.state for each in model.layers if each.state is not None][:1]
    x = torch.randn(2, 80, 64, generator=torch.Generator().manual_seed(2))

    def states(pool: StatePool, *rows: StateRow) -> StepStates:
        return StepStates(rows, pool.conv, pool.matrices)

    def fresh() -> StatePool:
        return StatePool(model.config.state_shapes, 3, torch.float32)

    def multiply(linear: Any, given: Tensor, out: Tensor | None) -> Tensor:
        return linear(given, out)

    whole = [layer(its, states(fresh(), StateRow(0, 80, 0, 1)), multiply) for its in x]
    pool, made = fresh(), []
    for at, stop in pairwise(accumulate((0, 70, 1, 1, 3, 5))):
        count = stop - at
        rows = StateRow(0, count, at, 2), StateRow(count, 2 * count, at, 0)
        given = torch.cat([its[at:stop] for its in x])
        made.append(layer(given, states(pool, *rows), multiply).unflatten(0, (2, count)))
    assert (torch.cat(made, dim=1) - torch.stack(whole)).abs().max() < 1e-4


# What published configs have in place of what transformers writes (None: nothing), names of weights
# with what they begin with or have within, and weights that only propose tokens.
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], Mapping[str, str], tuple[str, ...]]] = {
    "qwen3_next": (
        {"layer_types": None, "full_attention_interval": 2},
        {},
        ("mtp.fc.weight", "mtp.layers.0.self_attn.q_proj.weight"),
    ),
    "lfm2": ({"layer_types": None, "full_attn_idxs": [1]}, {}, ()),
    "granitemoehybrid": ({"layer_types": ["mamba", "attention", "mamba"]}, {}, ()),
    "nemotron_h": (
        {
            "layers_block_type": None,
            "hybrid_override_pattern": "ME*-M",
            "num_hidden_layers": 5,
            "rope_theta": 10_000,
            "partial_rotary_factor": 1.0,
            "num_nextn_predict_layers": 1,
            "mtp_hybrid_override_pattern": "*E",
        },
        {},
        ("mtp.layers.0.mixer.q_proj.weight",),
    ),
    "zamba2": (
        {
            "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
            "rope_parameters": None,
            "rope_theta": 10_000,
        },
        {},
        (),
    ),
    "mamba2": ({"time_step_limit": [0.0, float("inf")]}, {"embeddings.": "embedding."}, ()),
    "olmo_hybrid": (
        {"linear_num_key_heads": 4, "linear_num_value_heads": 4},
        {
            ".1.feedforward_layer_norm.": ".1.post_attention_layernorm.",
            ".attention_layer_norm.": ".input_layernorm.",
            ".feedforward_layer_norm.": ".post_attention_layernorm.",
        },
        (),
    ),
    "bailing_hybrid": (
        {
            "layer_types": None,
            "layer_group_size": 2,
            "mlp_layer_types": None,
            "head_dim": 16,
            "linear_conv_kernel_dim": None,
            "linear_head_dim": None,
            "linear_num_heads": None,
        },
        {},
        ("model.layers.3.attention.q_proj.weight",),
    ),
    "kimi_linear": (
        {
            "layer_types": None,
            "mlp_layer_types": None,
            "linear_num_heads": None,
            "linear_head_dim": None,
            "linear_conv_kernel_dim": None,
            "linear_attn_config": {
                "full_attn_layers": [2],
                "kda_layers": [1, 3],
                "head_dim": 12,
                "num_heads": 4,
                "short_conv_kernel_size": 4,
            },
            "first_k_dense_replace": 1,
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "moe_router_activation_func": "sigmoid",
            "num_nextn_predict_layers": 0,
            "rope_scaling": None,
            "rope_theta": 10_000.0,
        },
        {".0.block_sparse_moe.": ".0.mlp."},
        (),
    ),
}


def rewritten(folder: Path, fields: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rewrite config.json and the weights; returns the config."""
    path, file = folder / "config.json", folder / "model.safetensors"
    config = {k: v for k, v in (json.loads(path.read_text()) | fields).items() if v is not None}
    path.write_text(json.dumps(config))
    weights = load_file(file)
    for old, new in names.items():
        weights = {name.replace(old, new): its for name, its in weights.items()}
    save_file(weights, file, metadata={"format": "pt"})
    return config


@pytest.mark.parametrize("architecture", PUBLISHED)
def test_folders_as_publishers_write_them(tmp_path: Path, architecture: str) -> None:
    fields, names, spare = PUBLISHED[architecture]
    own = {"linear_num_key_heads": 4} if architecture == "olmo_hybrid" else {}
    folder = make_checkpoint(tmp_path, architecture, **own)
    expected, file = logits(load(folder)), folder / "model.safetensors"
    rewritten(folder, fields, names)
    save_file({**load_file(file), **{name: torch.ones(2) for name in spare}}, file)
    assert torch.equal(logits(load(folder)), expected)


@pytest.mark.parametrize("section", ["text_config", "llm_config"])
def test_the_text_of_nemotron_h_omni(tmp_path: Path, section: str) -> None:
    """Its tensors are in a part of their own, beside a tower's with an embedding, too."""
    folder = make_checkpoint(tmp_path, "nemotron_h")
    expected, file = logits(load(folder)), folder / "model.safetensors"
    config = rewritten(folder, {}, {"backbone.": "language_model.backbone."})
    head = {"lm_head.weight": "language_model.lm_head.weight"}
    rewritten(folder, {}, head)
    vision = {"vision_model.radio_model.embeddings.weight": torch.ones(2)}
    save_file(load_file(file) | vision, file)
    outer = {"model_type": "nemotron_h_omni", section: config, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(outer))
    assert torch.equal(logits(load(folder)), expected)


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_the_text_of_qwen3_5_beside_its_vision_and_what_proposes_tokens(
    tmp_path: Path, family: str
) -> None:
    folder = make_checkpoint(tmp_path, f"{family}_text")
    expected, file = logits(load(folder)), folder / "model.safetensors"
    config = rewritten(folder, {}, {"model.": "model.language_model."})
    others = "model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight", "mtp.layers.0.mlp.x.weight"
    save_file({**load_file(file), **{name: torch.ones(2) for name in others}}, file)
    outer = {"model_type": family, "text_config": config, "vision_config": {"depth": 2}}
    (folder / "config.json").write_text(json.dumps(outer))
    assert torch.equal(logits(load(folder)), expected)


def test_no_positions_where_rope_theta_is_null(tmp_path: Path) -> None:
    """OLMo Hybrid as it is published."""
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": None}}
    folder = make_checkpoint(tmp_path, "olmo_hybrid", **rope)
    expected = reference_logits(load_reference(folder), TOKENS.tolist())
    model = load(folder)
    assert (logits(model) - expected).abs().max() <= TOLERANCE
    assert set(model.config.ropes) == {None}


@pytest.mark.parametrize(
    ("architecture", "fields", "error"),
    [
        ("mamba2", {"time_step_limit": [0.1, 1.0]}, "'time_step_limit' is .* 0 and Infinity"),
        ("mamba", {"time_step_rank": "some"}, "'time_step_rank' is 'some'.* or \"auto\""),
        ("jamba", {"attn_layer_offset": 3}, "'attn_layer_offset' is 3.*less than .*, 3"),
        ("recurrent_gemma", {"lru_width": 66}, "'lru_width' is 66.* a multiple of 4"),
        ("mamba2", {"expand": 3}, "'num_heads' is 8.* 192 / head_dim"),
        ("nemotron_h", {"layers_block_type": ["linear_attention", "?"]}, "layers_block_type"),
        ("nemotron_h", {"mlp_bias": True}, "'mlp_bias' is True.* false"),
        ("zamba", {"n_mamba_heads": 7}, "'n_mamba_heads' is 7.* a divisor of 128"),
        ("zamba2", {"n_mamba_heads": 7}, "'n_mamba_heads' is 7.* a divisor of 128"),
        ("zamba2", {"layers_block_type": ["hybrid"]}, "one for each of 5 layers"),
        ("zamba2", {"use_long_context": True}, "'use_long_context' is True.* false"),
        ("kimi_linear", {"mla_use_nope": False}, "'mla_use_nope' is False.* true"),
        (
            "olmo_hybrid",
            {"linear_num_key_heads": 64, "linear_num_value_heads": 64, "linear_key_head_dim": None},
            "'linear_num_key_heads' is 64.* without linear_key_head_dim",
        ),
        ("minimax", {"rotary_dim": 16, "head_dim": "16"}, "'head_dim' is '16'.* positive integer"),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, architecture: str, fields: dict[str, Any], error: str
) -> None:
    folder = make_checkpoint(tmp_path, architecture)
    rewritten(folder, fields, {})
    with pytest.raises(UnsupportedModelError, match=error):
        load(folder)


def test_two_names_of_one_weight_are_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "kimi_linear")
    file = folder / "model.safetensors"
    name = "model.layers.1.block_sparse_moe.gate.weight"
    more = {name.replace("block_sparse_moe", "mlp"): load_file(file)[name]}
    save_file(load_file(file) | more, file)
    with pytest.raises(CheckpointError, match="are the same weight"):
        load(folder)


def test_experts_in_one_tensor_or_each_by_itself(tmp_path: Path) -> None:
    """Publishers write the first, transformers the second."""
    folder = make_checkpoint(tmp_path, "qwen3_5_moe_text")
    expected, file = logits(load(folder)), folder / "model.safetensors"
    weights = load_file(file)
    for layer in range(3):
        place = f"model.layers.{layer}.mlp.experts."
        each = [
            [weights.pop(f"{place}{n}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for n in range(6)
        ]
        weights[f"{place}gate_up_proj"] = torch.stack([torch.cat(its[:2]) for its in each])
        weights[f"{place}down_proj"] = torch.stack([its[2] for its in each])
    save_file(weights, file, metadata={"format": "pt"})
    assert torch.equal(logits(load(folder)), expected)


def test_blocks_that_layers_share_are_in_memory_once(tmp_path: Path) -> None:
    """And are packed once, with the first layer that uses them."""
    model = load(make_checkpoint(tmp_path, "zamba2"))
    places = [place for place, _ in model.linears() if place.endswith("shared.self_attn.")]
    assert places == [f"model.layers.{n}.shared.self_attn." for n in (1, 1, 2, 2)]
    held = {id(linear) for _, linear in model.linears()}
    assert len(held) == len([*model.linears()])
