"""Small operations of layers with states, compiled for the CPU: how states fade, and the gates of
what was read.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker, threads_for
from radixlm.kernels.vectors import (
    MOST_LANES,
    Lanes,
    emitted,
    float_of_bits,
    inner,
    offset,
    over_rows,
    vectors_and_rest,
)
from radixlm.layers.linear import bits_of
from radixlm.products.compiled import TensorOptions, sigmoid

GateNorm = Literal["before", "after", ""]
OutputActivation = Literal["silu", "sigmoid"]
ROWS_PER_UNIT = 16
_INT64 = ir.IntType(64)
# Of a rate's logarithm: with more, as with this, nothing is left of a state.
_MOST_RATE = 87.0
# Of log(1 + y) = 2 (s + s^3 / 3 + ..), s = y / (2 + y) <= 1/3: the error is 1e-8.
_TERMS = 7

_DecayArguments = namedtuple(
    "_DecayArguments", "counters rows width steps betas stride most rate bias decay beta"
)


@compiled(_DecayArguments)
def decay_kernel(*, bfloat16: bool, betas: bool) -> Callable[[Any], None]:
    """decay = -e^rate softplus(step + bias), of rows of `width`, `stride` bytes apart; beta: the
    sigmoid of a row of `betas` times the float32 with the bits of `most`, or without them the
    softplus.
    """
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 7, types.float32)
    def fade(builder: ir.IRBuilder, *given: Any) -> None:
        steps, its_betas, rate, bias, decay, beta, width, most = given
        for ops, index in vectors_and_rest(builder, width):

            def at(address: Any, size: int = 4, index: Any = index) -> Any:
                return offset(builder, address, index, size)

            step = ops.load(at(steps, element), 0, bfloat16=bfloat16)
            size = _softplus(builder, ops, builder.fadd(step, ops.load(at(bias), 0)))
            rate_log, most_log = ops.load(at(rate), 0), ops.all(_MOST_RATE)
            is_more = builder.fcmp_ordered(">", rate_log, most_log)
            rates = ops.exp(builder.select(is_more, most_log, rate_log))
            ops.store(builder.fsub(ops.all(0), builder.fmul(rates, size)), at(decay), 0)
            if betas:
                number = ops.load(at(its_betas, element), 0, bfloat16=bfloat16)
                part = sigmoid(builder, ops, number, coarse=False)
                size = builder.fmul(part, ops.spread(most))
            ops.store(size, at(beta), 0)

    @inner
    def row(args: _DecayArguments, index: int) -> None:
        by, into = index * args.stride, 4 * index * args.width
        steps, betas, most = args.steps + by, args.betas + by, float_of_bits(np.int32(args.most))
        decay, beta = args.decay + into, args.beta + into
        fade(steps, betas, args.rate, args.bias, decay, beta, args.width, most)

    return over_rows(row, ROWS_PER_UNIT)


def _softplus(builder: ir.IRBuilder, ops: Lanes, x: Any) -> Any:
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|)."""
    zero, minus = ops.all(0), builder.fsub(ops.all(0), x)
    is_above = builder.fcmp_ordered(">", x, zero)
    power = ops.exp(builder.select(is_above, minus, x))
    part = builder.fdiv(power, builder.fadd(power, ops.all(2)))
    square, total = builder.fmul(part, part), ops.all(0)
    for term in reversed(range(_TERMS)):
        total = ops.multiply_add(total, square, ops.all(2 / (2 * term + 1)))
    return ops.multiply_add(total, part, builder.select(is_above, x, zero))


