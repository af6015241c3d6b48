"""Layers that choose some of many MLPs for each token (Shazeer et al., 2017).

chosen    token 0: 3 1    token 1: 1 7    token 2: 3 0      by the router, with weights
sorted    0: [2]   1: [0 1]   3: [0 2]   7: [1]             tokens of each expert
          an expert's weights are read once for all of its tokens; those of others not at all

On the CPU counts say which products there are; a GPU keeps them, and does not wait for its host.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.chain import Together
from radixlm.kernels.openmp import team
from radixlm.layers.grouped_router import GroupedRouter
from radixlm.layers.linear import Linear, RMSNorm
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import MLP, named, place_of, sigmoid
from radixlm.products.compiled import TensorOptions
from radixlm.products.gpu_products import GpuProduct, Shared


class ExpertRouter:
    """Chooses for each token, by a softmax over the scores of all experts.

    chosen: how many. renormalised: their weights sum to 1. scale: of all weights.
    """

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        options: TensorOptions,
        *,
        name: str,
        chosen: int,
        renormalised: bool,
        bias: bool = False,
        scale: float = 1.0,
    ) -> None:
        self._scores = Linear(hidden_size, {name.rpartition(".")[2]: experts}, options, bias=bias)
        self._place = place_of(name)
        self._chosen, self._renormalised, self._scale = chosen, renormalised, scale

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, hidden_size) -> weights, float32, and numbers of experts, (tokens, chosen)."""
        shares = self._scores(x).softmax(dim=-1, dtype=torch.float32)
        weights, chosen = shares.topk(self._chosen, dim=-1)
        if self._renormalised:
            weights.div_(weights.sum(dim=-1, keepdim=True))
        return weights if self._scale == 1 else weights.mul_(self._scale), chosen

    def linears(self) -> Iterator[tuple[str, Linear]]:
        yield self._place, self._scores

    def others(self) -> Iterator[tuple[str, Tensor]]:
        """Weights that are no product's."""
        yield from ()


