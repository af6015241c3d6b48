"""The decoder that all architectures share: pre-norm layers of attention and a gated MLP."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.attention.backends import CpuAttention
from radixlm.layers.compiled import TensorOptions
from radixlm.layers.few_tokens import ANYWHERE, MOST_TOKENS, FewTokens, Places
from radixlm.layers.linear import (
    GatedMLP,
    Linear,
    LMHead,
    Quantize,
    QueryKeyNorm,
    RMSNorm,
    TokenEmbedding,
)
from radixlm.layers.rotary import Rotary, Rotation
from radixlm.layers.ways import Choose, Shape
from radixlm.models.model_config import ModelConfig

NamedWeights = Iterator[tuple[str, Tensor]]


class SelfAttention:
    """Projections around the attention of one layer."""

    def __init__(self, config: ModelConfig, layer: int, options: TensorOptions) -> None:
        self.layer = layer
        q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        traits, hidden = config.traits, config.hidden_size
        parts = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        self.qkv = Linear(hidden, parts, options, bias=traits.qkv_bias)
        self.norm = None
        if traits.qk_norm:
            eps = config.rms_norm_eps
            self.norm = QueryKeyNorm(config.n_heads, config.head_dim, eps, options)
        self.output = Linear(q, {"o_proj": hidden}, options, bias=traits.output_bias)

    def __call__(
        self, x: Tensor, rotation: Rotation, attend: Attend, at: Places = ANYWHERE
    ) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size). at: where it computes."""
        qkv = self.qkv(x, at.qkv)
        return self.output(attend(self.layer, qkv, rotation, self.norm), at.part)

    def named_weights(self) -> NamedWeights:
        yield from self.qkv.named_weights()
        yield from self.output.named_weights()
        if self.norm is not None:
            yield from self.norm.named_weights()


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, layer: int, options: TensorOptions) -> None:
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.attention_norm = RMSNorm(hidden, eps, options)
        self.attention = SelfAttention(config, layer, options)
        self.mlp_norm = RMSNorm(hidden, eps, options)
        self.mlp = GatedMLP(hidden, config.intermediate_size, options, bias=config.traits.mlp_bias)

    @property
    def is_compiled(self) -> bool:
        """Whether it is nothing but calls of workers, attention left out."""
        products = (self.attention.qkv, self.attention.output, self.mlp.gate_up, self.mlp.down)
        return all(each.is_compiled for each in (self.attention_norm, self.mlp_norm, *products))

    def __call__(
        self,
        hidden: Tensor,
        part: Tensor | None,
        rotation: Rotation,
        attend: Attend,
        at: Places = ANYWHERE,
    ) -> Tensor:
        """Take `part`, which the layer before computed, into `hidden` (tokens, hidden_size), in
        place; the same for attention's. Returns the MLP's part, for the next to take in: a norm
        adds on the way. at: where it computes, if it is compiled.
        """
        normed = self.attention_norm(hidden, part, at.normed)
        part = self.attention(normed, rotation, attend, at)
        return self.mlp(self.mlp_norm(hidden, part, at.normed), at.gated, at.part)

    def named_weights(self) -> NamedWeights:
        yield from _under("input_layernorm", self.attention_norm.named_weights())
        yield from _under("self_attn", self.attention.named_weights())
        yield from _under("post_attention_layernorm", self.mlp_norm.named_weights())
        yield from _under("mlp", self.mlp.named_weights())


class CausalLM:
    """A decoder with its head. The memory of its weights is allocated here and filled by a loader.

    dtype: type of weights and activations; norms and logits are float32 whatever it is.
    """

    def __init__(self, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._options = options = TensorOptions(dtype, device)
        hidden = config.hidden_size
        self.embedding = TokenEmbedding(config.vocab_size, hidden, options)
        self.rotary = Rotary(config.rope, config.head_dim, config.context_length, options)
        self.layers = [DecoderLayer(config, layer, options) for layer in range(config.n_layers)]
        self.norm = RMSNorm(hidden, config.rms_norm_eps, options)
        self.head = LMHead(self.embedding, tied=config.tie_word_embeddings)
        self._few_tokens: FewTokens | None = None

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, logit_rows: Tensor
    ) -> Tensor:
        """Compute one step's new tokens, whichever requests they belong to.

        token_ids, positions: (tokens,) int64; a position is below `config.context_length`.
        attend: called once per layer, in order.
        logit_rows: (n,) int64, the tokens whose next token is wanted.
        Returns (n, vocab_size) float32 logits.
        """
        few = self._few_tokens if token_ids.numel() <= MOST_TOKENS else None
        at = ANYWHERE if few is None else few.places(token_ids.numel())
        hidden = self.embedding(token_ids, at.hidden)
        rotation = self.rotary.at(positions, at.rotation)

        def through() -> Tensor | None:
            part: Tensor | None = None
            for layer in self.layers:
                part = layer(hidden, part, rotation, attend, at)
            return part

        if few is not None and isinstance(attend, CpuAttention):
            part = few.run(attend, at, through)
        else:
            part = through()
        last = None if part is None else part.index_select(0, logit_rows)
        return self.head(self.norm(hidden.index_select(0, logit_rows), last))

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None:
        """Lay the weights out for this machine, one matrix at a time. Once, after loading."""
        for _, linear in self.linears():
            linear.pack(choose, quantize)
        if all(layer.is_compiled for layer in self.layers):
            config, hidden = self.config, self.config.hidden_size
            heads, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
            gated = config.intermediate_size
            sizes = hidden, config.head_dim, hidden, heads + 2 * kv, heads, gated, hidden
            self._few_tokens = FewTokens(sizes, self._options)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """All products, in the order in which they are computed, and where their names begin."""
        for index, layer in enumerate(self.layers):
            place = f"model.layers.{index}."
            yield f"{place}self_attn.", layer.attention.qkv
            yield f"{place}self_attn.", layer.attention.output
            yield f"{place}mlp.", layer.mlp.gate_up
            yield f"{place}mlp.", layer.mlp.down
        yield "", self.head

    def weights(self) -> dict[str, Tensor]:
        """Every weight by its checkpoint name, as the (view of) memory to be filled."""
        layers = (
            _under(f"model.layers.{index}", layer.named_weights())
            for index, layer in enumerate(self.layers)
        )
        return dict(
            chain(
                _under("model.embed_tokens", self.embedding.named_weights()),
                *layers,
                _under("model.norm", self.norm.named_weights()),
                self.head.named_weights(),
            )
        )


def product_shapes(config: ModelConfig, dtype: str) -> list[Shape]:
    """Of a model's weights, each once; no memory is taken for them."""
    model = CausalLM(config, dtype=getattr(torch, dtype), device=torch.device("meta"))
    shapes = (
        Shape.of(linear.weight, linear.result, gated=linear.gate is not None)
        for _, linear in model.linears()
    )
    return list(dict.fromkeys(shapes))


def _under(prefix: str, weights: NamedWeights) -> NamedWeights:
    return ((f"{prefix}.{name}", tensor) for name, tensor in weights)
