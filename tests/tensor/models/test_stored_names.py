"""Weights by other names than files have for them, and in other parts."""

from __future__ import annotations

import torch
from torch import Tensor

from radixlm.models.stored_names import Renamed
from radixlm.products.quantized import QuantizedWeight

CODES = QuantizedWeight(
    torch.arange(8, dtype=torch.uint8).view(2, 4), torch.ones(2, 1), None, bits=8, zero=4
)


class Stored:
    where, is_quantized = "there", True

    def __init__(self) -> None:
        self.weights: dict[str, Tensor | QuantizedWeight] = {
            "a.k_conv1d.weight": CODES,
            "a.v_conv1d.weight": torch.ones(3, 1, 4),
            "a.q_conv1d.weight": torch.zeros(1, 1, 4),
        }
        self.shapes = {name: (weight.shape[0], 1, 4) for name, weight in self.weights.items()}

    def read(self, name: str) -> Tensor | QuantizedWeight:
        return self.weights[name]


def test_a_convolution_in_three_tensors_has_its_quantized_ones_too() -> None:
    checkpoint = Renamed(Stored(), ())
    assert checkpoint.shapes == {"a.conv1d.weight": (6, 1, 4)}
    expected = [[0.0] * 4, [-4.0, -3, -2, -1], [0.0, 1, 2, 3], *[[1.0] * 4] * 3]
    read = checkpoint.read("a.conv1d.weight")
    assert isinstance(read, Tensor)
    assert read[:, 0].tolist() == expected