class ScaledRouter(ExpertRouter):
    """An `ExpertRouter` that norms its input and multiplies it by weights / sqrt(hidden_size), and
    what it gives by a weight of each expert (Gemma 4).
    """

    def __init__(
        self,
        hidden_size: int,
        experts: int,
        options: TensorOptions,
        *,
        name: str,
        chosen: int,
        eps: float,
    ) -> None:
        super().__init__(hidden_size, experts, options, name=name, chosen=chosen, renormalised=True)
        self._weight, self._eps = options.empty(hidden_size), eps
        self._of_expert = options.empty(experts)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `ExpertRouter`."""
        size = self._weight.shape
        normed = functional.rms_norm(x, size, None, self._eps)
        weights, chosen = super().__call__(normed.mul_(self._weight).mul_(size[0] ** -0.5))
        return weights.mul_(self._of_expert[chosen]), chosen

    def others(self) -> Iterator[tuple[str, Tensor]]:
        yield f"{self._place}scale", self._weight
        yield f"{self._place}per_expert_scale", self._of_expert


class SharedExpert:
    """An MLP for all tokens, weighted by the sigmoid of a gate."""

    def __init__(self, mlp: MLP, hidden_size: int, options: TensorOptions, *, gate: str) -> None:
        self._mlp = mlp
        self._gate = Linear(hidden_size, {gate: 1}, options, bias=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self._mlp(x).mul_(sigmoid(self._gate(x)))

    def linears(self) -> Iterator[tuple[str, Linear]]:
        yield from self._mlp.linears()
        yield "", self._gate


class LatentSpace:
    """Products around all experts of a layer: what they take has fewer numbers (Nemotron 3)."""

    def __init__(self, hidden_size: int, size: int, options: TensorOptions) -> None:
        self.down = Linear(hidden_size, {"fc1_latent_proj": size}, options, bias=False)
        self.up = Linear(size, {"fc2_latent_proj": hidden_size}, options, bias=False)


class ExpertMLP:
    """The sum of the chosen experts' results, weighted, and of a shared one's, if there is one.
    weighs_inputs: weights are for what experts are given, not for their results. latent: around
    those that are chosen.
    """

    is_compiled = False

    def __init__(
        self,
        router: ExpertRouter | GroupedRouter,
        experts: Sequence[MLP],
        shared: SharedExpert | MLP | None = None,
        *,
        weighs_inputs: bool = False,
        latent: LatentSpace | None = None,
    ) -> None:
        self._router, self._experts, self._shared = router, experts, shared
        self._weighs_inputs, self._latent = weighs_inputs, latent

    def __call__(
        self,
        x: Tensor,
        _gated: Tensor | None = None,
        _out: Tensor | None = None,
        multiply: Multiply = Linear.__call__,  # noqa: ARG002 - experts have no adapters
        *,
        routed: Tensor | None = None,
    ) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size), new. routed: what the router is given in
        place of x.
        """
        weights, chosen = self._router(x if routed is None else routed)
        of_pair = chosen.flatten()
        order = of_pair.argsort(stable=True)
        tokens = order // chosen.shape[1]
        counts = of_pair.new_zeros(len(self._experts))
        counts.scatter_add_(0, of_pair, torch.ones_like(of_pair))
        given = x if self._latent is None else self._latent.down(x)
        taken, weights = given.index_select(0, tokens), weights.view(-1, 1).index_select(0, order)
        if self._weighs_inputs:
            taken.mul_(weights)
        if self._joined is None:
            made = self._by_counts(counts.tolist(), taken)
        else:
            starts = functional.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
            made = self._of_all(self._joined, Shared(starts, of_pair[order]), taken)
        if not self._weighs_inputs:
            made.mul_(weights)
        if self._latent is not None:
            made = self._latent.up(torch.zeros_like(given).index_add_(0, tokens, made))
            return made if self._shared is None else made.add_(self._shared(x))
        total = torch.zeros_like(x) if self._shared is None else self._shared(x)
        return total.index_add_(0, tokens, made)

    @property
    def by_host(self) -> bool:
        """Whether the host has to know how many tokens chose which expert."""
        return self._joined is None

    @cached_property
    def _joined(self) -> tuple[GpuProduct, GpuProduct] | None:
        """The products of all experts on a GPU, once they have their weights; None: the host's."""
        if self._experts[0].down.weight.device.type == "cpu":
            return None
        first = Linear.joined([mlp.gate_up for mlp in self._experts])
        second = Linear.joined([mlp.down for mlp in self._experts])
        if first is None or second is None:
            return None
        for mlp in self._experts:
            mlp.gate_up.lie_in(first)
            mlp.down.lie_in(second)
        return first, second

    def _of_all(
        self, products: tuple[GpuProduct, GpuProduct], shared: Shared, taken: Tensor
    ) -> Tensor:
        """Compute experts for their rows, on a GPU."""
        first, second = products
        mlp, made = self._experts[0], first(taken, shared)
        gate = mlp.gate_up.gate
        return second(mlp.between(made if gate is None else gate(made)), shared)

    def _by_counts(self, counts: Sequence[int], taken: Tensor) -> Tensor:
        """Compute those experts that have rows."""
        pairs = zip(self._experts, counts, strict=True)
        parts = {expert: count for expert, count in pairs if count}
        first = _products({mlp.gate_up: n for mlp, n in parts.items()}, taken)
        between = self._experts[0].between(first)
        return _products({mlp.down: n for mlp, n in parts.items()}, between)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        yield from self._router.linears()
        for expert in self._experts:
            yield from expert.linears()
        if self._shared is not None:
            yield from self._shared.linears()
        if self._latent is not None:
            yield from (("", self._latent.down), ("", self._latent.up))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from named(self.linears())
        yield from self._router.others()


class ExpertsBeside:
    """Experts beside a layer's MLP, on the same input: norms of what both give are added."""

    def __init__(self, experts: ExpertMLP, size: int, eps: float, options: TensorOptions) -> None:
        self._experts = experts
        self._before, self._after, self._after_mlp = (RMSNorm(size, eps, options) for _ in range(3))

    def __call__(self, hidden: Tensor, part: Tensor) -> Tensor:
        """hidden: before the MLP's norm. part: what the MLP gives."""
        made = self._experts(self._before(hidden), routed=hidden)
        return self._after_mlp(part).add_(self._after(made))

    @property
    def by_host(self) -> bool:
        """See `ExpertMLP`."""
        return self._experts.by_host

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        return self._experts.linears()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._experts.named_weights()
        yield "pre_feedforward_layernorm_2.weight", self._before.weight
        yield "post_feedforward_layernorm_1.weight", self._after_mlp.weight
        yield "post_feedforward_layernorm_2.weight", self._after.weight


def _products(linears: Mapping[Linear, int], x: Tensor) -> Tensor:
    """Each of its number of rows of x, one after the other: (rows, in) -> (rows, out)."""
    counts = list(linears.values())
    parts, products = x.split(counts), [linear.product for linear in linears]
    known = [product for product in products if product is not None]
    if len(known) < len(products):
        pairs = zip(linears, parts, strict=True)
        return torch.cat([linear(part) for linear, part in pairs])
    made = x.new_empty(x.shape[0], known[0].outputs, dtype=known[0].result)
    rooms = [product.room(count) for product, count in zip(known, counts, strict=True)]
    starts = itertools.accumulate(rooms, initial=team().scratch(sum(rooms)))
    calls = zip(known, parts, made.split(counts), starts, strict=False)
    Together()([product.prepared(*call) for product, *call in calls])
    return made
