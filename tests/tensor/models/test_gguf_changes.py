"""Weights that llama.cpp's converters change beside their names, in the ways that sizes allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.models import GGUFCheckpoint, load_config, load_model
from radixlm.testing.gguf_models import write_pair
from radixlm.testing.gguf_writer import write_gguf
from tests.tensor.models.test_gguf_families import check, load


@pytest.mark.parametrize(
    ("family", "kind", "options"),
    [
        # Heads of values that share scales with others, that do not, and one for each key.
        ("qwen3_5_text", "Q8_0", {"linear_value_head_dim": 24}),
        ("qwen3_5_text", "Q4_0", {"linear_value_head_dim": 32}),
        ("qwen3_5_text", "Q8_0", {"linear_num_value_heads": 2}),
        ("qwen3_next", "Q8_0", {"linear_num_value_heads": 2}),
        ("granitemoehybrid", "Q8_0", {"num_local_experts": 0}),
        ("falcon_h1", "Q8_0", {"mamba_rms_norm": False}),
        (
            "nemotron_h",
            "Q8_0",
            {"moe_latent_size": None, "layers_block_type": ["mamba", "moe", "attention"]},
        ),
        ("bamba", "Q8_0", {"mamba_conv_bias": False, "mamba_n_groups": 1}),
        ("glm4v_text", "F16", {"attention_bias": False}),
    ],
)
def test_other_sizes(tmp_path: Path, family: str, kind: str, options: dict[str, Any]) -> None:
    check(*write_pair(tmp_path, family, kind, **options))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    folder, path = write_pair(tmp_path, "qwen3_5_text", "F32")
    other = tmp_path / "other.gguf"
    more = {"blk.3.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    more["blk.3.attn_k.weight"] = np.ones((32, 64), np.float32)
    further = {"qwen35.block_count": 4, "qwen35.nextn_predict_layers": 1}
    write_gguf(folder, other, "F32", tensors=more, further=further)
    assert load_config(other).n_layers == load_config(path).n_layers
    check(folder, other)


def test_gates_and_ups_of_experts_in_one_tensor(tmp_path: Path) -> None:
    folder, path = write_pair(tmp_path, "qwen3_5_moe_text", "F32")
    other, file = tmp_path / "other.gguf", GGUFFile(path)
    tensors, parts = {}, {}
    for layer in range(3):
        names = [f"blk.{layer}.ffn_{kind}_exps.weight" for kind in ("gate", "up")]
        shape = file.tensors[names[0]].shape
        each = [file.data(name).view("<f4").reshape(shape) for name in names]
        tensors[f"blk.{layer}.ffn_gate_up_exps.weight"] = np.concatenate(each, axis=1)
        parts |= dict.fromkeys(names)
    write_gguf(folder, other, "F32", tensors=tensors, without=parts)
    check(folder, other)


def test_rows_by_heads_of_keys_as_older_files_have_them(tmp_path: Path) -> None:
    folder, _ = write_pair(tmp_path, "qwen3_next", "F32")
    weights, other = load_file(folder / "model.safetensors"), tmp_path / "other.gguf"
    place = "model.layers.{}.linear_attn.in_proj_qkvz.weight"
    tensors = {f"blk.{n}.ssm_in.weight": weights[place.format(n)].numpy() for n in (0, 2)}
    parted = {f"blk.{n}.attn_{kind}.weight" for n in (0, 2) for kind in ("qkv", "gate")}
    write_gguf(folder, other, "F32", tensors=tensors, without=parted)
    check(folder, other)


def test_numbers_that_files_leave_out(tmp_path: Path) -> None:
    """They are those of the published models."""
    folder, path = write_pair(tmp_path, "mistral4", "F32")
    write_gguf(folder, path, "F32", further={"mistral4.attention.temperature_scale": None})
    queries = load_config(path).rope.queries
    assert queries is not None
    assert queries.beta == 0.1
    for experts, kind in ((64, "head"), (128, None)):
        folder, path = write_pair(tmp_path / kind if kind else tmp_path, "llama4_text", "F32")
        write_gguf(folder, path, "F32", further={"llama4.expert_count": experts})
        norms = load_config(path).traits.qk_norm
        assert (norms and norms.kind) == kind


@pytest.mark.parametrize(
    ("family", "further", "text"),
    [
        ("bamba", {"granitehybrid.ssm.inner_size": 129}, "inner_size' is 129, of 8 heads"),
        ("bamba", {"granitehybrid.ssm.inner_size": 96}, "mamba_d_head"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2, 3]}, "is not 0 or one number"),
        ("lfm2", {"lfm2.attention.head_count_kv": [0, 2]}, "is no list of 3 sizes from 0"),
        ("lfm2", {"lfm2.block_count": 2**31 - 1, "lfm2.attention.head_count_kv": 2}, "more than t"),
        ("mimo_v2_flash", {"mimo2.attention.head_count_kv": [1, 2, 3]}, "is not one number for"),
        ("mimo_v2_flash", {"mimo2.attention.sliding_window_pattern": [0, 1]}, "is not one number"),
    ],
)
def test_sizes_that_contradict_themselves_are_named(
    tmp_path: Path, family: str, further: dict[str, Any], text: str
) -> None:
    _, path = write_pair(tmp_path, family, "F32", further=further)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=text):
        load_config(path)


def test_states_that_would_grow_are_refused(tmp_path: Path) -> None:
    folder, path = write_pair(tmp_path, "bamba", "F32")
    grows = {"blk.0.ssm_a": np.ones((8, 1), np.float32)}
    write_gguf(folder, path, "F32", tensors=grows, without=grows)
    with pytest.raises(CheckpointError, match=r"layers\.0\.mamba\.A_log is made of numbers above"):
        load(path)


@pytest.mark.parametrize("family", ["qwen3_5_text", "bamba"])
def test_sizes_of_one_that_files_have_more_of(tmp_path: Path, family: str) -> None:
    _, path = write_pair(tmp_path, family, "F32")
    config, file = load_config(path), GGUFFile(path)
    expected = GGUFCheckpoint(file, config)
    for name, tensor in file.tensors.items():
        file.tensors[name] = tensor._replace(shape=(1, *tensor.shape))
    found = GGUFCheckpoint(file, config)
    assert found.shapes == expected.shapes
    names = [name for name in found.shapes if ".experts." not in name]
    assert all(torch.equal(found.read(name), expected.read(name)) for name in names)


def test_weights_of_an_activation_that_are_missing_are_named(tmp_path: Path) -> None:
    _, path = write_pair(tmp_path, "apertus", "F32")
    config, file = load_config(path), GGUFFile(path)
    file.metadata["xielu.beta"] = file.metadata["xielu.beta"][:2]
    checkpoint = GGUFCheckpoint(file, config)
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.act_fn\.beta"):
        load_model(checkpoint, config, dtype=torch.float32, device=torch.device("cpu"))
