"""What a model asks of attention: one call per layer; and which backend a machine gets."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from radixlm.attention.cpu_backend import SHARING, CpuBackend
from radixlm.attention.plan import AttentionPlan, Sharing
from radixlm.attention.torch_backend import TorchBackend
from radixlm.kernels.openmp import team
from radixlm.memory.pools import KVPool


class Attend(Protocol):
    """Attention of one step's new tokens over everything their rows have in the pool.

    layer: index of the decoder layer, from 0.
    q: (tokens, n_heads, head_dim), rotary applied.
    k, v: (tokens, n_kv_heads, head_dim) of the new tokens, k with rotary applied; they are written
        to the pool at this step's slots before anything is read.

    All three may be strided over tokens; heads and head_dim are contiguous. Scores are scaled by
    1 / sqrt(head_dim). Returns (tokens, n_heads, head_dim) in the type of q.
    """

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor: ...


class Backend(Protocol):
    """A way to compute attention over one pool, made once.

    sharing, group_tokens: what pays, for `make_plan`.
    """

    sharing: Sharing
    group_tokens: int

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor) -> Attend:
        """One step's attention.

        table: (rows, context) int32, the request table with this step applied.
        slots: (tokens,) int64, where the step's new tokens go.
        """
        ...


def make_backend(pool: KVPool, n_heads: int) -> Backend:
    """The CPU's own where all of its parts know pools of this type, else torch's.

    n_heads: of queries.
    """
    if pool.device.type == "cpu" and pool.dtype in SHARING and team().is_whole:
        return CpuBackend(pool, n_heads)
    return TorchBackend(pool, n_heads)
