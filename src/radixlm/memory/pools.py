"""The pools on the device: keys and values by slot, and the slots of each request's tokens; and how
large they may be.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledRow, WindowMoves
from radixlm.core.keys import Slots
from radixlm.memory.staging import Sending, ranges

# Of what is free once the weights are loaded. On a CPU the rest of the machine lives there too.
CPU_SHARE = 0.4
CUDA_SHARE = 0.85
MOST_TOKENS = 1_048_576
# A number's largest code, and the least that it stands for: what is smaller has no inverse.
_MOST_CODE, _LEAST = 127, 2.0**-100
_SCALE = torch.float32
# Linux's MADV_POPULATE_WRITE, since 5.14; before it is refused.
_POPULATE_WRITE = 23
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def bytes_per_token(
    n_layers: int,
    n_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    coded: bool = False,
    latent: bool = False,
    index_dim: int = 0,
) -> int:
    """Bytes that one slot takes: its keys and values in all layers. coded, latent: see `KVPool`.
    index_dim: see `LayerShape`; with each row of latents there is one key.

    >>> bytes_per_token(30, 3, 64, torch.bfloat16)
    23040
    >>> bytes_per_token(30, 3, 64, torch.bfloat16, coded=True)
    12240
    >>> bytes_per_token(27, 1, 576, torch.bfloat16, latent=True)
    31104
    """
    head = head_dim + _SCALE.itemsize if coded else head_dim * dtype.itemsize
    return n_layers * n_kv_heads * ((1 if latent else 2) * head + index_dim * dtype.itemsize)


class LayerShape(NamedTuple):
    """The shape of what a layer keeps of a token: heads of keys, and of values, and their size.

    source: the layer before it whose keys and values it reads, it has none; None: it has its own.
    index_dim: numbers of the key by which it is chosen, see `index_keys`; 0: it has none.
    """

    n_kv_heads: int
    head_dim: int
    source: int | None = None
    index_dim: int = 0


class HeadRows(NamedTuple):
    """The layer of a draft head, behind the model's own: its row in a token's slot is of what comes
    before the token, and of the token (see `HeadDrafter`).

    shape: of it; its index_dim is the size of a state that the head goes on from. scratch: slots
    that it has beyond the pool's, for tokens that are not known yet.
    """

    shape: LayerShape
    scratch: int


class WindowLayers(NamedTuple):
    """Layers, from 0, with a window and slots of their own, `capacity` in each."""

    layers: AbstractSet[int]
    capacity: int


class KVPool:
    """Keys and values of `capacity` tokens.

        keys[layer][slot]    (n_kv_heads, head_dim) of the token that lies in `slot`
        values[layer][slot]  likewise

    A token's heads lie side by side, so that a run of slots is one stretch of memory and a gather
    copies whole tokens. Which slots are in use is not known here: `cache.RadixCache` owns that.
    The memory starts as zeros (on CPU the system hands it out only when it is first written).

    dtype: of keys and values as they come and as they are used. coded: they are kept as int8, and

        scales[layer][slot]  (2, n_kv_heads) float32: of the token's keys, then of its values

    says what one stands for: of a head the largest size / 127, or NaN where the head has a number
    that is not finite. Not coded, scales are empty.

    latent: a token's one row is its key and its value: `values` are `keys`, the same memory.
    index_keys[layer][slot]: (index_dim,), as it is used; of layers without an index none.
    windows: these layers have other slots: window_slots[slot] (int32) is the one of the token that
    lies in `slot` in the other layers, as long as it has one there.
    shapes: of each layer; empty: all have these heads, and their own. Where a layer has a source,
    its keys, values and scales are those of that one, the same memory. head: one layer more.
    """

    def __init__(
        self,
        n_layers: int,
        capacity: int,
        n_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        *,
        coded: bool = False,
        latent: bool = False,
        windows: WindowLayers | None = None,
        shapes: Sequence[LayerShape] = (),
        head: HeadRows | None = None,
    ) -> None:
        self.shapes = tuple(shapes) or (LayerShape(n_kv_heads, head_dim),) * n_layers
        sizes = [capacity] * n_layers
        self.windows = windows
        self.window_slots: Tensor | None = None
        if windows is not None:
            sizes = [windows.capacity if n in windows.layers else capacity for n in range(n_layers)]
            self.window_slots = torch.zeros(capacity, dtype=torch.int32, device=device)
        if head is not None:
            self.shapes, n_layers = (*self.shapes, head.shape), n_layers + 1
            sizes.append(capacity + head.scratch)
        self.head = head
        self.capacity = capacity
        self.n_kv_heads = n_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.coded, self.latent = coded, latent
        self.device = torch.device(device)
        kept = torch.int8 if coded else dtype
        self.keys = self._side(sizes, lambda its: its[:2], kept)
        self.values = self.keys if latent else self._side(sizes, lambda its: its[:2], kept)
        self.index_keys = self._side(sizes, lambda its: (its.index_dim,), dtype)
        self.scales = (torch.empty(0, dtype=_SCALE, device=self.device),) * n_layers
        if coded:
            self.scales = self._side(sizes, lambda its: (2, its.n_kv_heads), _SCALE)

    @property
    def n_layers(self) -> int:
        return len(self.keys)

    def layer_bytes(self, layer: int) -> int:
        """Bytes of one token that are read in a layer."""
        return sum(part[0].nbytes for part in self._parts(layer))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers together."""
        return sum(part.nbytes for layer in range(self.n_layers) for part in self.parts(layer))

    def of(self, n_kv_heads: int, head_dim: int) -> KVPool:
        """The same pool, to be read and written in layers with these heads alone."""
        its = copy(self)
        its.n_kv_heads, its.head_dim = n_kv_heads, head_dim
        return its

    def model_layers(self) -> KVPool:
        """The same pool without the layer of a draft head."""
        return self if self.head is None else self._only(slice(0, -1))

    def head_layer(self) -> KVPool:
        """The layer of a draft head alone, of which there is one, with its scratch slots."""
        its = self._only(slice(-1, None))
        its.capacity, its.windows, its.window_slots = its.keys[0].shape[0], None, None
        return its.of(*its.shapes[0][:2])

    def _only(self, layers: slice) -> KVPool:
        its = copy(self)
        its.shapes, its.head = self.shapes[layers], None
        its.keys, its.values = self.keys[layers], self.values[layers]
        its.scales, its.index_keys = self.scales[layers], self.index_keys[layers]
        return its

    def parts(self, layer: int) -> list[Tensor]:
        """The tensors that a layer keeps of its tokens, each memory once."""
        return [] if self.shapes[layer].source is not None else self._parts(layer)

    def _parts(self, layer: int) -> list[Tensor]:
        sides = self.keys, self.values, self.scales, self.index_keys
        made = [side[layer] for side in sides]
        return [part for part in made[self.latent :] if part.numel()]

    def _side(
        self,
        sizes: Sequence[int],
        shape_of: Callable[[LayerShape], tuple[int, ...]],
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        """Memory for each layer, or that of its source. sizes: of each the slots."""
        made: list[Tensor] = []
        for shape, size in zip(self.shapes, sizes, strict=True):
            if shape.source is None:
                made.append(zeros((size, *shape_of(shape)), dtype, self.device))
            else:
                made.append(made[shape.source])
        return tuple(made)

    def move(self, moves: WindowMoves, staging: Sending | None = None) -> None:
        """Follow what a batch says of window slots. staging: by which the device gets it."""
        if self.window_slots is not None:
            sending = staging or Sending(self.device)
            slots = sending.put(moves.slots.astype(np.int64))
            theirs = sending.put(moves.window_slots.astype(np.int32))
            sending.after(partial(self.window_slots.index_copy_, 0, slots, theirs))

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Store tokens: slots (tokens,) int64, all different; k, v (tokens, n_kv_heads, head_dim).

        Raises IndexError for a slot outside the pool (on CUDA: the device's own assertion).
        """
        if self.coded:
            (k, of_k), (v, of_v) = _codes_of(k), _codes_of(v)
            self.scales[layer].index_copy_(0, slots, torch.stack((of_k, of_v), dim=1))
        self.keys[layer].index_copy_(0, slots, k)
        self.values[layer].index_copy_(0, slots, v)

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values of these slots as numbers, (tokens, n_kv_heads, head_dim) each."""
        keys, values = self.keys[layer][slots], self.values[layer][slots]
        if not self.coded:
            return keys, values
        scales = self.scales[layer][slots][..., None].unbind(1)
        return (keys * scales[0]).to(self.dtype), (values * scales[1]).to(self.dtype)

    def populate(self, tokens: int) -> None:
        """Have the system hand out the memory of the first `tokens` slots now, on the CPU and where
        it can: the first to write there would wait for it, 0.2 s for 100 MB. What is there stays.
        """
        advise = getattr(ctypes.CDLL(None), "madvise", None)
        if self.device.type != "cpu" or advise is None:
            return
        for part in (part for layer in range(self.n_layers) for part in self.parts(layer)):
            first = -(-part.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            end = part.data_ptr() + part[:tokens].nbytes
            if end > first:
                advise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), _POPULATE_WRITE)

    def sound(self, slots: Tensor, *, in_windows: bool = False) -> int:
        """How many of these tokens, from the first on, are numbers in every layer but those with
        window slots, or in these. slots: (tokens,) int64. As slow as reading them all.
        """
        good = torch.ones(slots.shape, dtype=torch.bool, device=self.device)
        apart = self.windows.layers if self.windows is not None else frozenset[int]()
        if in_windows and self.window_slots is not None:
            slots = self.window_slots[slots].long()
        for layer in range(self.n_layers):
            if (layer in apart) != in_windows:
                continue
            sides = (self.scales,) if self.coded else (self.keys, self.values, self.index_keys)
            for side in sides:
                good &= side[layer][slots].isfinite().flatten(1).all(1)
        return int(good.long().cumprod(0).sum())


def _codes_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """(tokens, heads, head_dim) as int8, and their scales (tokens, heads) float32."""
    numbers = x.float()
    largest = numbers.abs().amax(-1).clamp_(min=_LEAST)
    factors = torch.full_like(largest, _MOST_CODE) / largest  # a number / it is two operations
    codes = (numbers * factors[..., None]).round_().nan_to_num_(0).to(torch.int8)
    return codes, torch.where(largest.isfinite(), largest / _MOST_CODE, torch.nan)


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. On the CPU they come from numpy, whose zeros are pages that the system has promised
    but not handed out yet; torch writes its zeros, and a pool would take all its memory at once.
    """
    if device.type != "cpu" or not math.prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device)
    bytes_ = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(bytes_).view(dtype).view(shape)


class ReqToTokenPool:
    """table[row, i] is the slot of token i of the request that runs in `row`.

    Only the runner writes it, and only from what a batch says. Beyond a request's own length a row
    holds whatever was there before; nobody may read it.
    """

    def __init__(
        self, max_running_requests: int, context_length: int, device: torch.device | str = "cpu"
    ) -> None:
        self.table = torch.zeros(
            (max_running_requests, context_length), dtype=torch.int32, device=device
        )
        # The same memory; numpy writes a few numbers ten times as fast.
        self._numbers = self.table.numpy() if self.table.device.type == "cpu" else None

    def send(self, places: npt.NDArray[np.int64], slots: Slots, sending: Sending) -> None:
        """Have slots listed at places of the table, whose rows follow each other."""
        given = sending.put(places), sending.put(slots)
        sending.after(partial(self.table.view(-1).index_copy_, 0, *given))

    def apply(self, rows: Iterable[ScheduledRow], staging: Sending | None = None) -> None:
        """Follow a step's rows: of each its remaps in order, then its new slots at [start, stop).
        staging: by which the device gets it, with what lies beside another row after all of it.

        Raises IndexError when they lie outside the table.
        """
        # What comes later of a row may replace what came before: first the first of all rows.
        turns: list[list[tuple[int, Slots]]] = []
        siblings = []
        for row in rows:
            if row.beside is not None:
                siblings.append(row)
            for turn, (start, slots) in enumerate((*row.remaps, (row.start, row.new_slots))):
                self._check(row.row, start, start + slots.size)
                if self._numbers is not None:
                    self._numbers[row.row, start : start + slots.size] = slots
                    continue
                if turn == len(turns):
                    turns.append([])
                turns[turn].append((row.row * self.table.shape[1] + start, slots))
        sending = staging or Sending(self.table.device)
        for changes in turns:
            places = ranges([at for at, _ in changes], [its.size for _, its in changes])
            slots = np.concatenate([its for _, its in changes], dtype=np.int32)
            self.send(places, slots, sending)
        for row in siblings:
            beside = self.table[row.beside, : row.start]
            sending.after(partial(self.table[row.row, : row.start].copy_, beside))

    def _check(self, row: int, start: int, stop: int) -> None:
        rows, length = self.table.shape
        if not (0 <= row < rows and start >= 0 and stop <= length):
            raise IndexError(
                f"tokens [{start}, {stop}) of row {row} lie outside "
                f"a table of {rows} rows and {length} tokens"
            )


def default_kv_tokens(bytes_per_token: int, device: torch.device) -> int:
    """Tokens that fit a fair share of the free memory, at most MOST_TOKENS."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps of other engines, and of loading, is free, too
        free, _total = torch.cuda.mem_get_info(device)
        share = CUDA_SHARE
    else:
        free, share = free_host_memory(), CPU_SHARE
    return min(MOST_TOKENS, int(free * share) // bytes_per_token)


def free_host_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process could still take, by the system and by its control group.

    What files occupy in the page cache counts as free, since the kernel gives it back: the
    checkpoint that was just read lies there too.
    """
    free = _field(meminfo, "MemAvailable:")
    if free is None:  # not Linux
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        free *= 1024
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return free
    cached = _field(cgroup / "memory.stat", "inactive_file") or 0
    return max(0, min(free, limit - used + cached))


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of lines `name number ...`."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
    return int(values[0]) if values else None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
