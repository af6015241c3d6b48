"""Attention on NVIDIA GPUs, by kernels in Triton. Imported where these are to run, and not else."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Attend, by_layer
from radixlm.attention.latents import LatentBackend
from radixlm.attention.plan import AttentionPlan, Sharing
from radixlm.attention.reads import (
    TOKENS,
    ContextRead,
    Numbers,
    cut_evenly,
    in_blocks,
    newest,
    number_parts,
    rows_of,
)
from radixlm.kernels.gpu_attention import attend, merge
from radixlm.kernels.gpu_launch import Launch, aligned, power_of_two
from radixlm.kernels.gpu_place import place
from radixlm.layers.expansion import Expansion
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool
from radixlm.memory.staging import NoPlaceError, Sending

# Of parts of contexts, in float32: where tokens would have more, none is shared.
PARTS_BYTES = 512 << 20
# Parts that are merged at a time; heads that a program places.
_PARTS_AT_ONCE, _HEADS_AT_ONCE = 16, 8
# For which there is room where a step's memory is fixed: 88 MB for 256 tokens of 32 heads of 128.
PARTS_OF_A_TOKEN = 16
_HEADER = 8


class Tile(NamedTuple):
    """How reads are computed: queries and tokens of the context at a time; warps of a program, and
    stages of its pipeline. programs: of a multiprocessor at a time. least: of `tokens`, how many
    a piece of a context has at least.
    """

    queries: int
    tokens: int
    warps: int
    stages: int
    programs: int
    least: int


def tiles_for(
    queries: int, head_dim: int, dtype: torch.dtype, *, wgmma: bool, latent: bool = False
) -> tuple[Tile, Tile]:
    """Choose tiles for reads of few tokens and of many. queries: of a key head. wgmma: whether the
    GPU has it (Hopper). Others spill registers at 128 queries, as heads do that are filled up.
    Large heads have room for 32, as latents for 64, and none in float32.
    """
    fewest = max(16, power_of_two(queries))
    if head_dim > 256:
        if dtype == torch.float32:
            return (Tile(16, 16, 4, 2, 1, 2),) * 2
        some = Tile(32, 32, 8, 4 if latent else 3, 1, 2)
        if not latent:
            return Tile(16, 32, 4, 3, 2, 2) if fewest == 16 else some, some
        whole = queries == power_of_two(queries)  # else it divides by others, which takes registers
        many = Tile(64, 32 if wgmma and whole else 16, 8, 4, 1, 4)
        if fewest > 32:
            return many, many
        return Tile(16, 32, 4, 5, 2, 2) if fewest == 16 else some, many
    wide = head_dim > 128
    if dtype == torch.float32:  # its products are not the tensor cores' own
        few = Tile(fewest, 16 if wide else 32, 4, 2, 2, 2)
        return few, few
    few = Tile(fewest, 32, 4, 3, 2 if wide else 4, 2)
    if wgmma and not wide and head_dim == power_of_two(head_dim):
        # Slots are loaded before keys: of five stages three have keys and values on their way.
        return few, Tile(max(fewest, 128), 64, 8, 5, 1, 4)
    return few, Tile(max(fewest, 64), 32 if wide else 64, 8, 3, 1, 4)


class GpuBackend:
    """Attention by one kernel for all reads of a step, whatever they are, and one that merges.

    n_heads: of queries; windows: see `by_layer`; cap: of scores, 0: none. tiles: see `tiles_for`.
    values: of a pool of latents, how many numbers of each are its value.
    """

    def __init__(
        self,
        pool: KVPool,
        n_heads: int,
        *,
        windows: Sequence[int | None] = (),
        cap: float = 0.0,
        tiles: tuple[Tile, Tile] | None = None,
        values: int = 0,
    ) -> None:
        self.pool, self.n_heads, self.cap = pool, n_heads, cap
        self.values, queries = values or pool.head_dim, n_heads // pool.n_kv_heads
        self.place, self.attend, self.merge = map(Launch, (place, attend, merge))
        self._windows = windows
        # On the CPU it is Triton's interpreter that computes.
        self.processors, self.precision, wgmma = 3, "wide", True
        if pool.device.type == "cuda":
            gpu = torch.cuda.get_device_properties(pool.device)
            self.processors, wgmma = gpu.multi_processor_count, gpu.major == 9
            self.precision = "tf32x3" if pool.dtype == torch.float32 else "tf32"
        found = tiles_for(queries, pool.head_dim, pool.dtype, wgmma=wgmma, latent=pool.latent)
        self.tiles = tiles or found
        most = min(tile.queries for tile in self.tiles)
        # Heads that share a key head, and that a tile has of one token.
        self.group = next(n for n in range(queries, 0, -1) if n <= most and queries % n == 0)
        self.sharing = Sharing(
            # Rows with more fill tiles of their own.
            largest=max(64 // self.group, 1),
            fewest=1,
            # A part is written and read: as long as reading twice a group's tokens takes.
            shortest=max((4 if pool.latent else 2) * queries, 64),
            least_saved=(1 << 21) // (pool.n_kv_heads * pool.head_dim),
            least_view=sys.maxsize,  # slots are the table's: a read is one stretch of a context
        )

    def prepare(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Attend:
        """See `AttentionBackend`."""
        sending, apart = staging or Sending(table.device), self.pool.windows is not None
        make = partial(self._attention, table, slots, sending)
        return by_layer(plan, self._windows, make, apart=apart, fixed=sending.tokens > 0)

    def reading(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None
    ) -> GpuAttention:
        """See `LatentReader`."""
        return self._attention(table, slots, staging or Sending(table.device), plan, None, False)

    def _attention(
        self,
        table: Tensor,
        slots: Tensor,
        sending: Sending,
        plan: AttentionPlan,
        window: int | None,
        own: bool,
    ) -> GpuAttention:
        most = self._most_parts(sending.tokens)
        reads = self.reads(plan, table.stride(0), window)
        if reads.n_parts > most and plan.shared:
            reads = self.reads(plan.alone(), table.stride(0), window)
        if sending.tokens:
            reads = reads.fixed(most)
        places = self.pool.window_slots if own else None
        numbers = sending.put(reads.numbers, self._room(sending.tokens))
        return GpuAttention(self, reads, window or 0, (table, places, slots, numbers))

    def numbers(self, tokens: int) -> int:
        """See `RecordableBackend`."""
        return max(len({*self._windows}), 1) * (self._room(tokens) + 1)

    def _room(self, tokens: int) -> int:
        """The numbers of layers of one kind, where contexts have as many pieces as in a tree with
        a leaf for each token.
        """
        pieces = sum(2 * (tokens + self._wanted(tile)) for tile in self.tiles)
        fields = len(ContextRead._fields)
        return _HEADER + fields * pieces + 2 * tokens + 1 + self._most_parts(tokens)

    def _most_parts(self, tokens: int) -> int:
        most = PARTS_BYTES // (4 * self.n_heads * (self.values + 2))
        return min(PARTS_OF_A_TOKEN * (tokens + 64), most) if tokens else most

    def _wanted(self, tile: Tile) -> int:
        """How many reads keep the GPU busy."""
        return max(self.processors * tile.programs * self.group // self.n_heads, 1)

    def reads(self, plan: AttentionPlan, width: int, window: int | None) -> GpuReads:
        """Make the reads of layers with this window. width: of the request table."""
        found = [
            ContextRead(
                span.token,
                span.n_new,
                span.table_row * width + span.start,
                span.context,
                span.context - span.n_new + 1,
                span.start,
            )
            for span in plan.rows
        ]
        if plan.shared:
            rows = {span.token: span.table_row * width for span in plan.rows}
            found += [
                ContextRead(
                    read.first,
                    read.stop - read.first,
                    rows[read.first] + read.start,
                    read.length,
                    read.length,
                    read.start,
                )
                for read in plan.shared
            ]
        few, many = self.tiles
        at_once = few.queries // self.group
        large = [read for read in found if read.tokens > at_once]
        kinds = [
            rows_of([read for read in found if read.tokens <= at_once]),
            in_blocks(large, many.queries // self.group),
        ]
        for kind, tile in enumerate(self.tiles):
            if window:
                newest(kinds[kind], window)
            kinds[kind] = cut_evenly(kinds[kind], tile.tokens, tile.least, self._wanted(tile))
        tokens = sum(span.n_new for span in plan.rows)
        return GpuReads.of(kinds[0], kinds[1], tokens)


class GpuLatentBackend(LatentBackend):
    """Attention over latents as they are by the same kernels; what it needs else is torch's."""

    def __init__(
        self, pool: KVPool, expansions: Sequence[Expansion], index: IndexSizes | None = None
    ) -> None:
        up = expansions[0]
        self.kernels = GpuBackend(pool, up.n_heads, values=up.sizes.rank)
        super().__init__(pool, expansions, self.kernels, index)

    def numbers(self, tokens: int) -> int:
        """See `RecordableBackend`."""
        return self.kernels.numbers(tokens)


