"""Keys and values that are kept as latents (DeepSeek-V2, 2024): of a token and layer one short row,
from which a matrix makes each head's.

    a token's row   | latent, normed    | turned |      `rank` and `turned` numbers, for all heads
                      x up                             a head's key is `plain` numbers made of the
                    | key | value | key | value ...    latent, then the turned ones

A product may be taken either way round. Expanded: q . (up l). Absorbed: (q up) . l, by which all
heads read one row, and a head's answer is `up` of the rows' weighted sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.products.compiled import TensorOptions


class LatentSizes(NamedTuple):
    """See above. values: numbers of a head's value. queries: rank of queries' own latents; 0: they
    have none. gated: these give each head as many gates as values, too, whose sigmoid multiplies
    its answer; they meet the matrix normed and as they are, side by side.
    """

    rank: int
    turned: int
    plain: int
    values: int
    queries: int = 0
    gated: bool = False

    @property
    def row(self) -> int:
        """Numbers that are kept of a token."""
        return self.rank + self.turned

    @property
    def key(self) -> int:
        """Numbers of a head's query and key."""
        return self.plain + self.turned


class Expansion:
    """One layer's matrix: (heads x (plain + values), rank), of each head rows for its key, then for
    its value. On a CPU float32, whatever the model's type is: it is a hundredth of a model's
    weights, and processors that have no products of bfloat16 take ten times as long for them.

    scale: of scores.
    """

    def __init__(
        self, sizes: LatentSizes, n_heads: int, scale: float, options: TensorOptions
    ) -> None:
        self.sizes, self.n_heads, self.scale = sizes, n_heads, scale
        dtype = torch.float32 if options.device.type == "cpu" else options.dtype
        made = TensorOptions(dtype, options.device)
        self.weight = made.empty(n_heads * (sizes.plain + sizes.values), sizes.rank)
        heads = self.weight.view(n_heads, sizes.plain + sizes.values, sizes.rank)
        self._keys, self._values = heads.split_with_sizes((sizes.plain, sizes.values), dim=1)

    def absorbed(self, q: Tensor) -> Tensor:
        """(tokens, heads, plain) -> (tokens, heads, rank), of the weight's type."""
        by_head = q.to(self.weight.dtype).transpose(0, 1)
        return torch.bmm(by_head, self._keys).transpose(0, 1)

    def values_of(self, mixed: Tensor) -> Tensor:
        """Weighted sums of latents, (tokens, heads, rank) -> (tokens, heads, values), of the
        weight's type.
        """
        by_head = mixed.to(self.weight.dtype).transpose(0, 1)
        return torch.bmm(by_head, self._values.transpose(1, 2)).transpose(0, 1)

    def expanded(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, rank) -> what is made of keys, (tokens, heads, plain), and values,
        (tokens, heads, values), of the weight's type.
        """
        sizes = self.sizes
        made = torch.mm(latents.to(self.weight.dtype), self.weight.t())
        made = made.view(-1, self.n_heads, sizes.plain + sizes.values)
        keys, values = made.split_with_sizes((sizes.plain, sizes.values), dim=2)
        return keys, values
