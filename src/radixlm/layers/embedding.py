"""Token ids to vectors, and vectors back to one score per token."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional


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
    """Scores of every token of the vocabulary; tied, it reads the embedding's own memory."""

    def __init__(self, weight: Tensor, *, tied: bool) -> None:
        self.weight = weight
        self.tied = tied

    @classmethod
    def for_embedding(cls, embedding: TokenEmbedding, *, tied: bool) -> LMHead:
        return cls(embedding.weight if tied else torch.empty_like(embedding.weight), tied=tied)

    def __call__(self, x: Tensor) -> Tensor:
        """(n, hidden_size) -> (n, vocab_size), float32."""
        return functional.linear(x, self.weight).float()

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Nothing when tied: the embedding has it."""
        if not self.tied:
            yield "weight", self.weight
