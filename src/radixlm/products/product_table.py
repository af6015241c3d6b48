"""The fastest way to multiply by each weight: timed once on this machine, and kept."""

from __future__ import annotations

import itertools
import json
import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor
from tqdm import tqdm

from radixlm.kernels.jit import KernelStore, key_of
from radixlm.kernels.openmp import team
from radixlm.products.compiled import Gate, TensorOptions
from radixlm.products.gemm_choice import (
    LAYOUTS,
    GemmChoice,
    GemmShape,
    Product,
    Way,
    Weight,
    packed,
    ways_of,
)
from radixlm.products.quantized import with_ones
from radixlm.products.quantizing import quantize

COUNTS = (1, 2, 4, 8, 16, 32, 64, 256, 2048)
# Seconds by number of rows.
Times = dict[Way, dict[int, float]]
# Seconds for all shapes together, and for one; for a number of rows, and for a call: a way of which
# one would take longer is not timed for more rows.
_IN_ALL, _OF_ONE, _OF_COUNT, _MOST = 2.5, 0.4, 0.03, 0.03
_LEAST_TURNS, _TURNS = 3, 100
# What is read between calls with few rows, so that weights come from where a model's do.
_OTHER_BYTES, _FEW_ROWS = 48 << 20, 32
# Random numbers that are repeated: to draw millions would take longer than to time them.
_DRAWN = 1 << 16
# What is less faster than this may be chance.
_NOISE = 0.93
_logger = logging.getLogger("radixlm.products")


class ProductTable:
    """The times of each way to multiply by weights, measured once on this machine and kept.

    Times of another processor, version or number of threads have another key: they are measured
    anew, and so are damaged ones. With many shapes less of `_IN_ALL` is left for each.
    """

    def __init__(self, store: KernelStore | None) -> None:
        self._store = store
        self._key = key_of(measure, (torch.__version__, team().size), {})
        self._times: dict[GemmShape, Times] = {}
        self._left = _IN_ALL

    def choice(self, weight: Weight, result: torch.dtype, gate: Gate | None = None) -> GemmChoice:
        """The choice for a weight (out, in), the type of its product and its gate, if any."""
        gated = gate is not None
        [way, *others] = ways_of(weight, gated=gated)
        if not others:
            return GemmChoice([(1, way)])
        return choose(self.times(GemmShape.of(weight, result, gated=gated)))

    def times(self, shape: GemmShape, *, anew: bool = False) -> Times:
        """Measured now, if they never were or are to be anew, then as long as it takes.

        Of processes that measure at the same time the first one's count for all, so that the same
        model multiplies in the same ways in each.
        """
        timed = shape.timed
        if anew or timed not in self._times:
            self._times = self._kept()
        if anew or timed not in self._times:
            made = self._measured(timed, math.inf if anew else min(_OF_ONE, self._left / 2))
            others = {} if anew else self._kept()
            self._times = {**self._times, timed: made, **others}
            if self._store:
                self._store.put(self._key, _written(self._times))
        return self._times[timed]

    def _measured(self, shape: GemmShape, seconds: float) -> Times:
        store, began = self._store, time.perf_counter()
        compiled = sum(store.compiling) if store else 0.0
        made = measure(shape, seconds)
        took = time.perf_counter() - began
        self._left = max(self._left - took, 0.0)
        if store:
            store.timing.append(took - sum(store.compiling) + compiled)
        return made

    def _kept(self) -> dict[GemmShape, Times]:
        return _read(self._store.get(self._key) if self._store else None)


def choose(times: Times) -> GemmChoice:
    """The layout that comes closest to the fastest of all, on the geometric mean over the numbers
    of rows; of its ways the best such one, and others only for rows where they are faster by more
    than noise.
    """
    full = {way: _completed(by_rows) for way, by_rows in times.items()}
    best: list[tuple[int, Way]] = [(COUNTS[-1], "torch")]
    least = math.inf
    for layout in dict.fromkeys(LAYOUTS[way] for way in full):
        ways = {way: full[way] for way in full if LAYOUTS[way] == layout}
        usual = min(ways, key=lambda way: _mean(full[way].values()))
        chosen = [(rows, _faster(ways, usual, rows)) for rows in COUNTS]
        mean = _mean(full[way][rows] for rows, way in chosen)
        if mean < least * _NOISE:
            best, least = chosen, mean
    groups = itertools.groupby(best, key=lambda step: step[1])
    return GemmChoice([(max(rows for rows, _ in steps), way) for way, steps in groups])


