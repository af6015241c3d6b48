"""Token ids to vectors, and vectors back to one score per token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.core.errors import ModelError
from radixlm.layers import products


class TokenEmbedding:
    """A row per token of the vocabulary."""

    def __init__(
        self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.weight = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device)

    def __call__(self, token_ids: Tensor) -> Tensor:
        """(tokens,) int64 -> (tokens, hidden_size), new memory."""
        return self.weight.index_select(0, token_ids)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "weight", self.weight


class LMHead:
    """Scores of every token of the vocabulary; tied, its weight is the embedding's."""

    def __init__(self, weight: Tensor, *, tied: bool) -> None:
        self.weight = weight
        self.tied = tied
        self._packed: products.PackedProduct | None = None

    @classmethod
    def for_embedding(cls, embedding: TokenEmbedding, *, tied: bool) -> LMHead:
        return cls(embedding.weight if tied else torch.empty_like(embedding.weight), tied=tied)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, hidden_size) -> (n, vocab_size), float32."""
        if self._packed is not None:
            return self._packed(x)
        return functional.linear(x, self.weight).float()

    def pack(self) -> None:
        """See Linear.pack. Of a tied head a copy is packed: the embedding's rows are looked up,
        which a packed one does not allow, and reading the head unpacked takes several times as
        long as reading all of a small model's layers.
        """
        if self._packed is None and products.knows(self.weight):
            self._packed = products.PackedProduct(self.weight, None, torch.float32)
            self.weight = self.weight.new_empty(0)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Nothing when tied: the embedding has it."""
        if self._packed is not None:
            raise ModelError("packed weights have no names any more")
        if not self.tied:
            yield "weight", self.weight
