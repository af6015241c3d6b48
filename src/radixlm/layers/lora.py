"""What adapters add to products (LoRA; Hu et al., 2021), for many of them in one step.

tokens     0  1  2 | 3 | 4  5 | 6      rows of a step; neighbours with one adapter together
adapter    none    | a | b    | a
product    computed for all of them at once
+ x A^T B^T        by adapter, on its rows alone: one product by A for all parts of a product
                   that are stacked (q, k and v), then one by each part's own B
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.linear import Linear
from radixlm.layers.low_rank import LowRank, LowRankProducts, Panels, knows

# A product: Linear.__call__, or what adds to it.
Multiply = Callable[[Linear, Tensor, Tensor | None], Tensor]


class Addition:
    """What an adapter adds to a product. parts: of different outputs."""

    def __init__(self, parts: Sequence[LowRank]) -> None:
        self.panels = Panels(parts) if knows(parts[0].a) else None
        if self.panels is not None:
            return
        self._down = torch.cat([part.a for part in parts]).t()
        self._ranks = [part.a.shape[0] for part in parts]
        self._up = [(part.start, part.start + part.b.shape[0], part.b.t()) for part in parts]

    def add(self, x: Tensor, made: Tensor) -> None:
        """(rows, in) -> (rows, out), in place, by torch: where there are no panels."""
        small = torch.mm(x, self._down)
        for (start, stop, up), part in zip(self._up, small.split(self._ranks, 1), strict=True):
            made[:, start:stop].addmm_(part, up)


# What an adapter adds to each of a model's products.
Additions = Mapping[Linear, Addition]


class AdaptedRows(NamedTuple):
    """Tokens [start, stop) of a step, which have an adapter."""

    additions: Additions
    start: int
    stop: int


class Adapted:
    """The products (a `Multiply`) of steps with these rows: those of the model, and what adapters
    add to them.
    """

    def __init__(self, rows: Sequence[AdaptedRows]) -> None:
        self._rows = rows
        self._linears = {linear for each in rows for linear in each.additions}
        self._calls: dict[Linear, Callable[[Tensor, Tensor], None]] = {}

    def __call__(self, linear: Linear, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out), as the product without adapters."""
        if linear not in self._linears:
            return linear(x, out)
        made = linear.ungated(x)
        call = self._calls.get(linear)
        if call is None:
            call = self._calls[linear] = self._call_of(linear)
        call(x, made)
        return made if linear.gate is None else linear.gate(made)

    def _call_of(self, linear: Linear) -> Callable[[Tensor, Tensor], None]:
        """What adds to this product."""
        found = [
            (addition, each.start, each.stop)
            for each in self._rows
            if (addition := each.additions.get(linear)) is not None
        ]
        runs = [
            (addition.panels, start, stop)
            for addition, start, stop in found
            if addition.panels is not None
        ]
        if len(runs) == len(found):
            return LowRankProducts(runs)

        def one_by_one(x: Tensor, made: Tensor) -> None:
            for addition, start, stop in found:
                addition.add(x[start:stop], made[start:stop])

        return one_by_one
