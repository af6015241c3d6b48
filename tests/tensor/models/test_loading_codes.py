"""Codes of weights come to a GPU without memory for the numbers that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from radixlm.assembly.chosen import chosen
from radixlm.core.config import EngineConfig
from radixlm.models import load_model, open_checkpoint
from radixlm.models.decoder import CausalLM
from radixlm.products.gemm_choice import one_way
from radixlm.testing.quantized_folders import Recipe, quantize_folder
from radixlm.testing.reference import make_checkpoint
from tests.pretend_gpu import PretendGpu, with_kernels
from tests.tensor.test_step_graphs import needs_triton

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "head_dim": 64,
    "num_hidden_layers": 6,
    "tie_word_embeddings": True,
}


@needs_triton
def test_the_most_memory_is_that_of_codes_and_of_a_product(
    gpu: PretendGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(gpu, monkeypatch)
    plain = make_checkpoint(tmp_path / "plain", "qwen3", **SIZES)
    quantize_folder(plain, folder := tmp_path / "q", Recipe("pack-quantized"))
    config = chosen(EngineConfig(model=str(folder), device="cpu"))[1]
    sizes = {"dtype": torch.float32, "device": torch.device("meta")}
    whole = CausalLM(config, **sizes)
    product = max(linear.weight.nbytes for _, linear in whole.linears())
    numbers = sum(weight.nbytes for weight in whole.weights().values())
    gpu.memory.most = before = gpu.memory.nbytes
    model = load_model(
        open_checkpoint(folder),
        config,
        dtype=torch.float32,
        device=gpu.device,
        choose=one_way,
        progress=False,
    )
    kept, most = gpu.memory.nbytes - before, gpu.memory.most - before
    assert all(not linear.weight.numel() for _, linear in model.linears() if linear.parts)
    assert most < kept + 3 * product
    assert most < numbers / 2
