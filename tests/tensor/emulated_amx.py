"""AMX where there is none: its instructions as plain loops, so that what is written with them is
tested on every machine. A pytest plugin (`-p tests.tensor.emulated_amx`), on one thread: tiles are
variables of the module that they are compiled into.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from llvmlite import ir
from numba.core import cgutils

from radixlm.kernels import amx
from radixlm.kernels.vectors import call

TILES, ROWS, ROW_BYTES, UNITS = 8, 16, 64, 16
_INT8, _INT32, _INT64, _FLOAT = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
_ROWS_IN_CONFIG = 48


def emulated(
    builder: ir.IRBuilder, name: str, result: Any, args: Sequence[Any], flags: Sequence[str] = ()
) -> Any:
    """In place of `call`."""
    kind = name.removeprefix("llvm.x86.")
    if kind == "ldtilecfg":
        _configure(builder, *args)
    elif kind == "tilezero":
        cgutils.memset(builder, _tile(builder, *args), _number(ROWS * ROW_BYTES), 0)
    elif kind in ("tileloadd64", "tileloaddt164"):
        for here, row in _rows(builder, *args):
            cgutils.raw_memcpy(builder, row, here, _number(ROW_BYTES), 1)
    elif kind == "tilestored64":
        for here, row in _rows(builder, *args):
            cgutils.raw_memcpy(builder, here, row, _number(ROW_BYTES), 1)
    elif kind == "tdpbf16ps":
        _multiply(builder, *args, add_pairs)
    elif kind == "tdpbsud":
        _multiply(builder, *args, add_bytes)
    elif kind != "tilerelease":
        return call(builder, name, result, args, flags)
    return None


def _number(value: int) -> Any:
    return ir.Constant(_INT64, value)


def _memory(builder: ir.IRBuilder, name: str, size: int) -> Any:
    known = builder.module.globals.get(name)
    if known is None:
        known = ir.GlobalVariable(builder.module, ir.ArrayType(_INT8, size), name)
        # One for all modules of a kernel: each inner function has its own.
        known.linkage = "linkonce_odr"
        known.initializer = ir.Constant(known.value_type, None)
    return builder.bitcast(known, _INT8.as_pointer())


def _tile(builder: ir.IRBuilder, tile: Any) -> Any:
    start = builder.mul(builder.zext(tile, _INT64), _number(ROWS * ROW_BYTES))
    return builder.gep(_memory(builder, "tiles", TILES * ROWS * ROW_BYTES), [start])


def _configure(builder: ir.IRBuilder, config: Any) -> None:
    rows = _memory(builder, "rows_of_tiles", TILES)
    cgutils.raw_memcpy(
        builder, rows, builder.gep(config, [_number(_ROWS_IN_CONFIG)]), _number(TILES), 1
    )
    tiles = _memory(builder, "tiles", TILES * ROWS * ROW_BYTES)
    cgutils.memset(builder, tiles, _number(TILES * ROWS * ROW_BYTES), 0)


def _height(builder: ir.IRBuilder, tile: Any) -> Any:
    place = builder.gep(_memory(builder, "rows_of_tiles", TILES), [builder.zext(tile, _INT64)])
    return builder.zext(builder.load(place), _INT64)


def _rows(builder: ir.IRBuilder, tile: Any, memory: Any, stride: Any) -> Iterator[tuple[Any, Any]]:
    """Each row's place in memory, and in the tile."""
    start = _tile(builder, tile)
    with cgutils.for_range(builder, _height(builder, tile)) as loop:
        there = builder.gep(memory, [builder.mul(loop.index, stride)])
        yield there, builder.gep(start, [builder.mul(loop.index, _number(ROW_BYTES))])


def _multiply(builder: ir.IRBuilder, c: Any, a: Any, b: Any, add: Any) -> None:
    sums, left, right = (_tile(builder, tile) for tile in (c, a, b))

    def unit(tile: Any, row: Any, column: Any) -> Any:
        at = builder.add(builder.mul(row, _number(UNITS)), column)
        return builder.gep(builder.bitcast(tile, _INT32.as_pointer()), [at])

    with (
        cgutils.for_range(builder, _height(builder, c)) as m,
        cgutils.for_range(builder, _number(UNITS)) as n,
    ):
        at = unit(sums, m.index, n.index)
        with cgutils.for_range(builder, _height(builder, b)) as k:
            units = unit(left, m.index, k.index), unit(right, k.index, n.index)
            made = add(builder, builder.load(at), *map(builder.load, units))
            builder.store(made, at)


def add_pairs(builder: ir.IRBuilder, total: Any, x: Any, y: Any) -> Any:
    """Of bfloat16 numbers, in float32."""

    def numbers(pair: Any) -> list[Any]:
        bits = builder.shl(pair, pair.type(16)), builder.and_(pair, pair.type(-1 << 16))
        return [builder.bitcast(half, _FLOAT) for half in bits]

    made = builder.bitcast(total, _FLOAT)
    for one, other in zip(numbers(x), numbers(y), strict=True):
        made = builder.fadd(made, builder.fmul(one, other))
    return builder.bitcast(made, _INT32)


def add_bytes(builder: ir.IRBuilder, total: Any, x: Any, y: Any) -> Any:
    """Signed bytes times unsigned ones."""
    for place in range(4):
        at = _INT32(8 * place)
        one = builder.sext(builder.trunc(builder.lshr(x, at), _INT8), _INT32)
        other = builder.zext(builder.trunc(builder.lshr(y, at), _INT8), _INT32)
        total = builder.add(total, builder.mul(one, other))
    return total


# Files whose float32 rows are multiplied as bytes, by tiles as well.
BYTES = ("test_quantized.py", "test_few_tokens.py", "test_experts.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """More threads than one would share the tiles; float32 has none, so that AVX-512's own set has
    tested it.
    """
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            threads = item.callspec.params.get("threads", 1)
            if isinstance(threads, int) and threads > 1:
                item.add_marker(pytest.mark.skip(reason="one thread has the tiles"))
            plain = item.callspec.params.get("dtype") == torch.float32
            if plain and item.path.name not in BYTES:
                item.add_marker(pytest.mark.skip(reason="no tiles of float32"))


amx.call = emulated  # type: ignore[attr-defined]
amx.has_tiles = lambda _kind=None: True  # type: ignore[assignment]
torch.set_num_threads(1)
