"""Scores of an index: compiled, as their definition has it."""

from __future__ import annotations

import pytest
import torch

from radixlm.attention.index_scores import IndexScorer
from radixlm.layers.index_keys import IndexSizes
from radixlm.memory.pools import KVPool, LayerShape


# Whole vectors of heads and parts of one, strips of a few keys and tiles of many, the last cut.
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("heads", "size", "tokens", "context"),
    [(64, 128, 1, 1_000), (32, 128, 3, 480), (6, 12, 5, 481), (80, 64, 7, 7), (130, 6, 2, 959)],
)
def test_scores(dtype: torch.dtype, heads: int, size: int, tokens: int, context: int) -> None:
    shapes = [LayerShape(1, 8, None, size)]
    pool = KVPool(1, 1_100, 1, 8, dtype, latent=True, shapes=shapes)
    draw = torch.Generator().manual_seed(heads)
    keys = pool.index_keys[0]
    keys.copy_(torch.randn(keys.shape, generator=draw))
    slots = torch.randperm(1_100, generator=draw)[:context].int()
    queries = torch.randn(tokens, heads, size, generator=draw).to(dtype)
    weights = torch.randn(tokens, heads, generator=draw).to(dtype)
    of_heads = torch.einsum("nhd,td->nht", queries.double(), keys[slots.long()].double())
    right = torch.einsum("nh,nht->nt", weights.double(), of_heads.relu())
    later = torch.ones(tokens, context, dtype=torch.bool).triu(context - tokens + 1)
    sizes = IndexSizes(heads, size, 1, False, (True,))
    found = IndexScorer(sizes, pool)(queries, weights, keys, slots)
    assert found.shape == (tokens, context)
    assert torch.equal(found.isneginf(), later)
    assert (found.double() - right)[~later].abs().max() <= 1e-5 * right.abs().max()
