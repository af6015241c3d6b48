"""Attention of one token of each row after the other, planned once: what a draft head reads while
it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixlm.attention.backends import CpuAttention
from radixlm.attention.direct import make_direct_kernel, scratch_bytes
from radixlm.attention.place import make_place_kernel
from radixlm.attention.reads import LENGTH, MORE_SLOTS, ContextRead, rows_of
from radixlm.attention.tile_layout import STRIP
from radixlm.kernels.code_dots import has_code_dots
from radixlm.kernels.openmp import Worker, team
from radixlm.memory.pools import KVPool


class GrowingContexts:
    """Kernels for the contexts of a pool's rows that grow by a token at a time."""

    def __init__(self, pool: KVPool, n_heads: int) -> None:
        bfloat16 = pool.dtype == torch.bfloat16
        self._pool, self._n_heads = pool, n_heads
        kinds = {"bfloat16": bfloat16, "coded": pool.coded}
        self._place = make_place_kernel(pool.head_dim, **kinds)
        self._direct = make_direct_kernel(n_heads // pool.n_kv_heads, pool.head_dim, **kinds)
        self._scratch = scratch_bytes(n_heads, pool.head_dim)

    @staticmethod
    def known(pool: KVPool, n_heads: int) -> bool:
        """Whether there are such kernels here."""
        types_known = pool.dtype in (torch.float32, torch.bfloat16)
        here = pool.device.type == "cpu" and types_known and team().is_whole
        few = n_heads // pool.n_kv_heads < STRIP
        return here and few and not pool.latent and (not pool.coded or has_code_dots(pool.head_dim))

    def begin(self, contexts: Sequence[npt.NDArray[np.int32]], tokens: int) -> GrowingReads:
        """contexts: of each row the slots that the last of its tokens reads, its own too, the last
        one. tokens: of each row.
        """
        listed: list[npt.NDArray[np.int32]] = []
        reads, at = [], 0
        for row, slots in enumerate(contexts):
            size = len(slots)
            listed += slots, slots[-1:].repeat(MORE_SLOTS)
            first = size - tokens
            reads.append(ContextRead(row, 1, at, first, first, 1))
            at += size + MORE_SLOTS
        numbers, rows = np.concatenate(listed), rows_of(reads)
        own = np.stack([slots[-tokens:] for slots in contexts], axis=1).astype(np.int64)
        placing = Worker(self._place, rows=len(contexts), heads=self._n_heads, slots=0)
        reading = Worker(
            self._direct,
            items=len(contexts),
            key_heads=self._pool.n_kv_heads,
            slots=numbers.ctypes.data,
            reads=rows.ctypes.data,
            scratch=team().scratch(team().size * self._scratch),
        )
        memory = numbers, rows, own
        attend = CpuAttention(
            self._pool, self._n_heads, placing, [reading], 0, None, team().size, memory
        )
        return GrowingReads(attend, placing, rows, own)


class GrowingReads:
    """The attention of each step, one after the other. own: (steps, rows) slots of new tokens."""

    def __init__(
        self,
        attend: CpuAttention,
        placing: Worker,
        reads: npt.NDArray[np.int64],
        own: npt.NDArray[np.int64],
    ) -> None:
        self._attend, self._placing = attend, placing
        self._reads, self._own, self._steps = reads, own, iter(own)

    def next(self) -> CpuAttention:
        """Go on by a token of each row; what this returned before is over."""
        self._reads[:, LENGTH] += 1
        self._placing.arguments.slots = next(self._steps).ctypes.data
        return self._attend
