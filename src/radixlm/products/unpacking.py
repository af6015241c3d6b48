"""Fields of a few bits taken out of bytes, compiled: what blocks of files hold side by side."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixlm.kernels.jit import compiled
from radixlm.kernels.openmp import Worker
from radixlm.kernels.vectors import inner, octets, over_rows

_Bytes = NDArray[np.uint8]
_BLOCKS_PER_UNIT = 256


def parts(field: _Bytes, run: int, bits: int) -> _Bytes:
    """(blocks, n) -> (blocks, n x 8 / bits): of each `run` bytes the lowest bits, then the next.
    field: bytes of a block one after the other, blocks with any stride.
    """
    blocks, size = field.shape
    made = np.empty((blocks, size * 8 // bits), np.uint8)
    Worker(
        parts_kernel(run, bits),
        rows=blocks,
        size=size,
        field=field.ctypes.data,
        stride=field.strides[0],
        into=made.ctypes.data,
    )()
    return made


_Arguments = namedtuple("_Arguments", "counters rows size field stride into")


@compiled(_Arguments)
def parts_kernel(run: int, bits: int) -> Callable[[Any], None]:
    """See `parts`. size: bytes of a block's field."""
    each, mask = 8 // bits, (1 << bits) - 1

    @inner
    def block(args: Any, index: int) -> None:
        field, into = args.field + index * args.stride, args.into + index * args.size * each
        for at in range(0, args.size, run):
            for part in range(each):
                for i in range(run):
                    made = octets(field + at)[i] >> part * bits & mask
                    octets(into + at * each + part * run)[i] = np.uint8(made)

    return over_rows(block, _BLOCKS_PER_UNIT)
