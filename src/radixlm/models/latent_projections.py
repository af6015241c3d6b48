"""The projections around attention over latents: queries, perhaps by latents of their own, and a
token's row, which is kept as it is (DeepSeek-V2, 2024).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.few_tokens import ANYWHERE, StepBuffers
from radixlm.layers.linear import Linear, RMSNorm
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import sigmoid
from radixlm.layers.norms import LayerNorm
from radixlm.layers.rotary import Rotation
from radixlm.models.model_config import ModelConfig
from radixlm.products.compiled import TensorOptions

# Of the latents' norms, whatever the config says of others.
_EPS = 1e-6


class LatentProjections:
    """The projections of a model with `latents`, in place of `SelfAttention`."""

    is_compiled = False

    def __init__(self, config: ModelConfig, layer: int, options: TensorOptions) -> None:
        traits, hidden, heads = config.traits, config.hidden_size, config.n_heads
        self.layer = layer
        self._sizes = sizes = _sizes_of(config)
        queries = {"q_a_proj": sizes.queries} if sizes.queries else {"q_proj": heads * sizes.key}
        parts = {**queries, "kv_a_proj_with_mqa": sizes.row}
        self._width, width = heads * sizes.key, heads * sizes.values
        self._head_gates = heads if traits.head_gates else 0
        self.choosing: Linear | None = None
        self.index_norm: LayerNorm | None = None
        index = traits.indexer
        if index is not None and index.layers[layer]:
            self._index_heads = index.heads
            of_queries, key, weights = index.parts()
            parts |= {"indexer.wk": key, "indexer.weights_proj": weights}
            wide = {"indexer.wq_b": of_queries}
            self.choosing = Linear(sizes.queries, wide, options, bias=False)
            self.index_norm = LayerNorm(key, _EPS, options, bias=True)
        if traits.head_gates:
            parts[traits.head_gates] = heads
        self.down = Linear(hidden, parts, options, bias=traits.qkv_bias)
        self.up: Linear | None = None
        if sizes.queries:
            self.query_norm = RMSNorm(sizes.queries, _EPS, options)
            wide = {"q_b_proj": self._width + (width if sizes.gated else 0)}
            self.up = Linear((1 + sizes.gated) * sizes.queries, wide, options, bias=False)
        self.norm = RMSNorm(sizes.rank, _EPS, options)
        scale = sizes.key**-0.5 * config.rope.score_factor**2
        self.expansion = Expansion(sizes, heads, scale, options)
        self.output = Linear(width, {"o_proj": hidden}, options, bias=traits.output_bias)

    def __call__(
        self,
        x: Tensor,
        rotation: Rotation,
        attend: Attend,
        at: StepBuffers = ANYWHERE,
        multiply: Multiply = Linear.__call__,
    ) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size). at, multiply: see `SelfAttention`."""
        sizes = self._sizes
        made = multiply(self.down, x, None)
        made, head_gates = made.tensor_split((made.shape[1] - self._head_gates,), dim=1)
        first, *_ = self.down.parts.values()
        ends = first, first + sizes.rank, first + sizes.row
        queries, latent, turned, of_index = made.tensor_split(ends, dim=1)
        normed = queries
        if self.up is not None:
            normed = self.query_norm(queries.contiguous())
            given = torch.cat((normed, queries), dim=1) if sizes.gated else normed
            queries = multiply(self.up, given, None)
        queries, gates = queries.tensor_split((self._width,), dim=1)
        parts = [queries, self.norm(latent.contiguous()), turned]
        if self.choosing is not None and self.index_norm is not None:
            key, weights = of_index.tensor_split((of_index.shape[1] - self._index_heads,), dim=1)
            parts += [multiply(self.choosing, normed, None), self.index_norm(key), weights]
        answers = attend(self.layer, torch.cat(parts, dim=1), rotation, None)
        if sizes.gated:
            answers = answers * sigmoid(gates)
        if self._head_gates:
            answers = answers * sigmoid(head_gates).repeat_interleave(sizes.values, dim=1)
        return multiply(self.output, answers, at.part)

    def linears(self) -> list[Linear]:
        """The projections in the order in which they are computed."""
        between = [linear for linear in (self.up, self.choosing) if linear is not None]
        return [self.down, *between, self.output]

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for linear in self.linears():
            yield from linear.named_weights()
        if self.up is not None:
            yield "q_a_layernorm.weight", self.query_norm.weight
        yield "kv_a_layernorm.weight", self.norm.weight
        if self.index_norm is not None:
            for name, weight in self.index_norm.named_weights():
                yield f"indexer.k_norm.{name}", weight
        yield "kv_b_proj.weight", self.expansion.weight


def _sizes_of(config: ModelConfig) -> LatentSizes:
    if config.traits.latents is None:
        raise ValueError(f"{config.model_type} has no latents")
    return config.traits.latents
