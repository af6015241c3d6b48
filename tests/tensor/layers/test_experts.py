"""A layer of experts against what it is by definition, its products one by one or all at once."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from radixlm.layers.experts import ExpertMLP, ExpertRouter
from radixlm.layers.linear import Quantize
from radixlm.layers.mlps import MLP
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantizing import quantize

HIDDEN, SIZE, EXPERTS, CHOSEN = 64, 96, 6, 2
OPTIONS = TensorOptions(torch.float32, torch.device("cpu"))
INT4 = partial(quantize, bits=4, group=32)


def by_definition(router: ExpertRouter, experts: list[MLP], x: Tensor) -> Tensor:
    weights, chosen = router(x)
    made = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for weight, expert in zip(weights[token], chosen[token].tolist(), strict=True):
            made[token] += weight * experts[expert](x[token : token + 1])[0]
    return made


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("packing", ["none", "panels", "int4"])
@pytest.mark.parametrize("rows", [1, 8, 90])
def test_the_sum_of_the_chosen(activation: str, packing: str, rows: int) -> None:
    torch.manual_seed(rows)
    router = ExpertRouter(HIDDEN, EXPERTS, OPTIONS, name="gate", chosen=CHOSEN, renormalised=True)
    experts = [
        MLP(HIDDEN, SIZE, OPTIONS, bias=False, activation=activation) for _ in range(EXPERTS)
    ]
    layer = ExpertMLP(router, experts)
    how: Quantize | None = INT4 if packing == "int4" else None
    for _, linear in layer.linears():
        torch.nn.init.normal_(linear.weight, std=HIDDEN**-0.5)
        if packing != "none":
            linear.pack(partial(one_way, quantized=one_way), how)
    x = torch.randn(rows, HIDDEN)
    torch.testing.assert_close(layer(x), by_definition(router, experts, x), rtol=1e-4, atol=1e-5)