class GpuReads(NamedTuple):
    """The reads of layers of one kind. numbers: what kernels read, see `kernels.gpu_attention`.
    kinds: of reads that there are, 0: of few tokens, 1: of many.
    """

    numbers: Numbers
    kinds: tuple[int, ...]
    n_parts: int

    @classmethod
    def of(cls, few: Numbers, many: Numbers, tokens: int) -> GpuReads:
        both = np.concatenate((few, many))
        lists: Sequence[Numbers] = [both[:0, 0]] * 3
        if both[:, TOKENS].sum() > tokens:
            lists = number_parts(both)
        ends = _HEADER + np.cumsum([few.size, many.size, *map(len, lists)])
        header = len(few), _HEADER, len(many), ends[0], len(lists[0]), *ends[1:4]
        numbers = np.concatenate((header, both.ravel(), *lists))
        kinds = tuple(kind for kind, reads in enumerate((few, many)) if len(reads))
        return cls(numbers, kinds, len(lists[2]))

    def fixed(self, most_parts: int) -> GpuReads:
        """The same, for kernels that are called whatever there is to do. Raises NoPlaceError where
        there are more parts.
        """
        if self.n_parts > most_parts:
            raise NoPlaceError(f"{self.n_parts} parts, where there is room for {most_parts}")
        return self._replace(kinds=(0, 1), n_parts=most_parts)


class GpuAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer, which then is a
    kernel that places, one for each kind of reads, and one that merges.

    memory: the request table; of each slot the layers' own, or None; slots of the new tokens; what
    kernels read of the plan.
    """

    def __init__(
        self,
        backend: GpuBackend,
        reads: GpuReads,
        window: int,
        memory: tuple[Tensor, Tensor | None, Tensor, Tensor],
    ) -> None:
        self._backend, self._window = backend, window
        self._kinds, self._n_parts = reads.kinds, reads.n_parts
        self._table, self._places, self._slots, self._numbers = memory

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        pool = self._backend.pool
        own = pool.shapes[layer].source is None
        self._placed(qkv, rotation, norm, self._given(layer), pool.n_kv_heads if own else 0)
        return self.read(layer, qkv, sinks)

    def _given(self, layer: int) -> tuple[Tensor, Tensor, Tensor | None]:
        pool = self._backend.pool
        return pool.keys[layer], pool.values[layer], pool.scales[layer] if pool.coded else None

    def read(self, layer: int, qkv: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `Reading`."""
        backend, pool, given = self._backend, self._backend.pool, self._given(layer)
        size, values = pool.head_dim, backend.values
        out = qkv.new_empty(qkv.shape[0], backend.n_heads * values)
        # New in each layer: what a step kept would be gone when its recorded calls are made again.
        rows = self._n_parts * backend.n_heads
        parts, states = (torch.empty(rows, n, device=qkv.device) for n in (values, 2))
        numbers, scale, rest = self._numbers, size**-0.5, size - values
        heads = {"HEADS": backend.n_heads, "D": max(power_of_two(values), 16)}
        key = self._window, self._places is None, sinks is None, qkv.stride(0), aligned(qkv)
        for kind in self._kinds:
            tile = backend.tiles[kind]
            reads = *given, self._table, self._places, numbers
            backend.attend(
                (kind, *key),
                (backend.processors * tile.programs,),
                (qkv, *reads, out, parts, states, sinks, qkv.stride(0), scale),
                {
                    "KIND": kind,
                    "GROUP": backend.group,
                    "KV": pool.n_kv_heads,
                    "SIZE": size,
                    "VALUES": values,
                    "E": max(power_of_two(rest), 16) if rest else 0,
                    "WINDOW": self._window,
                    "CAP": backend.cap,
                    "M": tile.queries,
                    "N": tile.tokens,
                    "PRECISION": backend.precision,
                    **heads,
                },
                num_warps=tile.warps,
                num_stages=tile.stages,
            )
        if self._n_parts:
            made = numbers, parts, states, out, sinks
            programs = 8 * backend.processors
            backend.merge(
                sinks is None, (programs,), made, {"SIZE": values, "J": _PARTS_AT_ONCE, **heads}
            )
        return out

    def _placed(
        self,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        given: tuple[Tensor, Tensor, Tensor | None],
        kv: int,
    ) -> None:
        """Norm and turn queries, in place, and `kv` keys; put these and values into the pool."""
        backend, size, heads = self._backend, self._backend.pool.head_dim, self._backend.n_heads
        table, factors, places, stride = *rotation, self._places, qkv.stride(0)
        weights = (None, None, 0.0) if norm is None else (norm.q_weight, norm.k_weight, norm.eps)
        after = norm is not None and norm.after
        backend.place(
            (factors is None, places is None, norm is None, after, stride, aligned(qkv), kv),
            (qkv.shape[0], -(-(heads + 2 * kv) // _HEADS_AT_ONCE)),
            (qkv, table, factors, self._slots, places, *given, *weights, stride),
            {
                "HEADS": heads,
                "KV": kv,
                "SIZE": size,
                "D": power_of_two(size // 2),
                "BLOCK": _HEADS_AT_ONCE,
                "AFTER": after,
            },
        )
