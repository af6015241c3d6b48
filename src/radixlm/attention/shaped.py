"""Attention over a pool whose layers have heads of different sizes, or numbers of them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from radixlm.attention.attend import Attend, AttentionBackend
from radixlm.attention.plan import AttentionPlan, Sharing
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import Sending


class _Make(Protocol):
    def __call__(self, pool: KVPool, *, windows: Sequence[int | None]) -> AttentionBackend: ...


def of_shapes(pool: KVPool, windows: Sequence[int | None], make: _Make) -> AttentionBackend:
    """Make a backend for each shape of layers with heads. windows: see `by_layer`."""
    heads = {shape[:2] for shape in pool.shapes if shape.n_kv_heads}
    if not heads:
        return NoAttention()
    if len(heads) == 1:
        return make(pool, windows=windows)
    return ShapedBackend(pool, windows, make)


class NoAttention:
    """The backend of a pool that keeps nothing (an `AttentionBackend`): it is never asked."""

    sharing = Sharing(1, sys.maxsize, sys.maxsize, sys.maxsize, sys.maxsize)

    def prepare(self, *_: object) -> Attend:
        """See `AttentionBackend`."""
        return _never


def _never(layer: int, *_: object, **__: object) -> Tensor:
    raise ValueError(f"layer {layer} has no attention")


class ShapedBackend:
    """A backend for each shape of a pool's layers (an `AttentionBackend`); what pays is as the
    largest heads have it, and runs of slots are read apart where all backends do that.
    """

    def __init__(self, pool: KVPool, windows: Sequence[int | None], make: _Make) -> None:
        heads = [shape[:2] for shape in pool.shapes]
        kinds = sorted(set(heads), key=lambda its: its[1])
        self._kinds = [kinds.index(each) for each in heads]
        self._backends = []
        for kind, its in enumerate(kinds):
            first = self._kinds.index(kind)
            # Nothing is prepared for windows that no layer of this shape has.
            own = [windows[n if k == kind else first] for n, k in enumerate(self._kinds) if windows]
            self._backends.append(make(pool.of(*its), windows=own))
        least_view = max(backend.sharing.least_view for backend in self._backends)
        self.sharing = self._backends[-1].sharing._replace(least_view=least_view)

    def prepare(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Attend:
        """See `AttentionBackend`."""
        made = [backend.prepare(plan, table, slots, staging) for backend in self._backends]
        return lambda layer, *given, **named: made[self._kinds[layer]](layer, *given, **named)
