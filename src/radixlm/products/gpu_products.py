"""Products on a GPU with weights in codes, and of rows that each have one of several weights.

rows, sorted by weight     0 0 | 1 1 1 | 4     starts: 0 2 5 5 5 6, which stay on the device
tiles of rows              at most as many as weights, and rows / M: those beyond do nothing
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.gpu_launch import Launch, aligned, has_kernels, power_of_two
from radixlm.products.quantized import LEVELS, QuantizedWeight

# Outputs that lie by turns in memory; the most and the fewest inputs of a dot.
_TALL, _MOST, _LEAST = 64, 64, 16
# With more rows it pays to write out the numbers, for torch's product.
_MOST_ROWS = 256
# By which exponents of floats are off where their bits are a float16's.
_OFF = {"e4m3": 2.0**8, "e2m1": 2.0**14}
_NEAR = 2.0**-10


class Shared(NamedTuple):
    """The rows of each weight: where they begin, and where the last one's end, int32; and of each
    row its weight's number.
    """

    starts: Tensor
    weights: Tensor


class _Memory(NamedTuple):
    """Weights as kernels read them, of each the same. codes: (weights, ...); scales, offsets:
    (weights, groups, outputs) where these are codes; bias: (weights, outputs).
    """

    codes: Tensor
    scales: Tensor | None
    offsets: Tensor | None
    levels: Tensor | None
    bias: Tensor | None


def knows(weight: QuantizedWeight) -> bool:
    """Whether kernels multiply by these codes, where there are kernels."""
    return weight.is_whole or weight.group % _LEAST == 0


class GpuProduct:
    """x times the transposed weight, plus the bias; in the type of the result."""

    def __init__(self, memory: _Memory, constants: dict[str, Any], result: torch.dtype) -> None:
        self._memory, self._constants, self._result = memory, constants, result
        self.outputs = constants["OUTPUTS"]
        self._multiply: Launch | None = None
        device = memory.codes.device
        if has_kernels(device.type):
            kernels = importlib.import_module("radixlm.kernels.gpu_multiply")
            self._multiply, self._fill = Launch(kernels.multiply), Launch(kernels.fill)
        self._wide = device.type != "cuda"  # by Triton's interpreter

    @classmethod
    def coded(
        cls,
        weight: QuantizedWeight,
        bias: Tensor | None,
        dtype: torch.dtype,
        result: torch.dtype,
        device: torch.device,
    ) -> GpuProduct:
        """Lay out a weight that it `knows`. dtype: of rows."""
        weight = weight.on(device)
        outputs, inputs = weight.shape
        four = weight.bits <= 4
        group = 0 if weight.is_whole else weight.group
        step = min(group & -group or _MOST, _MOST)
        whole = step * (2 if four else 1)
        padded, width = -(-outputs // _TALL) * _TALL, -(-inputs // whole) * whole
        codes = functional.pad(weight.codes, (0, width - inputs, 0, padded - outputs))
        if four:
            low, high = codes.view(padded, -1, 2, step).unbind(2)
            codes = (low | high << 4).flatten(1)
        tiles = codes.view(padded // _TALL, _TALL, -1, step).transpose(1, 2).contiguous()
        scales = weight.scales * _OFF.get(weight.numbers, 1.0)
        offsets = None if weight.offsets is None else _small(weight.offsets, dtype, padded)
        levels = None
        if weight.numbers not in ("int", *_OFF):
            levels = torch.tensor(LEVELS[weight.numbers], dtype=torch.float32, device=device)
        biases = None if bias is None else bias[None]
        sides = _small(scales, dtype, padded), offsets, levels, biases
        memory = _Memory(tiles[None], *sides)
        constants = _constants(outputs, inputs) | {
            "NUMBERS": weight.numbers,
            "HALVES": 2 if four else 1,
            "ZERO": weight.zero,
            "GROUP": group,
            "WIDTH": codes.shape[1],
            "TALL": _TALL,
            "STEP": step,
        }
        return cls(memory, constants, result)

    @classmethod
    def plain(cls, weight: Tensor, bias: Tensor | None, result: torch.dtype) -> GpuProduct:
        """Take weights (weights, out, in) as they are, and biases (weights, out)."""
        _, outputs, inputs = weight.shape
        memory = _Memory(weight, None, None, None, bias)
        return cls(memory, _constants(outputs, inputs), result)

    @classmethod
    def joined(cls, products: Sequence[GpuProduct]) -> GpuProduct | None:
        """All weights of products; None: they are not alike."""
        first = products[0]
        if any(each._alike != first._alike for each in products):
            return None
        of_each = zip(*(product._memory for product in products), strict=True)
        memory = _Memory._make(None if of[0] is None else torch.cat(of) for of in of_each)
        memory = memory._replace(levels=first._memory.levels)
        return cls(memory, first._constants, first._result)

    @property
    def _alike(self) -> object:
        """Sides in 16 bits and others become one of 32."""
        return self._constants, self._result, [part is None for part in self._memory]

    def __call__(self, x: Tensor, shared: Shared | None = None) -> Tensor:
        """(rows, in) -> (rows, out). shared: the rows of each weight, where there are several.

        Raises RuntimeError without kernels for one weight alone.
        """
        memory, rows = self._memory, x.shape[0]
        if self._multiply is None and shared is not None:  # without Triton weights are no codes
            made = torch._grouped_mm(x, memory.codes.transpose(1, 2), offs=shared.starts[1:])
            return made if memory.bias is None else made + memory.bias[shared.weights]
        if self._multiply is None:
            raise RuntimeError("a product of one weight, without codes, is torch's")
        if x.stride(1) != 1:
            x = x.contiguous()
        if shared is None and rows > _MOST_ROWS:
            return self._filled(x)
        count = len(memory.codes)
        most = 32 if x.dtype == torch.float32 else 64
        m = min(max(power_of_two(max(rows // count, 1)), 16), most)
        tiles = -(-rows // m) if shared is None else min(count, rows) + rows // m
        # Of many rows more outputs at a time; of few, parts of the inputs, so that all of the GPU
        # has something to do.
        parts, n = (1, 64) if m == 64 else (4, 32 if m == 16 else 16)
        out = x.new_empty((rows, self.outputs), dtype=self._result)
        starts = None if shared is None else shared.starts
        given = x, *memory, starts, out, rows, x.stride(0)
        precision = "wide" if self._wide else "tf32x3" if x.dtype == torch.float32 else "tf32"
        constants = {"WEIGHTS": count, "LISTED": power_of_two(count), "PRECISION": precision}
        self._multiply(
            (m, x.stride(0), aligned(x), starts is None),
            (-(-self.outputs // n), tiles),
            given,
            self._constants | constants | {"S": parts, "M": m, "N": n},
            num_warps=4,
            num_stages=2 if x.dtype == torch.float32 else 3 if m == 32 else 4,
        )
        return out

    def _filled(self, x: Tensor) -> Tensor:
        memory, constants = self._memory, self._constants
        made = x.new_empty(self.outputs, constants["INPUTS"])
        step, tall = constants["STEP"], constants["TALL"]
        grid = constants["WIDTH"] // step, -(-self.outputs // tall)
        given = *memory[:-1], made
        self._fill((), grid, given, constants, num_warps=4)
        bias = None if memory.bias is None else memory.bias[0]
        return functional.linear(x, made, bias).to(self._result)


def _constants(outputs: int, inputs: int) -> dict[str, Any]:
    """Name what kernels know of weights that are no codes."""
    return {
        "INPUTS": inputs,
        "OUTPUTS": outputs,
        "NUMBERS": "plain",
        "HALVES": 1,
        "ZERO": 0,
        "GROUP": 0,
        "WIDTH": inputs,
        "TALL": 1,
        "STEP": 32,
    }


def _small(side: Tensor, dtype: torch.dtype, padded: int) -> Tensor:
    """(out, groups) -> (1, groups, padded), in 16 bits where rows are and that is near enough."""
    side = functional.pad(side, (0, 0, 0, padded - len(side))).t().contiguous()
    kinds = (torch.bfloat16, torch.float16) if dtype != torch.float32 else ()
    for kind in kinds:
        if torch.allclose(side.to(kind).float(), side, rtol=_NEAR, atol=0):
            side = side.to(kind)
            break
    return side.unsqueeze(0)
