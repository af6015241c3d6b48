"""The short causal convolution that layers with states begin with: of each channel its last inputs,
which are a state themselves.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import (
    Lanes,
    emitted,
    inner,
    offset,
    vectors_and_rest,
)
from radixlm.layers.step_states import NOWHERE, StepStates, over_channels
from radixlm.products.compiled import TensorOptions, sigmoid

# Of one row, which a thread takes at once.
_CHANNELS = 256
# Tokens at a time: each input is read once for all of them, each weight, too.
_TOKENS = 4
_INT64 = ir.IntType(64)

_Arguments = namedtuple(
    "_Arguments", "counters rows table channels x stride gates weight bias states slot out"
)


@compiled(_Arguments)
def conv_kernel(
    width: int, *, bfloat16: bool, bias: bool, gated: bool, plain: bool
) -> Callable[[Any], None]:
    """rows: units of work, one for each _CHANNELS of each row of the table, see `scan_kernel`.
    x: `stride` bytes from token to token. weight: (width, channels). out: silu of what is made,
    or plain, float32; gated: of the model's type, multiplied by channels that stand `gates` bytes
    before x, which are multiplied, in place, by those twice as far before first.
    """
    element = 2 if bfloat16 else 4
    several, one = (
        _make_convolve(width, count, bfloat16=bfloat16, bias=bias, gated=gated, plain=plain)
        for count in (_TOKENS, 1)
    )
    multiply, keep = _make_multiply(bfloat16=bfloat16), _make_keep(width, bfloat16=bfloat16)
    out_bytes = element if gated else 4

    @inner
    def convolve_part(
        args: _Arguments, channel: int, first: int, stop: int, slot: int, copy: int
    ) -> None:
        size, at = min(_CHANNELS, args.channels - channel), channel * element
        inputs = (
            args.states + slot * args.slot + at,
            args.x + first * args.stride + at,
            args.channels * element,
            args.stride,
        )
        out = args.out + (first * args.channels + channel) * out_bytes
        weights, step = (args.weight + at, args.bias + at, args.gates), args.channels * out_bytes
        if gated:
            for token in range(stop - first):
                here = inputs[1] + token * args.stride
                multiply(here, here - 2 * args.gates, size)
        whole = (stop - first) // _TOKENS * _TOKENS
        for token in range(0, whole, _TOKENS):
            several(inputs, token, weights, out + token * step, step, size)
        for token in range(whole, stop - first):
            one(inputs, token, weights, out + token * step, step, size)
        if copy >= 0:
            keep(inputs, stop - first, args.states + copy * args.slot + at, size)
        keep(inputs, stop - first, inputs[0], size)

    return over_channels(convolve_part, _CHANNELS)


_INPUTS, _WEIGHTS = (types.UniTuple(types.int64, count) for count in (4, 3))


def _input(builder: ir.IRBuilder, width: int, inputs: Any, token: Any) -> Any:
    """The address of a token's input: in the state, for one before the first."""
    state, x, row_bytes, stride = cgutils.unpack_tuple(builder, inputs)
    place = builder.add(token, ir.Constant(_INT64, width - 1))
    before = builder.add(state, builder.mul(place, row_bytes))
    is_before = builder.icmp_signed("<", token, ir.Constant(_INT64, 0))
    return builder.select(is_before, before, builder.add(x, builder.mul(token, stride)))


def _make_convolve(
    width: int, count: int, *, bfloat16: bool, bias: bool, gated: bool, plain: bool
) -> Any:
    """convolve((state, x, bytes of a row of the state, stride), token, (weight, bias, bytes of
    gates before x), out, bytes from token to token of that, size): of `count` tokens.
    """
    element = 2 if bfloat16 else 4

    def finish(builder: ir.IRBuilder, ops: Lanes, total: Any) -> Any:
        if plain:
            return total
        return builder.fmul(total, sigmoid(builder, ops, total, coarse=bfloat16))

    @emitted(types.void, _INPUTS, types.int64, _WEIGHTS, *[types.int64] * 3)
    def convolve(builder: ir.IRBuilder, *given: Any) -> None:
        inputs, token, weights, out, step, size = given
        weight, bias_at, gates = cgutils.unpack_tuple(builder, weights)
        row_bytes = builder.extract_value(inputs, 2)
        numbers = [ir.Constant(_INT64, number) for number in range(max(width, count))]
        places = [ir.Constant(_INT64, place) for place in range(1 - width, count)]
        taken = [_input(builder, width, inputs, builder.add(token, place)) for place in places]
        taps = [builder.add(weight, builder.mul(row_bytes, tap)) for tap in numbers[:width]]
        into = [builder.add(out, builder.mul(step, number)) for number in numbers[:count]]
        for ops, index in vectors_and_rest(builder, size):

            def load(address: Any, ops: Lanes = ops, index: Any = index) -> Any:
                return ops.load(offset(builder, address, index, element), 0, bfloat16=bfloat16)

            xs, factors = [load(each) for each in taken], [load(each) for each in taps]
            begin = load(bias_at) if bias else ops.all(0)
            for number, its_out in enumerate(into):
                total = begin
                for x, factor in zip(xs[number:], factors, strict=False):
                    total = ops.multiply_add(x, factor, total)
                if gated:
                    gate = load(builder.sub(taken[number + width - 1], gates))
                    made, rounded = builder.fmul(total, gate), bfloat16
                else:
                    made, rounded = finish(builder, ops, total), False
                at = offset(builder, its_out, index, 2 if rounded else 4)
                ops.put(made, at, bfloat16=rounded)

    return convolve


