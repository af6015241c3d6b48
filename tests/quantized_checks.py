"""Quantized folders as tests load them, and their weights beside those that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from radixlm.models import CausalLM, load_config, load_model, open_checkpoint
from radixlm.products.gemm_choice import Choose
from radixlm.products.quantized import QuantizedWeight
from radixlm.text.model_folder import resolve_model
from tests.tensor.attention_cases import DenseAttend


def load(folder: Path, choose: Choose | None = None) -> CausalLM:
    return load_model(
        open_checkpoint(resolve_model(str(folder))),
        load_config(folder),
        dtype=torch.float32,
        device=torch.device("cpu"),
        choose=choose,
        progress=False,
    )


@torch.inference_mode()
def logits(model: CausalLM, tokens: Sequence[int]) -> Tensor:
    rows = torch.arange(len(tokens))
    return model.forward(torch.tensor(tokens), rows, DenseAttend(model.config.n_kv_heads), rows)


def check_weights(folder: Path, whole: Mapping[str, Tensor]) -> None:
    """Products' weights are quantized, and all stand for exactly these."""
    checkpoint = open_checkpoint(resolve_model(str(folder)))
    assert {name: tuple(weight.shape) for name, weight in whole.items()} == checkpoint.shapes
    for name, expected in whole.items():
        weight = checkpoint.read(name)
        assert isinstance(weight, QuantizedWeight) == name.endswith("_proj.weight")
        if isinstance(weight, QuantizedWeight):
            weight = weight.dequantized()
        assert torch.equal(weight, expected), name
