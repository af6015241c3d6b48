"""What DeepSeek's folders hold beside the layers that are served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlm.core.errors import CheckpointError
from radixlm.models import CausalLM, load_config, load_model, open_checkpoint
from radixlm.testing.float_folders import FloatRecipe, write_floats
from radixlm.testing.quantized_folders import write_plain
from radixlm.testing.reference import make_checkpoint


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    cpu = torch.device("cpu")
    checkpoint = open_checkpoint(folder)
    return load_model(checkpoint, load_config(folder), dtype=dtype, device=cpu, progress=False)


def add(folder: Path, *names: str) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **{name: torch.ones(2) for name in names}}, path)


def test_layers_that_only_propose_tokens_are_left_out(tmp_path: Path) -> None:
    """As DeepSeek-V3's layer 61: their answers do not depend on it."""
    folder = make_checkpoint(tmp_path, "deepseek_v3")
    plain = load(folder).weights()
    add(folder, "model.layers.3.eh_proj.weight", "model.layers.3.shared_head.norm.weight")
    assert load(folder).weights().keys() == plain.keys()
    add(folder, "model.layers.4.eh_proj.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.4\.eh_proj\.weight"):
        load(folder)


def test_how_many_such_layers_there_are_costs_nothing(tmp_path: Path) -> None:
    """Whatever the config says: names of them were made before."""
    folder = make_checkpoint(tmp_path, "deepseek_v3", num_nextn_predict_layers=2**31 - 1)
    assert load(folder).config.traits.spare_layers == 2**31 - 1


def test_without_such_layers_they_are_one_too_many(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "deepseek_v2")
    add(folder, "model.layers.3.eh_proj.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.eh_proj\.weight"):
        load(folder)


def test_fp8_by_block_as_it_is_published(tmp_path: Path) -> None:
    """With latents' projections among what is quantized, cut blocks and rows that change places."""
    plain = make_checkpoint(tmp_path / "plain", "deepseek_v3")
    whole = write_floats(plain, tmp_path / "fp8", FloatRecipe("fp8", (128, 128)))
    expected = load(write_plain(plain, tmp_path / "whole", whole)).weights()
    for name, weight in load(tmp_path / "fp8").weights().items():
        assert torch.equal(weight, expected[name]), name


def test_what_chooses_experts_and_expands_latents_stays_exact(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "deepseek_v3")
    stored, weights = (
        load_file(folder / "model.safetensors"),
        load(folder, torch.bfloat16).weights(),
    )
    exact = ("mlp.gate.weight", "mlp.gate.e_score_correction_bias", "self_attn.kv_b_proj.weight")
    for end in exact:
        name = f"model.layers.1.{end}"
        assert torch.equal(weights[name], stored[name]), name
    assert weights["model.layers.1.self_attn.o_proj.weight"].dtype == torch.bfloat16


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "deepseek_v2")
    path = folder / "model.safetensors"
    name = "model.layers.2.self_attn.kv_b_proj.weight"
    save_file({key: each for key, each in load_file(path).items() if key != name}, path)
    with pytest.raises(CheckpointError, match=r"lacks .*layers\.2\.self_attn\.kv_b_proj\.weight"):
        load(folder)
