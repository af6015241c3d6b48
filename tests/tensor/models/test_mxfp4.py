"""gpt-oss as it is published: experts in MXFP4."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.errors import ModelError
from radixlm.models import PlainCheckpoint, load_config, load_model, open_checkpoint
from radixlm.models.safetensors_files import Checkpoint
from radixlm.products.gemm_choice import PLAIN, Choose, one_way
from radixlm.testing.quantized_folders import write_mxfp4, write_plain
from radixlm.testing.reference import make_checkpoint
from tests.tensor.attention_cases import DenseAttend


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint in blocks, and one with the weights that these stand for."""
    folder = tmp_path_factory.mktemp("mxfp4")
    quantized = folder / "quantized"
    whole = write_mxfp4(make_checkpoint(folder / "plain", "gpt_oss"), quantized)
    return write_plain(folder / "plain", folder / "whole", whole), quantized


@torch.inference_mode()
def logits(folder: Path, checkpoint: Checkpoint, choose: Choose = lambda *_: PLAIN) -> Tensor:
    config, cpu = load_config(folder), torch.device("cpu")
    model = load_model(
        checkpoint,
        config,
        dtype=torch.float32,
        device=cpu,
        choose=choose,
        progress=False,
    )
    rows = torch.arange(40)
    return model.forward(rows * 7, rows, DenseAttend(config.n_kv_heads, config.windows), rows)


def test_blocks_are_the_weights_that_they_stand_for(folders: tuple[Path, Path]) -> None:
    plain, quantized = folders
    expected = logits(plain, PlainCheckpoint(plain))
    found = logits(quantized, open_checkpoint(quantized))
    assert (found - expected).abs().max() <= 1e-4
    packed = logits(quantized, open_checkpoint(quantized), one_way)
    assert (packed - expected).abs().max() <= 1e-3  # rows are not rounded


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("down_proj_scales", None, "is missing"),
        ("down_proj_scales", lambda scales: scales[:, :-1], "should be"),
        ("down_proj_scales", lambda scales: scales.float(), "is of type F32"),
        ("down_proj_scales", lambda scales: scales.fill_(255), "not all finite numbers"),
        ("down_proj_blocks", lambda blocks: blocks[..., :8], "has shape"),
        ("down_proj_blocks", None, "no part of a weight"),
        ("down_proj_blocks", lambda blocks: blocks[1:], "should be"),
        ("gate_up_proj_bias", None, "lacks"),
    ],
)
def test_what_is_damaged_is_named(
    folders: tuple[Path, Path], tmp_path: Path, part: str, change: object, said: str
) -> None:
    name = f"model.layers.1.mlp.experts.{part}"
    tensors = load_file(folders[1] / "model.safetensors")
    found = tensors.pop(name)
    if callable(change):
        tensors[name] = change(found).contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((folders[1] / "config.json").read_text())
    with pytest.raises(ModelError, match=said) as raised:
        logits(tmp_path, open_checkpoint(tmp_path))
    assert "down_proj" in str(raised.value) or "gate_up_proj" in str(raised.value)
