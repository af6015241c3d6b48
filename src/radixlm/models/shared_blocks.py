"""Blocks of attention and an MLP whose weights several layers with states have together (Zamba)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.layers.linear import Linear, RMSNorm
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import named
from radixlm.layers.rotary import Rotation
from radixlm.models.layer_parts import plain_mlp
from radixlm.models.model_config import ModelConfig
from radixlm.products.compiled import TensorOptions


class BlockAdapter:
    """A layer's own addition to products of one input: up(down(x)) for each."""

    def __init__(
        self, inputs: int, parts: Mapping[str, int], rank: int, options: TensorOptions
    ) -> None:
        self._rank, downs = rank, {f"{name}_down": rank for name in parts}
        self._down = Linear(inputs, downs, options, bias=False)
        self._ups = [
            Linear(rank, {f"{name}_up": size}, options, bias=False) for name, size in parts.items()
        ]

    def __call__(self, x: Tensor, multiply: Multiply) -> Tensor:
        """(tokens, inputs) -> (tokens, sum of the parts)."""
        inner = multiply(self._down, x, None).split(self._rank, dim=1)
        made = [
            multiply(up, its.contiguous(), None) for up, its in zip(self._ups, inner, strict=True)
        ]
        return torch.cat(made, dim=1)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        yield from (("adapters.", linear) for linear in (self._down, *self._ups))


class SharedBlock:
    """The weights that layers have together. A block's input is as wide as two tokens."""

    def __init__(self, config: ModelConfig, options: TensorOptions) -> None:
        traits, hidden, eps = config.traits, config.hidden_size, config.norm_eps
        q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        self.sizes = dict(zip("qkv", (q, kv, kv), strict=True))
        self.norm = RMSNorm(2 * hidden, eps, options)
        parts = dict(zip(traits.qkv, self.sizes.values(), strict=True))
        self.qkv = Linear(2 * hidden, parts, options, bias=False)
        self.output = Linear(q, {traits.output: hidden}, options, bias=False)
        self.mlp_norm = RMSNorm(hidden, eps, options)
        self.mlp = plain_mlp(config, options)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        yield from (("shared.self_attn.", linear) for linear in (self.qkv, self.output))
        for place, linear in self.mlp.linears():
            yield f"shared.feed_forward.{place}", linear

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from named(self.linears())
        yield "shared.input_layernorm.weight", self.norm.weight
        yield "shared.pre_ff_layernorm.weight", self.mlp_norm.weight


class BlockUse:
    """A layer's use of a block, whose keys and values are its own. first: of those that use it, by
    which its weights are known.
    """

    def __init__(
        self,
        block: SharedBlock,
        config: ModelConfig,
        layer: int,
        options: TensorOptions,
        *,
        first: bool,
    ) -> None:
        self._block, self._layer, self._first = block, layer, first
        shared, hidden = config.traits.shared, config.hidden_size
        self._of_qkv = self._of_mlp = None
        if shared is not None and shared.rank:
            gate_up = {"gate_up": 2 * config.intermediate_size}
            self._of_mlp = BlockAdapter(hidden, gate_up, shared.rank, options)
            if shared.in_attention:
                self._of_qkv = BlockAdapter(2 * hidden, block.sizes, shared.rank, options)
        self._linear = Linear(hidden, {"linear": hidden}, options, bias=False)

    def __call__(
        self,
        hidden: Tensor,
        given: Tensor,
        rotation: Rotation,
        attend: Attend,
        multiply: Multiply,
    ) -> Tensor:
        """(tokens, hidden_size), and the same of embeddings -> the same shape, new."""
        block = self._block
        x = block.norm(torch.cat((hidden, given), dim=1))
        qkv = multiply(block.qkv, x, None)
        if self._of_qkv is not None:
            qkv.add_(self._of_qkv(x, multiply))
        answers = attend(self._layer, qkv, rotation, None, None)
        x = block.mlp_norm(multiply(block.output, answers, None))
        made = multiply(block.mlp.gate_up, x, None)
        if self._of_mlp is not None:
            made.add_(self._of_mlp(x, multiply))
        made = multiply(block.mlp.down, block.mlp.between(made), None)
        return multiply(self._linear, made, None)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`; those of the block once."""
        if self._first:
            yield from self._block.linears()
        yield from self._own()

    def _own(self) -> Iterator[tuple[str, Linear]]:
        for adapter in (self._of_qkv, self._of_mlp):
            if adapter is not None:
                yield from adapter.linears()
        yield "", self._linear

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        if self._first:
            yield from self._block.named_weights()
        yield from named(self._own())


def block_uses(config: ModelConfig, options: TensorOptions) -> list[BlockUse | None]:
    """Make each layer's use of a block, the blocks in turn; None: it uses none."""
    uses: list[BlockUse | None] = [None] * config.n_layers
    shared = config.traits.shared
    if shared is None:
        return uses
    users = [layer for layer, mixer in enumerate(config.mixers) if mixer == "both"]
    blocks = [SharedBlock(config, options) for _ in users[: shared.number]]
    for index, layer in enumerate(users):
        block, first = blocks[index % shared.number], index < shared.number
        uses[layer] = BlockUse(block, config, layer, options, first=first)
    return uses
