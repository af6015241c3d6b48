"""Which way of computing attention a machine gets."""

from __future__ import annotations

from radixlm.attention.cpu_backend import SHARING, CpuBackend
from radixlm.attention.interface import Backend
from radixlm.attention.torch_backend import TorchBackend
from radixlm.kernels.openmp import team
from radixlm.memory.kv_pool import KVPool


def make_backend(pool: KVPool, n_heads: int) -> Backend:
    """The CPU's own where it has all of its parts for pools of this type, else torch's.

    n_heads: of queries.
    """
    if pool.device.type == "cpu" and pool.dtype in SHARING and team().is_whole:
        return CpuBackend(pool, n_heads)
    return TorchBackend(pool, n_heads)
