"""The ways to multiply by a weight on this machine, and which is the fastest for how many rows.

A weight has one layout; some layouts are read in several ways:

    layout     way          by
    panels     tiles        our own code, AMX
    panels     vectors      our own code, AVX2 or AVX-512
    onednn     onednn       oneDNN, with the weight in the order that it asks for
    rows       torch        whatever torch does with the weight as it is

Which is best no list of processors says: each is timed once, see `product_table`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.openmp import team
from radixlm.products import quantized_products
from radixlm.products.compiled import Gate, Gated
from radixlm.products.panel_products import Form, PanelProduct, forms_of
from radixlm.products.quantized import BYTES, Numbers, QuantizedWeight
from radixlm.products.quantized_products import QuantizedProduct

Way = Literal["tiles", "vectors", "onednn", "torch"]
Layout = Literal["panels", "onednn", "rows"]
LAYOUTS: dict[Way, Layout] = {
    "tiles": "panels",
    "vectors": "panels",
    "onednn": "onednn",
    "torch": "rows",
}
# Numbers of a weight, for each thread, by which larger ones are timed.
_TIMED_NUMBERS = 1 << 21
# Rows that oneDNN compiles code for: it does so anew for each number, and keeps it.
_FEW, _STEP = 64, 64


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
    def timed(self) -> GemmShape:
        """The shape that stands for it when products are timed: its first outputs."""
        most = max(_TIMED_NUMBERS * team().size // self.inputs // 64, 1) * 64
        return self._replace(outputs=min(self.outputs, most))


Product = Callable[[Tensor], Tensor]


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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
