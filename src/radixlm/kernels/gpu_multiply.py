"""Products with weights in codes, and with one of many weights for each row, on a GPU, in Triton.

Only what runs on a GPU imports this module.

    memory  of TALL outputs by turns STEP bytes of each, so that a program reads one stretch
    byte    an input's code, or in 4 bits two: those of STEP inputs in the low halves, of the next
            STEP in the high ones
    dot     codes as numbers, which any type holds, times rows; then the scales of their group, but
            where there are offsets
"""

from __future__ import annotations

import triton
import triton.language as tl

from radixlm.kernels.gpu_attention import dot


@triton.jit(do_not_specialize=["rows"])
def multiply(
    x,
    codes,
    scales,
    offsets,
    levels,
    bias,
    starts,
    out,
    rows,
    stride,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WEIGHTS: tl.constexpr,
    LISTED: tl.constexpr,
    NUMBERS: tl.constexpr,
    HALVES: tl.constexpr,
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    STEP: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Compute N outputs of M rows of x @ weight^T + bias, a program.

    starts: None, or where each weight's rows begin, and where the last one's end; LISTED is the
    next power of two after WEIGHTS. scales, offsets: of each group a row of outputs; GROUP 0: one
    scale, of all inputs. HALVES: codes of a byte. WIDTH: bytes of an output. S: see `_over`.
    """
    PADDED: tl.constexpr = (OUTPUTS + TALL - 1) // TALL * TALL
    tile = tl.program_id(1)
    weight, first, last = tl.cast(tile * 0, tl.int64), tile * M, rows
    if starts is not None:
        weight, first, last = _weight_of(starts, tile, WEIGHTS, LISTED, M)
    if weight >= WEIGHTS:
        return
    codes += weight * PADDED * WIDTH
    sides = weight * PADDED * (INPUTS // GROUP if GROUP > 0 else 1)
    row, output = first + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N)
    live, known, row = row < last, tl.minimum(output, OUTPUTS - 1), row.to(tl.int64)
    made = _over(
        x, codes, scales, offsets, levels, known, row, live, sides, stride, INPUTS, PADDED,
        NUMBERS, HALVES, ZERO, GROUP, WIDTH, TALL, STEP, S, M, N, PRECISION,
    )  # fmt: skip
    if GROUP == 0 and scales is not None:
        made *= tl.load(scales + sides + known).to(tl.float32)[:, None]
    if bias is not None:
        made += tl.load(bias + weight * OUTPUTS + known).to(tl.float32)[:, None]
    kept = live[None, :] & (output < OUTPUTS)[:, None]
    tl.store(out + row[None, :] * OUTPUTS + output[:, None], made.to(out.dtype.element_ty), kept)


@triton.jit
def _over(
    x,
    codes,
    scales,
    offsets,
    levels,
    output,
    row,
    live,
    sides,
    stride,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    NUMBERS: tl.constexpr,
    HALVES: tl.constexpr,
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    STEP: tl.constexpr,
    S: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Add up over all inputs, (N, M). S: parts of them that are computed side by side: with few
    rows, each by a warp. sides: where the weight's scales begin.
    """
    k = tl.arange(0, STEP)
    if S == 1:
        part, a, b, c, d, e = 0, output[:, None], k[None], k[:, None], row[None], live[None]
        acc = tl.zeros([N, M], tl.float32)
    else:
        part, a, b = tl.arange(0, S)[:, None, None], output[None, :, None], k[None, None, :]
        c, d, e = k[None, :, None], row[None, None, :], live[None, None, :]
        acc = tl.zeros([S, N, M], tl.float32)
    its = codes + (a // TALL).to(tl.int64) * (TALL * WIDTH) + a % TALL * STEP + b
    for turn in range((WIDTH + S * STEP - 1) // (S * STEP)):
        step = part * ((WIDTH + S * STEP - 1) // (S * STEP)) + turn
        byte = tl.load(its + step * (TALL * STEP), step * STEP + b < WIDTH, 0)
        for half in tl.static_range(HALVES):
            begin = (step * HALVES + half) * STEP
            taken = tl.load(x + d * stride + begin + c, e & (begin + c < INPUTS), 0.0)
            code = byte if HALVES == 1 else (byte >> 4 * half) & 15
            numbers = _numbers(code, levels, NUMBERS, ZERO)
            place = sides + begin // GROUP * PADDED + a if GROUP > 0 else 0
            there = begin + 0 * a < INPUTS
            if offsets is not None:  # as exact as weights in the type of the rows
                numbers = numbers.to(tl.float32) * tl.load(scales + place, there, 0.0).to(
                    tl.float32
                )
                numbers += tl.load(offsets + place, there, 0.0).to(tl.float32)
            if GROUP == 0 or offsets is not None:
                acc = dot(numbers.to(taken.dtype), taken, PRECISION, acc)
            else:
                by = tl.load(scales + place, there, 0.0).to(tl.float32)
                acc += dot(numbers.to(taken.dtype), taken, PRECISION) * by
    return acc if S == 1 else tl.sum(acc, 0)


@triton.jit
def _weight_of(starts, tile, WEIGHTS: tl.constexpr, LISTED: tl.constexpr, M: tl.constexpr):
    """Find the weight of a tile of M rows, where these begin, and where all of the weight's end."""
    e = tl.arange(0, LISTED)
    begins = tl.load(starts + e, e < WEIGHTS, 0)
    ends = tl.load(starts + e + 1, e < WEIGHTS, 0)
    tiles = (ends - begins + M - 1) // M
    upto = tl.cumsum(tiles, 0)
    weight = tl.sum((upto <= tile).to(tl.int64), 0)
    first = tl.sum(tl.where(e == weight, begins + (tile - upto + tiles) * M, 0), 0)
    return weight, first, tl.sum(tl.where(e == weight, ends, 0), 0)


@triton.jit
def _numbers(code, levels, NUMBERS: tl.constexpr, ZERO: tl.constexpr):
    """Decode; of floats, whose exponents a float16 has at other places, the rest of their size is
    in the scales: see `products.gpu_products`.
    """
    if NUMBERS == "int":
        made = (code.to(tl.int16) - ZERO).to(tl.float32)
    elif NUMBERS == "e4m3":
        bits = code.to(tl.uint16)
        made = ((bits & 0x80) << 8 | (bits & 0x7F) << 7).to(tl.float16, bitcast=True)
    elif NUMBERS == "e2m1":
        bits = code.to(tl.uint16)
        made = ((bits & 8) << 12 | (bits & 7) << 9).to(tl.float16, bitcast=True)
    elif levels is not None:
        made = tl.load(levels + code)
    else:
        made = code
    return made


@triton.jit
def fill(
    codes,
    scales,
    offsets,
    levels,
    out,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    NUMBERS: tl.constexpr,
    HALVES: tl.constexpr,
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    TALL: tl.constexpr,
    STEP: tl.constexpr,
):
    """Write the numbers of a weight: a program those of TALL outputs and STEP bytes."""
    tile, step, n = tl.program_id(1).to(tl.int64), tl.program_id(0), tl.arange(0, TALL)[:, None]
    k, output = tl.arange(0, STEP)[None, :], tile * TALL + tl.arange(0, TALL)[:, None]
    byte = tl.load(codes + tile * (TALL * WIDTH) + (step * TALL + n) * STEP + k)
    for half in tl.static_range(HALVES):
        begin = (step * HALVES + half) * STEP
        code = byte if HALVES == 1 else (byte >> 4 * half) & 15
        made = _numbers(code, levels, NUMBERS, ZERO).to(tl.float32)
        place = output if GROUP == 0 else begin // GROUP * tl.num_programs(1) * TALL + output
        there = begin + 0 * output < INPUTS
        made *= tl.load(scales + place, there, 0.0).to(tl.float32)
        if offsets is not None:
            made += tl.load(offsets + place, there, 0.0).to(tl.float32)
        kept = (begin + k < INPUTS) & (output < OUTPUTS)
        tl.store(out + output * INPUTS + begin + k, made.to(out.dtype.element_ty), kept)