def _make_multiply(*, bfloat16: bool) -> Any:
    """multiply(x, other, size): in place."""
    element = 2 if bfloat16 else 4

    @emitted(types.void, *[types.int64] * 3)
    def multiply(builder: ir.IRBuilder, x: Any, other: Any, size: Any) -> None:
        for ops, index in vectors_and_rest(builder, size):
            at = [offset(builder, each, index, element) for each in (x, other)]
            made = builder.fmul(*(ops.load(each, 0, bfloat16=bfloat16) for each in at))
            ops.put(made, at[0], bfloat16=bfloat16)

    return multiply


def _make_keep(width: int, *, bfloat16: bool) -> Any:
    """keep((state, x, bytes of a row of the state, stride), tokens, into, size): the last inputs
    become a state; in place, as each comes from further on than it goes to.
    """
    element = 2 if bfloat16 else 4

    @emitted(types.void, _INPUTS, *[types.int64] * 3)
    def keep(builder: ir.IRBuilder, inputs: Any, tokens: Any, kept: Any, size: Any) -> None:
        row_bytes = builder.extract_value(inputs, 2)
        for place in range(width - 1):
            token = builder.add(tokens, ir.Constant(_INT64, place - width + 1))
            source = _input(builder, width, inputs, token)
            into = builder.add(kept, builder.mul(row_bytes, ir.Constant(_INT64, place)))
            for ops, index in vectors_and_rest(builder, size):
                at = [offset(builder, each, index, element) for each in (source, into)]
                ops.put(ops.load(at[0], 0, bfloat16=bfloat16), at[1], bfloat16=bfloat16)

    return keep


class CausalConv:
    """A convolution of each channel over its last `width` inputs.

    gated: the inputs are second * conv(first * inner), which lie side by side; else silu of what
    the convolution gives is taken, or plain, that itself.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        options: TensorOptions,
        *,
        bias: bool,
        gated: bool = False,
        plain: bool = False,
    ) -> None:
        self._weight = options.empty(width, channels)  # by tap, as compiled code reads it
        self._bias = options.empty(channels) if bias else None
        self._channels, self._gated, self._plain = channels, gated, plain
        self._worker: Worker | None = None
        if options.known():
            self._worker = Worker(
                conv_kernel(
                    width,
                    bfloat16=options.dtype == torch.bfloat16,
                    bias=bias,
                    gated=gated,
                    plain=plain,
                ),
                channels=channels,
                gates=channels * options.dtype.itemsize if gated else 0,
                weight=self._weight.data_ptr(),
                bias=0 if self._bias is None else self._bias.data_ptr(),
            )

    def __call__(self, x: Tensor, layer: int, states: StepStates) -> Tensor:
        """(tokens, channels) -> the same shape, float32, which lasts until another layer convolves;
        gated, (tokens, 3 x channels), which may be changed -> (tokens, channels) of the same type,
        new. The layer's states take the inputs in.
        """
        kept = states.conv[layer]
        if self._worker is None:
            return self._by_torch(x, kept, states)
        channels, size = self._channels, x.element_size()
        shape = x.shape[0], channels
        made = x.new_empty(shape) if self._gated else states.room(*shape)
        arguments, blocks = self._worker.arguments, -(-channels // _CHANNELS)
        arguments.rows, arguments.table = blocks * states.rows, states.table.data_ptr()
        arguments.x, arguments.stride = x[:, -channels:].data_ptr(), size * x.stride(0)
        arguments.states, arguments.slot = kept.data_ptr(), size * kept.stride(0)
        arguments.out = made.data_ptr()
        self._worker()
        return made

    def _by_torch(self, x: Tensor, kept: Tensor, states: StepStates) -> Tensor:
        if not self._gated:
            made = self._convolved(x, kept, states)
            return (made if self._plain else functional.silu(made)).float()
        first, second, inner = x.chunk(3, dim=1)
        return second * self._convolved(first * inner, kept, states)

    def _convolved(self, x: Tensor, kept: Tensor, states: StepStates) -> Tensor:
        weight, bias = self._weight, self._bias
        made = torch.empty_like(x)
        if states.single.numel():
            seen = torch.cat((kept[states.slots], x[states.single][:, None]), dim=1)
            kept[states.slots] = seen[:, 1:]
            # With one window each a convolution is a product, which torch computes in the same way
            # for any number of rows.
            summed = torch.einsum("nwc,wc->nc", seen, weight)
            made[states.single] = summed if bias is None else summed + bias
        for first, stop, _, slot, copy in states.longer:
            seen = torch.cat((kept[slot], x[first:stop]))
            kept[slot] = seen[stop - first :]
            if copy != NOWHERE:
                kept[copy] = kept[slot]
            taps, groups = weight.t()[:, None], self._channels
            made[first:stop] = functional.conv1d(seen.t()[None], taps, bias, groups=groups)[0].t()
        return made

    def named_weights(self, place: str) -> Iterator[tuple[str, Tensor]]:
        """The weight as checkpoints have it, (channels, 1, width)."""
        yield f"{place}.weight", self._weight.t()[:, None]
        if self._bias is not None:
            yield f"{place}.bias", self._bias
