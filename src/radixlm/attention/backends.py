"""Attention on the CPU, with code compiled for many queries in tiles and for single ones; and which
backend a machine gets.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.attend import Attend, AttentionBackend, Reading, by_layer
from radixlm.attention.direct import make_direct_kernel, scratch_bytes
from radixlm.attention.latents import LatentBackend
from radixlm.attention.merge import make_merge_kernel
from radixlm.attention.place import ROWS_PER_UNIT, make_place_kernel
from radixlm.attention.plan import AttentionPlan, Sharing
from radixlm.attention.reads import (
    TOKENS,
    Numbers,
    by_token,
    cut,
    in_blocks,
    in_windows,
    newest,
    number_parts,
    reads_of,
)
from radixlm.attention.shaped import of_shapes
from radixlm.attention.tile_layout import STRIP, TILE, TileShape, places_of
from radixlm.attention.tiles import make_tile_kernel
from radixlm.attention.torch_backend import TorchBackend
from radixlm.core.errors import ConfigError
from radixlm.kernels.amx import has_tiles
from radixlm.kernels.code_dots import has_code_dots
from radixlm.kernels.dots import has_pairs
from radixlm.kernels.gpu_launch import has_kernels, largest_head
from radixlm.kernels.jit import COUNTERS
from radixlm.kernels.openmp import Worker, team, threads_for
from radixlm.layers.expansion import Expansion
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool

# Arguments of the merging kernel, see `number_parts`.
_LISTS = ("token", "first", "parts_of")
# Arguments that are not a plan's.
_OF_A_CALL = {
    *COUNTERS,
    *("qkv", "stride", "table", "q", "q_stride", "keys", "values", "scales", "answers"),
    *("factors", "q_weight", "k_weight", "eps", "after", "sinks", "key_heads"),
}
# Contexts are cut while a thread has fewer units of work than this, or reads of single tokens.
_UNITS_PER_THREAD, _READS_PER_THREAD = 8, 4
# Of parts of contexts, in float32: where tokens would have more, contexts are not cut.
_PARTS_BYTES = 64 << 20
# When to share: fewest, shortest, least saved in tokens x heads x head_dim, measured in
# docs/adr/0012-cpu-kernels.md.
SHARING = dict.fromkeys((torch.bfloat16, torch.float32), (4, 256, 48 << 16))


class CpuBackend:
    """Attention with code compiled for the pool's shape.

    n_heads: of queries. windows: see `by_layer`. cap: of scores, see `dots.capped`; 0: none.
    least_queries: of a row's new tokens and one key
    head, from which on what it reads by itself is computed in tiles; of fewer a strip is not full.
    deterministic: the bits of a token's result depend on nothing but its context.
    """

    def __init__(
        self,
        pool: KVPool,
        n_heads: int,
        *,
        windows: Sequence[int | None] = (),
        cap: float = 0.0,
        least_queries: int = STRIP,
        deterministic: bool = False,
    ) -> None:
        queries = n_heads // pool.n_kv_heads
        fewest, shortest, saved = SHARING[pool.dtype]
        self.sharing = Sharing(
            # Rows with more read tiles of their own as fast.
            largest=max(STRIP // queries, 1),
            fewest=fewest,
            shortest=shortest,
            least_saved=max(saved // (n_heads * pool.head_dim), 1),
            least_view=sys.maxsize,
            align=TILE if deterministic else 1,
            most_parts=_PARTS_BYTES // (4 * n_heads * (pool.head_dim + 2)),
        )
        self._windows = windows
        self._deterministic = deterministic
        self._least_queries = least_queries
        self._pool = pool
        self._n_heads = n_heads
        bfloat16 = pool.dtype == torch.bfloat16
        tiles = bfloat16 and has_tiles()
        self._shape = TileShape(
            queries, pool.head_dim, bfloat16, tiles, deterministic and tiles, pool.coded, cap
        )
        self._tiles = make_tile_kernel(self._shape)
        # For both kernels: what a thread has at most.
        self._scratch_bytes = max(scratch_bytes(n_heads, pool.head_dim), places_of(self._shape).end)
        self._place = make_place_kernel(pool.head_dim, bfloat16=bfloat16, coded=pool.coded)
        self._merge = make_merge_kernel(pool.head_dim, bfloat16=bfloat16)
        self._direct = None
        # Sums of AMX are in an order of their own, which single tokens would not have; of codes
        # they have queries and weights in 16 bits.
        pairs = has_pairs(pool.head_dim, bfloat16=bfloat16)
        in_tiles_alone = tiles or pool.coded or pairs != self._shape.pairs
        known = not pool.coded or has_code_dots(pool.head_dim)
        if queries < least_queries and known and not (deterministic and in_tiles_alone):
            self._direct = make_direct_kernel(
                queries, pool.head_dim, bfloat16=bfloat16, coded=pool.coded, cap=cap
            )

    def prepare(self, plan: AttentionPlan, table: Tensor, slots: Tensor, *_: object) -> Attend:
        """See `AttentionBackend`."""
        pool = self._pool

        def make(its: AttentionPlan, window: int | None, own: bool) -> CpuAttention:
            its_slots, capacity, places = slots, pool.capacity, None
            if own and pool.windows is not None and pool.window_slots is not None:
                places, capacity = pool.window_slots.numpy(), pool.windows.capacity
                its_slots = pool.window_slots[slots].long()
            placing = self._placing(its_slots, capacity)
            return self._attention(its, window, table, its_slots, placing, places)

        return by_layer(plan, self._windows, make, apart=pool.windows is not None)

    def reading(self, plan: AttentionPlan, table: Tensor, slots: Tensor, *_: object) -> Reading:
        """The reads that `prepare` gives where no layer has a window."""
        placing = self._placing(slots, self._pool.capacity)
        return self._attention(plan, None, table, slots, placing, None)

    def _attention(
        self,
        plan: AttentionPlan,
        window: int | None,
        table: Tensor,
        slots: Tensor,
        placing: Worker,
        places: npt.NDArray[np.int32] | None,
    ) -> CpuAttention:
        """slots: what `placing` points at. places: of each slot the layers' own."""
        threads, queries = team().size, self._shape.queries
        own, shared, numbers = reads_of(plan, table)
        if places is not None:
            numbers = places[numbers]
        least = 0 if self._direct is None else self._least_queries
        few = [read for read in own if read.tokens * queries < least]
        large = [read for read in own if read.tokens * queries >= least] + shared
        single, most_tokens = by_token(few), self._shape.block_tokens
        blocks = in_blocks(large, min(most_tokens, window or most_tokens))
        older = blocks[:0]
        if window is not None:
            newest(single, window)
            blocks, older, numbers = in_windows(blocks, window, numbers)
        single, blocks = self._cut(single, blocks, threads)
        reads = np.concatenate((single, blocks, older))
        scratch = team().scratch(threads * self._scratch_bytes)
        merge, results, made = self._merging(reads, slots.numel())
        ends = accumulate((len(single), len(blocks), len(older)), initial=0)
        workers = [
            Worker(
                kernel,
                items=stop - first,
                key_heads=self._pool.n_kv_heads,
                slots=numbers.ctypes.data,
                reads=reads[first:].ctypes.data,
                scratch=scratch,
                **results,
            )
            for kernel, (first, stop) in zip(
                (self._direct, self._tiles, self._tiles), pairwise(ends), strict=True
            )
            if kernel is not None and first < stop
        ]
        memory = [numbers, reads, slots, *made]
        n_reversed = int(len(older) > 0)
        return CpuAttention(
            self._pool, self._n_heads, placing, workers, n_reversed, merge, threads, memory
        )

    def _cut(self, single: Numbers, blocks: Numbers, threads: int) -> tuple[Numbers, Numbers]:
        most, ordered = self.sharing.most_parts, self._deterministic
        wanted = -(-_UNITS_PER_THREAD * threads // self._pool.n_kv_heads) if threads > 1 else 1
        return (
            cut(single, TILE, _READS_PER_THREAD * threads, most, ordered=ordered),
            cut(blocks, TILE, wanted, most, ordered=ordered),
        )

    def _merging(
        self, reads: Numbers, tokens: int
    ) -> tuple[Worker | None, dict[str, int], list[object]]:
        """The worker that adds up the results of `tokens` with several reads, if there are any;
        where their parts are to be written; and the memory of both.
        """
        if reads[:, TOKENS].sum() <= tokens:
            return None, {}, []
        lists = number_parts(reads)
        size = (len(lists[2]), self._n_heads)
        parts = torch.empty((*size, self._pool.head_dim), dtype=torch.float32, device="cpu")
        states = torch.empty((*size, 2), dtype=torch.float32, device="cpu")
        results = {"parts": parts.data_ptr(), "states": states.data_ptr()}
        merge = Worker(
            self._merge,
            rows=len(lists[0]),
            heads=self._n_heads,
            **{name: made.ctypes.data for name, made in zip(_LISTS, lists, strict=True)},
            **results,
        )
        return merge, results, [lists, parts, states]

    def _placing(self, slots: Tensor, capacity: int) -> Worker:
        """Raises IndexError for a slot outside the pool: the kernel would not notice."""
        if slots.numel() and not 0 <= int(slots.min()) <= int(slots.max()) < capacity:
            raise IndexError(f"a slot lies outside a pool of {capacity}")
        return Worker(
            self._place,
            rows=slots.numel(),
            heads=self._n_heads,
            slots=slots.data_ptr(),
        )


class CpuAttention:
    """One step's attention (an `Attend`): made for a plan, called once per layer.

    placing: see `place`. workers: each token has one read that is its answer, or several that
    `merge` makes it of; the last `n_reversed` of them take tokens in reverse. memory: what their
    arguments point at.

    answers: memory for the results of all layers; None: each has its own.
    """

    def __init__(
        self,
        pool: KVPool,
        n_heads: int,
        placing: Worker,
        workers: Sequence[Worker],
        n_reversed: int,
        merge: Worker | None,
        threads: int,
        memory: object,
    ) -> None:
        self._pool = pool
        self._width = n_heads * pool.head_dim
        self._placing = placing
        self._workers = workers
        self._forward = len(workers) - n_reversed
        self._merge = merge
        self._threads = threads
        self._memory = memory
        self.answers: Tensor | None = None

    @property
    def tokens(self) -> int:
        rows: int = self._placing.arguments.rows
        return rows

    @property
    def workers(self) -> list[Worker]:
        """The workers of a layer, in the order in which they are called."""
        return [self._placing, *self._workers, *([self._merge] if self._merge else [])]

    @staticmethod
    def planned(worker: Worker) -> list[str]:
        """The arguments of one that are the same in all layers: those of this step's plan."""
        return [name for name in worker.fields if name not in _OF_A_CALL]

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `Attend`."""
        arguments = self._placing.arguments
        arguments.qkv, arguments.table = qkv.data_ptr(), rotation.table.data_ptr()
        arguments.stride = qkv.stride(0) * qkv.element_size()
        own = self._pool.shapes[layer].source is None
        arguments.key_heads = self._pool.n_kv_heads if own else 0
        arguments.keys, arguments.values, arguments.scales = self._places(layer)
        arguments.q_weight, arguments.k_weight = (0, 0) if norm is None else norm.addresses
        arguments.eps = 0 if norm is None else norm.eps_bits
        arguments.after = 0 if norm is None else int(norm.after)
        factors = rotation.factors
        arguments.factors = 0 if factors is None else factors.data_ptr()
        self._placing(threads_for(arguments.rows, ROWS_PER_UNIT))
        return self.read(layer, qkv, sinks)

    def _places(self, layer: int) -> list[int]:
        """Addresses of keys, values, scales."""
        sides = self._pool.keys, self._pool.values, self._pool.scales
        return [side[layer].data_ptr() for side in sides]

    def read(self, layer: int, q: Tensor, sinks: Tensor | None = None) -> Tensor:
        """See `Reading`."""
        answers = self.answers
        if answers is None:
            answers = torch.empty((q.shape[0], self._width), dtype=q.dtype, device="cpu")
        at, stride = q.data_ptr(), q.stride(0) * q.element_size()
        keys, values, scales = self._places(layer)
        sinks_at = 0 if sinks is None else sinks.data_ptr()
        for place, worker in enumerate(self._workers):
            arguments = worker.arguments
            arguments.q, arguments.q_stride = at, stride if place < self._forward else -stride
            arguments.keys, arguments.values, arguments.scales = keys, values, scales
            arguments.answers, arguments.sinks = answers.data_ptr(), sinks_at
            worker(self._threads)
        if self._merge is not None:
            arguments = self._merge.arguments
            arguments.answers, arguments.sinks = answers.data_ptr(), sinks_at
            self._merge()
        return answers


def make_backend(
    pool: KVPool,
    n_heads: int,
    *,
    windows: Sequence[int | None] = (),
    cap: float = 0.0,
    deterministic: bool = False,
    expansions: Sequence[Expansion] = (),
    index: IndexSizes | None = None,
) -> AttentionBackend:
    """The CPU's own where all parts know pools of this type, on a GPU Triton's, else torch's.

    n_heads: of queries. windows, cap, deterministic: see `CpuBackend`. expansions: of a pool of
    latents, each layer's, which are never deterministic. index: by which they are chosen. Raises
    ConfigError where it is not known.
    """
    if expansions:
        if has_kernels(pool.device.type):
            return _of_a_gpu("GpuLatentBackend", pool, expansions, index)
        return LatentBackend(pool, expansions, _plain_backend(pool, n_heads), index)
    if deterministic:
        check_deterministic(pool.dtype, pool.device, windows)
    if not _is_compiled(pool.dtype, pool.device):
        return of_shapes(pool, windows, partial(_of_any_device, n_heads=n_heads, cap=cap))
    make = partial(CpuBackend, n_heads=n_heads, cap=cap, deterministic=deterministic)
    return of_shapes(pool, windows, make)


def _of_any_device(
    pool: KVPool, n_heads: int, cap: float, windows: Sequence[int | None]
) -> AttentionBackend:
    """Torch's, or on a GPU the one whose kernels are Triton's, which comes with torch for CUDA."""
    if pool.head_dim > largest_head(pool.dtype) or not has_kernels(pool.device.type):
        return TorchBackend(pool, n_heads, windows=windows, cap=cap)
    return _of_a_gpu("GpuBackend", pool, n_heads, windows=windows, cap=cap)


def _of_a_gpu(name: str, *given: object, **named: object) -> AttentionBackend:
    module = importlib.import_module("radixlm.attention.gpu_backend")
    made: AttentionBackend = getattr(module, name)(*given, **named)
    return made


def _plain_backend(pool: KVPool, n_heads: int) -> CpuBackend | TorchBackend:
    """A backend without windows, so that what it prepares can be asked for what it reads alone."""
    kind = CpuBackend if _is_compiled(pool.dtype, pool.device) else TorchBackend
    return kind(pool, n_heads)


def check_deterministic(
    dtype: torch.dtype, device: torch.device, windows: Sequence[int | None]
) -> None:
    """Raises ConfigError where attention would not give a token the same bits in any company."""
    if not _is_compiled(dtype, device):
        kind = str(dtype).removeprefix("torch.")
        raise ConfigError(
            "--deterministic needs a CPU, OpenMP's threads and float32 or bfloat16; "
            f"here it would be {kind} on {device}"
        )
    if any(windows):
        raise ConfigError(
            "--deterministic does not know sliding windows; with --context-length "
            f"{min(filter(None, windows))} they do not matter"
        )


def _is_compiled(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype in SHARING and team().is_whole
