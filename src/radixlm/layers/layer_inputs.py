"""Embeddings of their own that tokens have for each layer, added at its end (Gemma 3n and 4)."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from radixlm.layers.linear import Linear, RMSNorm, TokenEmbedding
from radixlm.layers.mlps import ACTIVATIONS, named
from radixlm.products.compiled import TensorOptions


class LayerInputs:
    """The inputs of all layers: the token's row of a table, and its embedding's projection.

    sizes: of the vocabulary, of the embedding, how many layers there are, and the size of an input.
    """

    def __init__(
        self, sizes: tuple[int, int, int, int], eps: float, options: TensorOptions
    ) -> None:
        vocab, hidden, self._layers, self._size = sizes
        width = self._layers * self._size
        self.table = TokenEmbedding(vocab, width, options)
        parts = {"per_layer_model_projection": width}
        self._projection = Linear(hidden, parts, options, bias=False)
        self._norm = RMSNorm(self._size, eps, options)

    def __call__(self, token_ids: Tensor, embedded: Tensor) -> Tensor:
        """(tokens,) int64, (tokens, hidden) -> (layers, tokens, size)."""
        projected = self._projection(embedded).mul_(embedded.shape[1] ** -0.5)
        made = self._norm(projected.view(-1, self._size)).view_as(projected)
        made.add_(self.table(token_ids), alpha=self._size**0.5).mul_(0.5**0.5)
        return made.view(-1, self._layers, self._size).transpose(0, 1).contiguous()

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        yield "", self._projection

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from named(self.linears())
        for name, weight in self.table.named_weights():
            yield f"embed_tokens_per_layer.{name}", weight
        yield "per_layer_projection_norm.weight", self._norm.weight


class LayerInput:
    """A layer's use of its input: norm(project(act(gate(x)) * input))."""

    def __init__(
        self, hidden: int, size: int, activation: str, eps: float, options: TensorOptions
    ) -> None:
        self._gate = Linear(hidden, {"per_layer_input_gate": size}, options, bias=False)
        self._projection = Linear(size, {"per_layer_projection": hidden}, options, bias=False)
        self._norm, self._act = RMSNorm(hidden, eps, options), ACTIVATIONS[activation]

    def __call__(self, x: Tensor, given: Tensor) -> Tensor:
        """(tokens, hidden), (tokens, size) -> (tokens, hidden), new."""
        return self._norm(self._projection(self._act(self._gate(x)).mul_(given)))

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `MLP`."""
        yield from (("", self._gate), ("", self._projection))

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from named(self.linears())
        yield "post_per_layer_input_norm.weight", self._norm.weight
