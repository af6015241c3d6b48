"""Projections: plain frozen weights, fused where the same input meets several matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.core.errors import ModelError
from radixlm.layers import compiled, products
from radixlm.layers.compiled import TensorOptions


class Linear:
    """One matrix product for several projections of the same input, stacked by rows.

    parts: output size of each projection, by the name that the checkpoint gives it; a checkpoint's
        tensors are copied straight into the rows that `named_weights` shows.
    The memory is not initialised: the loader fills it, then `pack` may lay it out for the machine.
    """

    def __init__(
        self, in_features: int, parts: Mapping[str, int], options: TensorOptions, *, bias: bool
    ) -> None:
        self.parts = dict(parts)
        rows = sum(self.parts.values())
        self.weight = options.empty(rows, in_features)
        self.bias = options.empty(rows) if bias else None
        self._packed: products.PackedProduct | None = None
        self._result = options.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, in_features) -> (tokens, sum of the parts)."""
        if self._packed is not None:
            return self._packed(x)
        return functional.linear(x, self.weight, self.bias).to(self._result)

    def pack(self) -> None:
        """Replace the weight by one that is laid out for the machine, where there is code for it.
        From then on there are no named weights. Of a tied head a copy is packed: the embedding's
        rows are looked up, and reading the head unpacked takes several times as long as reading all
        of a small model's layers.
        """
        if self._packed is None and products.knows(self.weight):
            self._packed = products.PackedProduct(self.weight, self.bias, self._result)
            self.weight, self.bias = self.weight.new_empty(0), None

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Each part's `<name>.weight` and `<name>.bias`, as views of the stacked memory."""
        if self._packed is not None:
            raise ModelError("packed weights have no names any more")
        start = 0
        for name, size in self.parts.items():
            yield f"{name}.weight", self.weight[start : start + size]
            if self.bias is not None:
                yield f"{name}.bias", self.bias[start : start + size]
            start += size


class GatedMLP:
    """down(silu(gate(x)) * up(x)), with gate and up as one product."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, options: TensorOptions, *, bias: bool
    ) -> None:
        both = {"gate_proj": intermediate_size, "up_proj": intermediate_size}
        self.gate_up = Linear(hidden_size, both, options, bias=bias)
        self.down = Linear(intermediate_size, {"down_proj": hidden_size}, options, bias=bias)
        known = options.known(intermediate_size)
        self._compiled = compiled.Gate(options.dtype) if known else None

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        gate_up = self.gate_up(x)
        if self._compiled is not None:
            return self.down(self._compiled(gate_up))
        gate, up = gate_up.chunk(2, dim=-1)
        return self.down(functional.silu(gate).mul_(up))

    def pack(self) -> None:
        self.gate_up.pack()
        self.down.pack()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.gate_up.named_weights()
        yield from self.down.named_weights()


class TokenEmbedding:
    """A row per token of the vocabulary."""

    def __init__(self, vocab_size: int, hidden_size: int, options: TensorOptions) -> None:
        self.weight = options.empty(vocab_size, hidden_size)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """(tokens,) int64 -> (tokens, hidden_size), new memory."""
        return self.weight.index_select(0, token_ids)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


class LMHead(Linear):
    """Scores of every token of the vocabulary, float32; tied, its weight is the embedding's."""

    def __init__(self, embedding: TokenEmbedding, *, tied: bool) -> None:
        vocab, hidden = embedding.weight.shape
        options = TensorOptions(embedding.weight.dtype, embedding.weight.device)
        super().__init__(hidden, {} if tied else {"lm_head": vocab}, options, bias=False)
        if tied:
            self.weight = embedding.weight
        self._result = torch.float32
