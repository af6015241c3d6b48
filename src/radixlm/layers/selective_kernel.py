"""The scan of `selective_scan`, compiled: all tokens of a row in one channel, then the next; a
channel's state stays in registers.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from radixlm.kernels.jit import compiled
from radixlm.kernels.strips import VECTOR_LANES
from radixlm.kernels.vectors import Lanes, emitted, inner, lanes_of
from radixlm.layers.step_states import over_channels

# Numbers of a state that registers, or the nearest cache, hold.
MOST_NUMBERS = 256
# Of one row, which a thread takes at once.
CHANNELS = 32

_Arguments = namedtuple(
    "_Arguments",
    "counters rows table channels repeats queries keys stride values steps decay states slot read",
)


@compiled(_Arguments)
def selective_kernel(key: int) -> Callable[[Any], None]:
    """rows: units of work, one for each CHANNELS of each row of the table, see `scan_kernel`; a
    state has `key` numbers. queries, keys: `stride` bytes from token to token, each that of
    `repeats` channels. values, steps, read: of tokens and channels, contiguous.
    """
    key_bytes, take = 4 * key, _make_take(key)

    @inner
    def scan_part(
        args: _Arguments, begin: int, first: int, stop: int, slot: int, copy: int
    ) -> None:
        copy = slot if copy < 0 else copy
        for channel in range(begin, min(begin + CHANNELS, args.channels)):
            of_head = first * args.stride + channel // args.repeats * key_bytes
            own = 4 * (first * args.channels + channel)
            state = args.states + channel * key_bytes
            take(
                (state + slot * args.slot, state + copy * args.slot),
                args.decay + channel * key_bytes,
                (args.queries + of_head, args.keys + of_head),
                (args.values + own, args.steps + own, args.read + own),
                stop - first,
                (args.stride, 4 * args.channels),
            )

    return over_channels(scan_part, CHANNELS)


def _make_take(key: int) -> Any:
    """take((state, copy of it after), decay, (queries, keys), (values, steps, read), tokens, (bytes
    from token to token of the former, of the latter)).
    """
    two, three = (types.UniTuple(types.int64, count) for count in (2, 3))

    @emitted(types.void, two, types.int64, two, three, types.int64, two)
    def take(builder: ir.IRBuilder, *given: Any) -> None:
        states, decay, of_head, own, tokens, by = given
        state, copy = _each(builder, states)
        ops, one = Lanes(builder, min(lanes_of(key), VECTOR_LANES)), Lanes(builder, 1)
        places = range(0, key, ops.lanes)
        rates = [ops.load(decay, place) for place in places]
        kept = [cgutils.alloca_once_value(builder, ops.load(state, place)) for place in places]
        strides = cgutils.unpack_tuple(builder, by)
        with cgutils.for_range(builder, tokens) as loop:
            ahead = [builder.mul(loop.index, stride) for stride in strides]
            queries, keys = (builder.add(at, ahead[0]) for at in _each(builder, of_head))
            values, steps, read = (builder.add(at, ahead[1]) for at in _each(builder, own))
            size, total = ops.load_one(steps, 0), ops.all(0)
            change = builder.fmul(size, ops.load_one(values, 0))
            for place, rate, at in zip(places, rates, kept, strict=True):
                left = builder.fmul(builder.load(at), ops.exp(builder.fmul(size, rate)))
                made = ops.multiply_add(change, ops.load(keys, place), left)
                builder.store(made, at)
                total = ops.multiply_add(made, ops.load(queries, place), total)
            one.store(one.spread(ops.sum(total)), read, 0)
        for place, at in zip(places, kept, strict=True):
            ops.store(builder.load(at), state, place)
            ops.store(builder.load(at), copy, place)

    return take


def _each(builder: ir.IRBuilder, addresses: Any) -> list[Any]:
    found: list[Any] = cgutils.unpack_tuple(builder, addresses)
    return found
