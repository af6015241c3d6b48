"""Layers with heads of several shapes, each with a backend of its own."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from radixlm.attention.shaped import of_shapes
from radixlm.attention.torch_backend import LEAST_VIEW
from radixlm.memory.pools import KVPool, LayerShape
from tests.tensor.attention_cases import BACKENDS


def test_no_run_of_slots_is_read_apart_where_one_backend_reads_stretches() -> None:
    """Torch reads long runs in place and all others together: the latter are no one stretch of a
    context, which is what kernels read.
    """
    shapes = LayerShape(2, 16), LayerShape(2, 32)
    pool = KVPool(2, 100, 2, 16, torch.float32, shapes=shapes)

    def made(small: str) -> int:
        def make(its: KVPool, *, windows: Sequence[int | None]) -> object:
            return BACKENDS[small if its.head_dim == 16 else "torch"](its, 6, windows=windows)

        return of_shapes(pool, (), make).sharing.least_view

    assert made("torch") == LEAST_VIEW
    assert made("cpu") == sys.maxsize
