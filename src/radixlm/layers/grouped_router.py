"""Choosing experts by groups, by sigmoids, with a correction (DeepSeek-V2 and V3, 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from radixlm.layers.linear import Linear
from radixlm.layers.mlps import place_of, sigmoid
from radixlm.products.compiled import TensorOptions

# What weights are divided by is never 0.
_LEAST = 1e-20


class GroupedRouting(NamedTuple):
    """How experts are chosen where it is not the best of a softmax over all.

    scores: of each expert. correction: the name of a bias that is added to choose by, and has no
        weight in the result; empty: there is none. correction_dims: of the stored one.
    groups, chosen_groups: experts stand in groups, of which some are left, by the sum of the best
        `best` of each; 0: there are none.
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    correction: str = ""
    correction_dims: int = 1
    groups: int = 0
    chosen_groups: int = 0
    best: int = 1


class GroupedRouter:
    """An `ExpertRouter` that chooses by a `GroupedRouting`. All in float32, whatever the model's
    type is: what is chosen depends on small differences.
    """

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        options: TensorOptions,
        routing: GroupedRouting,
        *,
        name: str,
        chosen: int,
        renormalised: bool,
        scale: float,
    ) -> None:
        exact = TensorOptions(torch.float32, options.device)
        self._scores = Linear(hidden_size, {name.rpartition(".")[2]: experts}, exact, bias=False)
        self._name, self._routing = name, routing
        self._chosen, self._renormalised, self._scale = chosen, renormalised, scale
        self._correction = exact.empty(experts) if routing.correction else None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, hidden_size) -> weights, float32, and numbers of experts, (tokens, chosen)."""
        made = self._scores(x.float())
        shares = made.softmax(-1) if self._routing.scores == "softmax" else sigmoid(made)
        ranked = shares if self._correction is None else shares + self._correction
        if self._routing.groups:
            ranked = self._within_groups(ranked)
        chosen = ranked.topk(self._chosen, dim=-1).indices
        weights = shares.gather(1, chosen)
        if self._renormalised:
            weights.div_(weights.sum(dim=-1, keepdim=True).add_(_LEAST))
        return weights.mul_(self._scale), chosen

    def _within_groups(self, ranked: Tensor) -> Tensor:
        """The same, -inf where an expert's group is not chosen."""
        by_group = ranked.unflatten(1, (self._routing.groups, -1))
        of_groups = by_group.topk(self._routing.best, dim=-1).values.sum(-1)
        chosen = of_groups.topk(self._routing.chosen_groups, dim=-1).indices
        left = torch.full_like(of_groups, -torch.inf).scatter_(1, chosen, 0.0)
        made: Tensor = by_group + left.unsqueeze(-1)
        return made.flatten(1)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        yield place_of(self._name), self._scores

    def others(self) -> Iterator[tuple[str, Tensor]]:
        """Weights that are no product's."""
        if self._correction is not None:
            ones = [1] * (self._routing.correction_dims - 1)
            yield self._routing.correction, self._correction.view(*ones, -1)
