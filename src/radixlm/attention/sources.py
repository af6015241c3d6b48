"""Where a step's keys and values are read, and the queries that meet them, for any backend."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from radixlm.attention.sharing import SharedRead
from radixlm.core.batch import Extent
from radixlm.memory.kv_pool import KVPool

# A run of slots of a shared node this long is read in place, shorter ones are gathered together.
LEAST_VIEW = 4096

# A run of the pool (a view), or a list of slots (a gather).
Source = Extent | Tensor


class Sources:
    """Reads a pool at the sources of one step, one after the other."""

    def __init__(self, pool: KVPool, sources: Iterable[Source]) -> None:
        self._pool = pool
        gathered = max((s.numel() for s in sources if isinstance(s, Tensor)), default=0)
        shape = (gathered, pool.n_kv_heads, pool.head_dim)
        # Written anew in each layer: fresh memory per gather costs more in page faults than it.
        self._scratch = (
            torch.empty(shape, dtype=pool.dtype, device=pool.device),
            torch.empty(shape, dtype=pool.dtype, device=pool.device),
        )

    def read(self, layer: int, source: Source) -> tuple[Tensor, Tensor]:
        """Keys and values, (tokens, n_kv_heads, head_dim) each; a gather's hold till the next."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        if isinstance(source, Extent):
            run = slice(*source)
            return keys[run], values[run]
        into_keys, into_values = (buffer[: source.numel()] for buffer in self._scratch)
        torch.index_select(keys, 0, source, out=into_keys)
        torch.index_select(values, 0, source, out=into_values)
        return into_keys, into_values


def shared_source(read: SharedRead, pool: KVPool) -> Source:
    """A view when it is one run of slots, else a gather."""
    if len(read.extents) == 1:
        return read.extents[0]
    return torch.cat([torch.arange(*extent) for extent in read.extents]).to(pool.device)


def stacked_queries(q: Tensor, n_kv_heads: int) -> Tensor:
    """Queries that share a key head stand one below the other, those of all tokens, scaled:

    q     (n_kv_heads, tokens, queries of a key head, head_dim), from (tokens, n_heads, head_dim)
    keys  (n_kv_heads, tokens of the context, head_dim)
    """
    tokens, n_heads, head_dim = q.shape
    queries = q.new_empty((n_kv_heads, tokens, n_heads // n_kv_heads, head_dim))
    by_key = q.view(tokens, n_kv_heads, n_heads // n_kv_heads, head_dim).transpose(0, 1)
    return torch.mul(by_key, head_dim**-0.5, out=queries)