class Decays:
    """Decays of states at a token, by the size of its step; and how much of its change it adds.

    rate, bias: (heads,) float32, filled later. most: that betas can be; 0: there are none.
    """

    def __init__(
        self, rate: Tensor, bias: Tensor, options: TensorOptions, *, most: float = 0.0
    ) -> None:
        self._rate, self._bias, self._most = rate, bias, most
        self._worker: Worker | None = None
        if options.known():
            bfloat16 = options.dtype == torch.bfloat16
            self._worker = Worker(
                decay_kernel(bfloat16=bfloat16, betas=most != 0),
                most=bits_of(most),
                rate=rate.data_ptr(),
                bias=bias.data_ptr(),
            )

    def __call__(self, steps: Tensor, betas: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(tokens, heads), of one tensor -> logarithms of decays, and betas, of which sigmoids are
        taken, or without them the sizes of steps: both (tokens, heads) float32, new.
        """
        if self._worker is None:
            sizes = functional.softplus(steps.float() + self._bias)
            beta = sizes if betas is None else betas.float().sigmoid() * self._most
            return -self._rate.exp() * sizes, beta
        decay, beta = torch.empty((2, *steps.shape))
        arguments = self._worker.arguments
        arguments.rows, arguments.width = steps.shape
        arguments.steps, arguments.stride = steps.data_ptr(), steps.element_size() * steps.stride(0)
        arguments.betas = 0 if betas is None else betas.data_ptr()
        arguments.decay, arguments.beta = decay.data_ptr(), beta.data_ptr()
        self._worker(threads_for(steps.shape[0], ROWS_PER_UNIT))
        return decay, beta


_GateArguments = namedtuple(
    "_GateArguments", "counters rows groups width read gate stride weight weight_step eps out"
)


@compiled(_GateArguments)
def output_gate_kernel(
    norm: GateNorm, kind: OutputActivation, *, bfloat16: bool
) -> Callable[[Any], None]:
    """out = kind(gate) * read, of rows of `groups` of `width` numbers, those of gates `stride`
    bytes apart; normed before or after that by a weight, `weight_step` bytes from group to group.
    eps: the bits of a float32.
    """
    element = 2 if bfloat16 else 4

    def gated(builder: ir.IRBuilder, ops: Lanes, x: Any, gate: Any, index: Any) -> Any:
        at = offset(builder, gate, index, element)
        its = ops.load(at, 0, bfloat16=bfloat16)
        part = sigmoid(builder, ops, its, coarse=bfloat16)
        return builder.fmul(x, builder.fmul(its, part) if kind == "silu" else part)

    @emitted(types.float32, *[types.int64] * 3)
    def squares(builder: ir.IRBuilder, read: Any, gate: Any, width: Any) -> Any:
        """The sum of squares of what is normed, which is then where `read` is."""
        both = [Lanes(builder, lanes) for lanes in (MOST_LANES, 1)]
        sums = [cgutils.alloca_once_value(builder, ops.all(0)) for ops in both]
        for (ops, index), total in zip(vectors_and_rest(builder, width), sums, strict=True):
            at = offset(builder, read, index, 4)
            x = ops.load(at, 0)
            if norm == "after":
                x = gated(builder, ops, x, gate, index)
                ops.store(x, at, 0)
            builder.store(ops.multiply_add(x, x, builder.load(total)), total)
        one, other = (ops.sum(builder.load(total)) for ops, total in zip(both, sums, strict=True))
        return builder.fadd(one, other)

    @emitted(types.void, *[types.int64] * 3, types.float32, *[types.int64] * 2)
    def put(builder: ir.IRBuilder, *given: Any) -> None:
        read, gate, weight, factor, out, width = given
        for ops, index in vectors_and_rest(builder, width):
            x = ops.load(offset(builder, read, index, 4), 0)
            if norm:
                weights = ops.load(offset(builder, weight, index, element), 0, bfloat16=bfloat16)
                x = builder.fmul(builder.fmul(x, ops.spread(factor)), weights)
            if norm != "after":
                x = gated(builder, ops, x, gate, index)
            ops.put(x, offset(builder, out, index, element), bfloat16=bfloat16)

    @inner
    def row(args: _GateArguments, index: int) -> None:
        for group in range(args.groups):
            at, factor = (index * args.groups + group) * args.width, np.float32(1)
            read, weight = args.read + 4 * at, args.weight + group * args.weight_step
            gate = args.gate + index * args.stride + group * args.width * element
            if norm:
                mean = squares(read, gate, args.width) / np.float32(args.width)
                factor = factor / np.sqrt(mean + float_of_bits(np.int32(args.eps)))
            put(read, gate, weight, factor, args.out + at * element, args.width)

    return over_rows(row, ROWS_PER_UNIT)


class OutputGate:
    """Gates, whose silu or sigmoid multiplies what was read; that is normed before or after it, or
    not at all.

    groups: how many are normed, and their numbers. weight: of one group or of all, filled later.
    """

    def __init__(
        self,
        groups: tuple[int, int],
        weight: Tensor,
        norm: GateNorm,
        eps: float,
        options: TensorOptions,
        kind: OutputActivation = "silu",
    ) -> None:
        self._groups, self._weight, self._norm, self._eps = groups, weight, norm, eps
        self._kind = kind
        self._worker: Worker | None = None
        if options.known():
            self._worker = Worker(
                output_gate_kernel(norm, kind, bfloat16=options.dtype == torch.bfloat16),
                groups=groups[0],
                width=groups[1],
                weight=weight.data_ptr(),
                weight_step=groups[1] * weight.itemsize * (weight.numel() > groups[1]),
                eps=bits_of(eps),
            )

    def __call__(self, read: Tensor, gate: Tensor) -> Tensor:
        """read: (tokens, numbers) float32, contiguous, which may be changed. gate: the same shape,
        of the model's type. Returns that shape and type, new.
        """
        if self._worker is None:
            return self._by_torch(read, gate)
        out = torch.empty_like(read, dtype=gate.dtype)
        arguments = self._worker.arguments
        arguments.rows, arguments.read, arguments.out = len(read), read.data_ptr(), out.data_ptr()
        arguments.gate, arguments.stride = gate.data_ptr(), gate.element_size() * gate.stride(0)
        self._worker(threads_for(len(read), ROWS_PER_UNIT))
        return out

    def _by_torch(self, read: Tensor, gate: Tensor) -> Tensor:
        wide = gate.float()
        made = functional.silu(wide) if self._kind == "silu" else wide.sigmoid()
        match self._norm:
            case "after":
                made = self._normed(read * made)
            case "before":
                made = self._normed(read) * made
            case "":
                made = read * made
        return made.to(gate.dtype)

    def _normed(self, x: Tensor) -> Tensor:
        grouped = x.unflatten(1, self._groups)
        normed = functional.rms_norm(grouped, grouped.shape[2:], None, self._eps)
        return (normed * self._weight.float().view(-1, self._groups[1])).flatten(1)
