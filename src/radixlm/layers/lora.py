"""What adapters add to products (LoRA; Hu et al., 2021), for many of them in one step.

tokens     0  1  2 | 3 | 4  5 | 6      rows of a step; neighbours with one adapter together
adapter    none    | a | b    | a
product    computed for all of them at once
+ x A^T B^T        by adapter, on its rows alone
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from radixlm.layers.linear import Linear

# A product: Linear.__call__, or what adds to it.
Multiply = Callable[[Linear, Tensor, Tensor | None], Tensor]


class LowRank(NamedTuple):
    """What is added to the outputs of a product from `start` on: x a^T b^T.

    a: (rank, in). b: (outputs, rank), with the adapter's scale in it.
    """

    start: int
    a: Tensor
    b: Tensor


# What an adapter adds to each of a model's products.
Additions = Mapping[Linear, Sequence[LowRank]]


class AdaptedRows(NamedTuple):
    """Tokens [start, stop) of a step, which have an adapter."""

    additions: Additions
    start: int
    stop: int


class Adapted:
    """One step's products (a `Multiply`): those of the model, and what adapters add to them."""

    def __init__(self, rows: Sequence[AdaptedRows]) -> None:
        self._rows = rows
        self._linears = {linear for each in rows for linear in each.additions}

    def __call__(self, linear: Linear, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out), as the product without adapters."""
        if linear not in self._linears:
            return linear(x, out)
        made = linear.ungated(x)
        for additions, start, stop in self._rows:
            rows, of_rows = x[start:stop], made[start:stop]
            for first, a, b in additions.get(linear, ()):
                of_rows[:, first : first + b.shape[0]] += rows @ a.t() @ b.t()
        return made if linear.gate is None else linear.gate(made)
