"""Attention of many queries as plain matrix products, one key head after the other.

                 tokens
         +-------------------+
    q K' | scores -> softmax |  in place, in cache
         +-------------------+
    then  weights x V

On a CPU with oneDNN these products run at two to three times the rate of torch's flash operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.attention.flash import merge
from radixlm.attention.onednn import linear
from radixlm.attention.softmax import Softmax
from radixlm.attention.team import Team

# Scores of one product: 4 MiB of bfloat16, 8 of float32, and no more than that of scratch.
_SCORES = 1 << 21
# Queries of one product: more are faster, as long as it need not be cut along the context.
_FEWEST_ROWS, MOST_ROWS = 256, 1024


class Block(NamedTuple):
    """Queries [first, stop) of a key head, which read the first `read` tokens of the context.

    step: 0 when they see all that they read; else how many neighbouring queries are of one token:
        the last ones see all, those before them one token less, and so on.
    """

    first: int
    stop: int
    read: int
    step: int = 0


def whole(queries: int, tokens: int) -> list[Block]:
    """All queries over all tokens."""
    rows = min(max(_SCORES // tokens, _FEWEST_ROWS), MOST_ROWS)
    starts = range(0, queries, rows)
    return [Block(first, min(first + rows, queries), tokens) for first in starts]


class Products:
    """scores: elements that one product may make."""

    def __init__(self, team: Team, dtype: torch.dtype, scores: int = _SCORES) -> None:
        self._softmax = Softmax(team, dtype)
        self._most = scores
        self._scratch = torch.empty(scores, dtype=dtype) if dtype == torch.bfloat16 else None

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        blocks: Sequence[Block],
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """Write what the blocks' queries read.

        q: (heads, queries, head_dim), already scaled; keys, values: (tokens, heads, head_dim).
        out: like q; lse, if it is wanted: (heads, queries) float32.
        """
        for head in range(q.shape[0]):
            its_keys, its_values = keys[:, head], values[:, head]
            if self._scratch is None:
                # oneDNN's float32 products want them so; strided ones fall out of it.
                its_keys, its_values = its_keys.contiguous(), its_values.contiguous()
            for block in blocks:
                rows = slice(block.first, block.stop)
                self._block(
                    q[head, rows],
                    its_keys,
                    its_values,
                    block,
                    out[head, rows],
                    None if lse is None else lse[head, rows],
                )

    def _block(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        block: Block,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """Of one head, from the last tokens, which not all queries see, to the first."""
        hidden = -(-q.shape[0] // block.step) if block.step else 1
        width = max(self._most // q.shape[0], hidden)
        if block.read <= width:
            part = slice(0, block.read)
            self._part(q, keys[part], values[part], block.step, out, lse)
            return
        step = block.step
        total = torch.zeros(q.shape, dtype=torch.float32)
        total_lse = torch.full(q.shape[:1], float("-inf"), dtype=torch.float32)
        for stop in range(block.read, 0, -width):
            part = slice(max(stop - width, 0), stop)
            its_lse = torch.empty(q.shape[:1], dtype=torch.float32)
            made = torch.empty_like(q)
            self._part(q, keys[part], values[part], step, made, its_lse)
            merge(total, total_lse, made, its_lse)
            step = 0
        out.copy_(total)
        if lse is not None:
            lse.copy_(total_lse)

    def _part(
        self, q: Tensor, keys: Tensor, values: Tensor, step: int, out: Tensor, lse: Tensor | None
    ) -> None:
        """One head's queries over some of its tokens, as one product and another."""
        if self._scratch is None:
            weights = linear(q, keys)
            self._softmax(weights, step, lse)
            out.copy_(linear(weights, values.t()))
            return
        weights = self._scratch[: q.shape[0] * keys.shape[0]].view(q.shape[0], keys.shape[0])
        torch.mm(q, keys.t(), out=weights)
        self._softmax(weights, step, lse)
        torch.mm(weights, values, out=out)
