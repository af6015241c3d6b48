"""The ways to multiply by a weight on this machine, and which is the fastest for how many rows.

A weight has one layout; some layouts are read in several ways:

    layout     way          by
    panels     tiles        our own code, AMX
    panels     vectors      our own code, AVX2 or AVX-512
    onednn     onednn       oneDNN, with the weight in the order that it asks for
    rows       torch        whatever torch does with the weight as it is

Which is best no list of processors says: each is timed once, for a model's own shapes.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import KernelStore, key_of
from radixlm.kernels.openmp import team
from radixlm.products import quantized_products
from radixlm.products.compiled import Gate, Gated, TensorOptions
from radixlm.products.panel_products import Form, PanelProduct, forms_of
from radixlm.products.quantized import BYTES, Numbers, QuantizedWeight, quantize, with_ones
from radixlm.products.quantized_products import QuantizedProduct

Way = Literal["tiles", "vectors", "onednn", "torch"]
Layout = Literal["panels", "onednn", "rows"]
LAYOUTS: dict[Way, Layout] = {
    "tiles": "panels",
    "vectors": "panels",
    "onednn": "onednn",
    "torch": "rows",
}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 256, 2048)
# Copies of a weight take turns, so that it comes from where a model's weights do; larger weights
# are timed by their first outputs.
_COPIES_BYTES = 64 << 20
_MOST_COPIES = 64
# Seconds for the figures of a number of rows; a way whose call takes over `_MOST` has no more.
_BUDGET, _MOST = 0.02, 0.1
_LEAST_TURNS = 5
# What is less faster than this may be chance.
_NOISE = 0.93
# Rows that oneDNN compiles code for: it does so anew for each number, and keeps it.
_FEW, _STEP = 64, 64
_logger = logging.getLogger("radixlm.products")


class GemmShape(NamedTuple):
    """The shape and types of a weight's product: result and rows by the names of their types.
    gated: see `Linear`. bits and what follows: of a quantized one, see `WeightKind`, whose rows are
    timed in the type of the result.
    """

    outputs: int
    inputs: int
    dtype: str
    result: str
    gated: bool = False
    bits: int = 0
    group: int = 0
    offsets: bool = False
    numbers: Numbers = "int"
    block: int = 0

    @classmethod
    def of(cls, weight: Weight, result: torch.dtype, *, gated: bool = False) -> GemmShape:
        outputs, inputs = weight.shape
        if isinstance(weight, QuantizedWeight):
            name = _name(result)
            return cls(outputs, inputs, name, name, gated, *weight.kind)
        return cls(outputs, inputs, _name(weight.dtype), _name(result), gated)

    @property
    def name(self) -> str:
        """The name of a weight's numbers, for people."""
        if not self.bits:
            return self.dtype
        groups = "" if self.group == self.inputs else f"/{self.group}"
        numbers = "int" if self.numbers in BYTES else "fp"
        return f"{numbers}{self.bits}{groups}" + ("+offsets" if self.offsets else "")

    @property
    def row_bytes(self) -> int:
        return self.inputs * (self.bits or 8 * getattr(torch, self.dtype).itemsize) // 8

    @property
    def timed(self) -> GemmShape:
        """The shape that stands for it when products are timed."""
        row = self.row_bytes
        return self._replace(outputs=min(self.outputs, max(_COPIES_BYTES // row // 64, 1) * 64))


Product = Callable[[Tensor], Tensor]
# Seconds by number of rows.
Times = dict[Way, dict[int, float]]


class GemmChoice:
    """A layout, and the way to read it for each number of rows. steps: the most rows of each way,
    ascending; the last one's holds beyond. block: rows of every call, if these are to be alike.
    """

    def __init__(self, steps: Sequence[tuple[int, Way]], block: int = 0) -> None:
        self.steps = tuple(steps)
        self.block = block
        self._limits = [rows for rows, _ in steps[:-1]]

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.steps[0][1]]

    def way(self, rows: int) -> Any:
        return self.steps[bisect_left(self._limits, rows)][1]


PLAIN = GemmChoice([(1, "torch")])
# Of blocks of 64 rows torch gives a row the same bits wherever it stands in one.
IN_BLOCKS = GemmChoice([(1, "torch")], block=64)
Weight = Tensor | QuantizedWeight
# Of a weight (out, in), the type of its product, and its gate, if it has one.
Choose = Callable[[Weight, torch.dtype, Gate | None], GemmChoice]


def one_way(
    weight: Weight, result: torch.dtype, gate: Gate | None, *, quantized: Choose | None = None
) -> GemmChoice:
    """A `Choose` by which the bits of a row do not depend on the rows beside it. quantized: for
    weights that have the same bits in each way.
    """
    if quantized is not None and isinstance(weight, QuantizedWeight):
        made = quantized(weight, result, gate)
        return made if made.layout == "panels" else IN_BLOCKS
    forms = _forms(weight, gated=gate is not None)
    return GemmChoice([(1, forms[0])]) if forms else IN_BLOCKS


def _forms(weight: Weight, *, gated: bool) -> tuple[Form, ...]:
    if isinstance(weight, QuantizedWeight):
        return quantized_products.forms_of(weight, gated=gated)
    return forms_of(weight, gated=gated)


def ways_of(weight: Weight, *, gated: bool = False) -> list[Way]:
    """The ways to multiply by a weight (out, in) here; torch knows a quantized one if no other."""
    made: list[Way] = [*_forms(weight, gated=gated)]
    if isinstance(weight, QuantizedWeight):
        return made or ["torch"]
    if weight.device.type == "cpu" and has_onednn(weight.dtype):
        made.append("onednn")
    return [*made, "torch"]


def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies floats of a type on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    pairs: bool = dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32 or pairs


def packed(
    choice: GemmChoice,
    weight: Weight,
    bias: Tensor | None,
    dtype: torch.dtype,
    result: torch.dtype,
    gate: Gate | None = None,
) -> Product:
    """The product in the layout chosen: (tokens, in) in `dtype` -> (tokens, out) in the type of the
    result, half as wide with a gate. The weight is copied where its layout changes; a quantized one
    has panels only.
    """
    kind = None if gate is None else gate.kind
    if isinstance(weight, QuantizedWeight):
        return QuantizedProduct(weight, bias, dtype, result, choice.way, gate=kind)
    if choice.layout == "panels":
        return PanelProduct(weight, bias, result, choice.way, gate=kind)
    made: Product
    if choice.layout == "onednn":
        made = _OneDnnProduct(weight, bias, result)
    else:
        made = partial(plain, weight=weight, bias=bias, result=result)
    if choice.block:
        made = partial(_in_blocks, made, choice.block)
    return made if gate is None else Gated(made, gate)


def plain(x: Tensor, weight: Tensor, bias: Tensor | None, result: torch.dtype) -> Tensor:
    """The product by torch, with the weight as it is."""
    return functional.linear(x, weight, bias).to(result)


def _in_blocks(product: Product, block: int, x: Tensor) -> Tensor:
    """A product of any number of rows as products of as many each; zeros fill the last one."""
    padded = functional.pad(x, (0, 0, 0, -x.shape[0] % block))
    parts = [product(part) for part in padded.split(block)]
    return torch.cat(parts)[: x.shape[0]]


class _OneDnnProduct:
    """oneDNN's product with a weight in its own layout, for numbers of rows that are few."""

    def __init__(self, weight: Tensor, bias: Tensor | None, result: torch.dtype) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        self._result = result

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        wanted = -(-rows // _STEP) * _STEP if rows > _FEW else 1 << (rows - 1).bit_length()
        if rows == 0:
            return x.new_empty((0, self._weight.shape[0]), dtype=self._result)
        if wanted != rows:
            x = functional.pad(x, (0, 0, 0, wanted - rows))
        made: Tensor = torch.ops.mkldnn._linear_pointwise(
            x.contiguous(), self._weight, self._bias, "none", [], ""
        )
        return made[:rows].to(self._result)


class ProductTable:
    """The fastest way to multiply by each weight, measured once on this machine and kept.

    Times of another processor, version or number of threads have another key: they are measured
    anew, and so are damaged ones.
    """

    def __init__(self, store: KernelStore | None) -> None:
        self._store = store
        self._key = key_of(measure, (torch.__version__, team().size), {})
        self._times: dict[GemmShape, Times] = {}

    def choice(self, weight: Weight, result: torch.dtype, gate: Gate | None = None) -> GemmChoice:
        """The choice for a weight (out, in), the type of its product and its gate, if any."""
        gated = gate is not None
        [way, *others] = ways_of(weight, gated=gated)
        if not others:
            return GemmChoice([(1, way)])
        return choose(self.times(GemmShape.of(weight, result, gated=gated)))

    def times(self, shape: GemmShape, *, anew: bool = False) -> Times:
        """Measured now, if they never were or are to be anew.

        Of processes that measure at the same time the first one's count for all, so that the same
        model multiplies in the same ways in each.
        """
        timed = shape.timed
        if anew or timed not in self._times:
            self._times = self._kept()
        if anew or timed not in self._times:
            _logger.info(
                "Measuring which products of %d x %d in %s are fastest here, once",
                timed.outputs,
                timed.inputs,
                timed.name,
            )
            made = measure(timed)
            others = {} if anew else self._kept()
            self._times = {**self._times, timed: made, **others}
            if self._store:
                self._store.put(self._key, _written(self._times))
        return self._times[timed]

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


def measure(shape: GemmShape) -> Times:
    """Time all ways. Takes about a second for a shape of a small model.

    They take turns and the least time counts, so that other work on the machine does not choose.
    """
    dtype, result = getattr(torch, shape.dtype), getattr(torch, shape.result)
    weight = _sample(shape, dtype)
    copies = min(1 + _COPIES_BYTES // max(shape.outputs * shape.row_bytes, 1), _MOST_COPIES)
    gate = Gate(TensorOptions(result, torch.device("cpu"))) if shape.gated else None
    products: dict[Way, Iterator[Product]] = {}
    for way in ways_of(weight, gated=shape.gated):
        only = GemmChoice([(1, way)])
        made = [packed(only, _copy(weight), None, dtype, result, gate) for _ in range(copies)]
        products[way] = itertools.cycle(made)
    times: Times = {way: {} for way in products}
    for rows in COUNTS:
        x = torch.empty(rows, shape.inputs, dtype=dtype).normal_()
        at_hand = {way: products[way] for way in products if _is_soon(times[way], rows)}
        for way, seconds in _timed(at_hand, x).items():
            times[way][rows] = seconds
    return times


def _sample(shape: GemmShape, dtype: torch.dtype) -> Weight:
    weight = torch.empty(shape.outputs, shape.inputs, dtype=dtype).normal_()
    if not shape.bits:
        return weight
    made = quantize(weight, bits=shape.bits, group=shape.group)
    made = replace(made, offsets=made.scales if shape.offsets else None, numbers=shape.numbers)
    return with_ones(made, shape.block) if shape.block else made


def _copy(weight: Weight) -> Weight:
    """A copy of a weight that torch would multiply by as it is; panels are copies."""
    return weight.clone() if isinstance(weight, Tensor) else weight


def _is_soon(by_rows: Mapping[int, float], rows: int) -> bool:
    """Whether a call for that many rows may be tried, by the times of fewer."""
    last = max(by_rows, default=0)
    before = COUNTS[max(COUNTS.index(rows) - 1, 0)]
    return not last or (last == before and by_rows[last] * rows / last < _MOST)


def _timed(products: Mapping[Way, Iterator[Product]], x: Tensor) -> dict[Way, float]:
    """Seconds of a call, the least."""
    for product in products.values():
        next(product)(x)
    least = dict.fromkeys(products, math.inf)
    began, turns = time.perf_counter(), 0
    while turns < _LEAST_TURNS or time.perf_counter() - began < _BUDGET:
        for way, product in products.items():
            called, started = next(product), time.perf_counter()
            called(x)
            least[way] = min(least[way], time.perf_counter() - started)
        turns += 1
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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