def _faster(ways: Mapping[Way, Mapping[int, float]], usual: Way, rows: int) -> Way:
    fastest = min(ways, key=lambda way: ways[way][rows])
    return fastest if ways[fastest][rows] < _NOISE * ways[usual][rows] else usual


def _mean(seconds: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, seconds)))


def _completed(by_rows: Mapping[int, float]) -> dict[int, float]:
    """Counts that were not timed take as long per row as the last one that was."""
    last = max(by_rows)
    return {rows: by_rows.get(rows, by_rows[last] * rows / last) for rows in COUNTS}


def measure(shape: GemmShape, seconds: float = math.inf) -> Times:
    """Time all ways. After some seconds one call counts; to compile what was never compiled here
    comes on top.

    They take turns and the least time counts, so that other work on the machine, while there is
    any, does not choose.
    """
    dtype, result = getattr(torch, shape.dtype), getattr(torch, shape.result)
    weight = _sample(shape, dtype)
    gate = Gate(TensorOptions(result, torch.device("cpu"))) if shape.gated else None
    products = {
        way: packed(GemmChoice([(1, way)]), weight, None, dtype, result, gate)
        for way in ways_of(weight, gated=shape.gated)
    }
    times: Times = {way: {} for way in products}
    other = torch.zeros(_OTHER_BYTES // 4)
    x = _drawn(COUNTS[-1], shape.inputs, dtype)
    name, began = f"{shape.outputs} x {shape.inputs} in {shape.name}", time.perf_counter()
    # disable=None: no bar where stderr is no terminal.
    for rows in tqdm(COUNTS, desc=f"timing products of {name}", leave=False, disable=None):
        at_hand = {way: made for way, made in products.items() if _is_soon(times[way], rows)}
        is_late = time.perf_counter() - began > seconds
        for way, took in call_times(at_hand, x[:rows], other, 1 if is_late else _TURNS).items():
            times[way][rows] = took
    return times


def _drawn(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Random numbers, of which there are no more than `_DRAWN` different ones."""
    count = rows * columns
    return torch.randn(_DRAWN).to(dtype).repeat(-(-count // _DRAWN))[:count].view(rows, columns)


def _sample(shape: GemmShape, dtype: torch.dtype) -> Weight:
    weight = _drawn(shape.outputs, shape.inputs, dtype)
    if not shape.bits:
        return weight
    made = quantize(weight, bits=shape.bits, group=shape.group)
    made = replace(made, offsets=made.scales if shape.offsets else None, numbers=shape.numbers)
    return with_ones(made, shape.block) if shape.block else made


def _is_soon(by_rows: Mapping[int, float], rows: int) -> bool:
    """Whether a call for that many rows may be tried, by the times of fewer."""
    last = max(by_rows, default=0)
    before = COUNTS[max(COUNTS.index(rows) - 1, 0)]
    return not last or (last == before and by_rows[last] * rows / last < _MOST)


def call_times(
    products: Mapping[Way, Product], x: Tensor, other: Tensor, most: int
) -> dict[Way, float]:
    """Seconds of a call, the least of several. most: of these. other: memory that is read between
    calls with few rows.
    """
    for product in products.values():
        product(x)
    least = dict.fromkeys(products, math.inf)
    began = time.perf_counter()
    for turn in range(most):
        if turn >= _LEAST_TURNS and time.perf_counter() - began > _OF_COUNT:
            break
        if len(x) <= _FEW_ROWS:
            other.sum()
        for way, product in products.items():
            started = time.perf_counter()
            product(x)
            least[way] = min(least[way], time.perf_counter() - started)
    return least


def _read(content: bytes | None) -> dict[GemmShape, Times]:
    """Read the table that `_written` made; an empty one where a text is none."""
    try:
        entries = json.loads(content or b"[]")
        return {GemmShape(*shape): _times_of(times) for shape, times in entries}
    except (ValueError, TypeError, AttributeError):
        _logger.warning("The table of measured products is damaged: measuring anew")
        return {}


def _times_of(entry: Mapping[str, Mapping[str, float]]) -> Times:
    made: Times = {
        way: {int(rows): float(seconds) for rows, seconds in entry[way].items()}
        for way in get_args(Way)
        if way in entry
    }
    return made


def _written(times: Mapping[GemmShape, Times]) -> bytes:
    return json.dumps(list(times.items())).encode()
