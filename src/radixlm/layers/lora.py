"""Low-rank adapters of products (LoRA; Hu et al., 2021), many of them in one step.

tokens     0  1  2 | 3 | 4  5 | 6      rows of a step; neighbours with one adapter together
adapter    none    | a | b    | a
product    computed for all of them at once
+ x A^T B^T        by adapter, on its rows alone: one product by A for all parts of a product
                   that are stacked (q, k and v), then one by each part's own B
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.kernels.chain import Chain
from radixlm.layers.linear import Linear
from radixlm.products.low_rank import LowRank, LowRankProducts, Panels, knows
from radixlm.products.panel_products import gates_first

# A product: Linear.__call__, or what adds to it.
Multiply = Callable[[Linear, Tensor, Tensor | None], Tensor]


class Addition:
    """An adapter's part of a product, packed. parts: of different outputs."""

    def __init__(self, linear: Linear, parts: Sequence[LowRank]) -> None:
        self.panels = Panels(parts, linear.middle) if knows(parts[0].a) else None
        if linear.gate is not None and linear.in_turns:
            linear.gate.learn_turns()
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
        self._calls: dict[Linear, Multiply] = {}
        self._rooms: dict[torch.Size, Tensor] = {}
        # Whether it is nothing but calls of workers where products are; those of few tokens.
        additions = [addition for each in rows for addition in each.additions.values()]
        self.is_compiled = all(addition.panels is not None for addition in additions)
        self.chains: dict[tuple[object, ...], Chain] = {}

    def __call__(self, linear: Linear, x: Tensor, out: Tensor | None = None) -> Tensor:
        """(tokens, in) -> (tokens, out), as the product without adapters."""
        if linear not in self._linears:
            return linear(x, out)
        call = self._calls.get(linear)
        if call is None:
            call = self._calls[linear] = self._call_of(linear)
        return call(linear, x, out)

    def _call_of(self, linear: Linear) -> Multiply:
        """The product, and what is added to it."""
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
        if len(runs) < len(found):
            return partial(_one_by_one, found)
        added = LowRankProducts(runs, linear.middle if linear.in_turns else 0)
        return partial(self._compiled, added)

    def _compiled(
        self, added: LowRankProducts, linear: Linear, x: Tensor, out: Tensor | None
    ) -> Tensor:
        if linear.gate is None:
            made = linear(x, out)
            added(x, made)
            return made
        room = None if out is None else self._room_for(out)
        made = linear.ungated(x, room)
        added(x, made)
        return linear.gate(made, out, in_turns=linear.in_turns)

    def _room_for(self, out: Tensor) -> Tensor:
        """Memory for a gate's input: the same in all layers of a size."""
        if out.shape not in self._rooms:
            self._rooms[out.shape] = out.new_empty(out.shape[0], 2 * out.shape[1])
        return self._rooms[out.shape]


def _one_by_one(
    found: Sequence[tuple[Addition, int, int]], linear: Linear, x: Tensor, _out: Tensor | None
) -> Tensor:
    """Each adapter by itself, by torch."""
    made = linear(x) if linear.gate is None else linear.ungated(x)
    if linear.in_turns:
        made = gates_first(made)
    for addition, start, stop in found:
        addition.add(x[start:stop], made[start:stop])
    return made if linear.gate is None else linear.gate(made)
