"""Layers of a model of which each rank has a part (Shoeybi et al., 2019, Megatron-LM).

rank              0                    1
q, k, v           heads 0, 1           heads 2, 3      each computes all of a token's rows
output            + inputs 0, 1        + inputs 2, 3   each has a summand: reduce
gate, up          0 .. half            half .. all
down              + 0 .. half          + half .. all   each has a summand: reduce
embedding, head   tokens 0 .. half     half .. all     reduce; gather to rank 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.linear import TokenEmbedding
from radixlm.layers.norms import RowNorm
from radixlm.products.compiled import TensorOptions


class Split(NamedTuple):
    """The part of a model that this process has, of how many, and how the parts come together.

    vocab_size: tokens of all ranks. reduce: a tensor of which every rank has one becomes the sum of
    all, in place. gather: rows by own columns, and how many columns each rank has, become rows by
    all columns in rank 0; elsewhere they stay.
    """

    rank: int
    size: int
    vocab_size: int
    reduce: Callable[[Tensor], None]
    gather: Callable[[Tensor, Sequence[int]], Tensor]

    @property
    def widths(self) -> list[int]:
        """How many tokens of the vocabulary each rank has."""
        stretches = (stretch(self.vocab_size, rank, self.size) for rank in range(self.size))
        return [stop - start for start, stop in stretches]


def stretch(whole: int, rank: int, size: int) -> tuple[int, int]:
    """A rank's part of `whole`: none is larger than another by more than one.

    >>> [stretch(7, rank, 3) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """
    return whole * rank // size, whole * (rank + 1) // size


class SplitEmbedding(TokenEmbedding):
    """Rows of this rank's tokens; those of others are zeros before all are added, so bits are as in
    one whole.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, options: TensorOptions, split: Split
    ) -> None:
        """vocab_size: of this rank."""
        super().__init__(vocab_size, hidden_size, options)
        self._first = stretch(split.vocab_size, split.rank, split.size)[0]
        self._reduce = split.reduce

    def __call__(self, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        own = token_ids - self._first
        others = (own < 0) | (own >= self.vocab_size)
        rows = super().__call__(own.masked_fill_(others, 0), out)
        rows.masked_fill_(others.unsqueeze(1), 0)
        self._reduce(rows)
        return rows


class SplitRowNorm(RowNorm):
    """RMSNorm over the heads of all ranks, of which this one has some."""

    def __init__(
        self,
        sizes: tuple[int, int],
        eps: float,
        options: TensorOptions,
        names: Sequence[str],
        split: Split,
    ) -> None:
        super().__init__(sizes, eps, options, names)
        self._reduce = split.reduce

    def __call__(self, qkv: Tensor) -> None:
        parts = self.parts(qkv)
        # The last row is how many numbers are in a sum: heads of keys may be in several ranks.
        sums = torch.empty(qkv.shape[0] + 1, 2, dtype=torch.float32, device=qkv.device)
        for place, (part, weight) in enumerate(parts):
            sums[:-1, place] = part.float().square().sum(1)
            sums[-1, place] = weight.numel()
        self._reduce(sums)
        factors = (sums[:-1] / sums[-1]).add_(self.eps).rsqrt_()
        for place, (part, weight) in enumerate(parts):
            part.copy_((part.float() * factors[:, place, None]).to(part.dtype) * weight)
