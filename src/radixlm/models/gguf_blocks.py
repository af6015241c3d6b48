"""Blocks of GGUF's quantized types as codes with scales: exactly what they stand for. Types of
three bits and fewer with tables of their own are only made floats (`widened`).

A block is a stretch of a row; its bytes are fields one after the other, little-endian:

    Q8_0  d f16 | 32 signed codes
    Q4_0  d f16 | 32 codes in halves of bytes: first all low ones, then all high ones
    Q4_1  d f16 | m f16 | codes as in Q4_0
    Q5_0  as Q4_0, Q5_1 as Q4_1, and before the codes the fifth bit of each
    Q4_K  d f16 | dmin f16 | 8 scales, 8 minima in 6 bits | 256 codes, groups of 32
    Q5_K  the same, and before the codes a fifth bit each
    Q6_K  256 codes: 4 bits, 2 bits | 16 signed scales | d f16, groups of 16
    Q2_K  16 scales, 16 minima in halves of bytes | 256 codes of 2 bits, groups of 16 | d f16 | dmin
    Q3_K  256 codes: a third bit, 2 bits | 16 scales in 6 bits, less 32 | d f16, groups of 16
    IQ4_NL  as Q4_0, but a code stands for one of 16 signed bytes
    IQ4_XS  d f16 | 8 scales' high 2 bits | low 4 bits | 256 codes as in IQ4_NL, groups of 32
    MXFP4   an exponent of 2 | 32 codes as in Q4_0, which stand for E2M1 floats

Types with `d` for 256 values have scales that are multiples of it: `QuantizedWeight.steps`.
Format: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from radixlm.core.errors import CheckpointError
from radixlm.formats.gguf_file import BlockType
from radixlm.products.quantized import BYTES, MIDDLE, Numbers, QuantizedWeight
from radixlm.products.unpacking import parts

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_FOUR = np.uint8(4)


class _Decoded(NamedTuple):
    """codes: (blocks, values). scales: (blocks, groups), and likewise what is added, if something
    is. steps: (blocks, 1 or 2), if these are multiples.
    """

    codes: _Bytes
    scales: _Floats
    added: _Floats | None = None
    steps: _Floats | None = None


class _Decoder(NamedTuple):
    """decode: of blocks (n, bytes). zero: see `QuantizedWeight`."""

    decode: Callable[[_Bytes], _Decoded]
    bits: int
    zero: int = 0
    numbers: Numbers = "int"


def quantized_weight(kind: BlockType, data: _Bytes, outputs: int, inputs: int) -> QuantizedWeight:
    """The weight (outputs, inputs) that the blocks of one of DECODERS stand for."""
    decoder = DECODERS[kind.name]
    with np.errstate(all="ignore"):  # what is no number is found by `QuantizedWeight.check`
        codes, scales, added, steps = decoder.decode(data.reshape(-1, kind.nbytes))
    return QuantizedWeight(
        torch.from_numpy(codes.reshape(outputs, inputs)),
        torch.from_numpy(scales.reshape(outputs, -1)),
        None if added is None else torch.from_numpy(added.reshape(outputs, -1)),
        decoder.bits,
        decoder.zero,
        decoder.numbers,
        None if steps is None else torch.from_numpy(steps.reshape(outputs, -1, steps.shape[1])),
    )


def bytes_per_number(kind: BlockType, dtype: torch.dtype) -> float:
    """Bytes that a number of a product's weight takes in memory, with its part of the scales, which
    are in 16 bits there, or bytes with steps. dtype: of those that are made floats.
    """
    if kind.name not in DECODERS:
        return dtype.itemsize
    decoder = DECODERS[kind.name]
    codes, scales, added, steps = decoder.decode(np.zeros((1, kind.nbytes), np.uint8))
    pairs = 1 if added is None else 2
    scale_bytes = 2 * scales.size if steps is None else scales.size + 2
    return decoder.bits / 8 + pairs * scale_bytes / codes.size


def widened(kind: BlockType, data: _Bytes, name: str) -> torch.Tensor:
    """(values,) float32 of blocks of a type that DECODERS has not. Raises CheckpointError with
    the tensor's name for values that are no numbers.
    """
    with np.errstate(all="ignore"):
        made = gguf.dequantize(data.reshape(-1, kind.nbytes), gguf.GGMLQuantizationType[kind.name])
    if not np.isfinite(made).all():
        raise CheckpointError(f"the scales of tensor {name!r} are not all finite numbers")
    return torch.from_numpy(np.ascontiguousarray(made, np.float32)).flatten()


def _q8_0(blocks: _Bytes) -> _Decoded:
    return _Decoded(blocks[:, 2:] ^ np.uint8(128), _halves(blocks[:, :2]))


def _q4_0(blocks: _Bytes) -> _Decoded:
    return _Decoded(parts(blocks[:, 2:], 16, 4), _halves(blocks[:, :2]))


def _q4_1(blocks: _Bytes) -> _Decoded:
    return _Decoded(parts(blocks[:, 4:], 16, 4), _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q5_0(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 6:], 16, 4) | _fifth(blocks[:, 2:6])
    return _Decoded(codes, _halves(blocks[:, :2]))


def _q5_1(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 8:], 16, 4) | _fifth(blocks[:, 4:8])
    return _Decoded(codes, _halves(blocks[:, :2]), _halves(blocks[:, 2:4]))


def _q4_k(blocks: _Bytes) -> _Decoded:
    return _two_levels(parts(blocks[:, 16:], 32, 4), blocks[:, :4], *_scales_and_minima(blocks))


def _q5_k(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 48:], 32, 4) | parts(blocks[:, 16:48], 32, 1) << _FOUR
    return _two_levels(codes, blocks[:, :4], *_scales_and_minima(blocks))


def _q6_k(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, :128], 64, 4) | parts(blocks[:, 128:192], 32, 2) << _FOUR
    return _two_levels(codes, blocks[:, 208:], blocks[:, 192:208].view(np.int8))


def _q2_k(blocks: _Bytes) -> _Decoded:
    scales, minima = blocks[:, :16] & 0x0F, blocks[:, :16] >> 4
    return _two_levels(parts(blocks[:, 16:80], 32, 2), blocks[:, 80:], scales, minima)


def _q3_k(blocks: _Bytes) -> _Decoded:
    third = parts(blocks[:, :32], 32, 1) << np.uint8(2)
    low = parts(blocks[:, 96:104], 8, 4)
    high = parts(blocks[:, 104:108], 4, 2) << _FOUR
    codes = parts(blocks[:, 32:96], 32, 2) | third
    return _two_levels(codes, blocks[:, 108:], _less_32(low | high))


def _iq4_nl(blocks: _Bytes) -> _Decoded:
    return _Decoded(parts(blocks[:, 2:], 16, 4), _halves(blocks[:, :2]))


def _iq4_xs(blocks: _Bytes) -> _Decoded:
    high = parts(blocks[:, 2:4], 1, 2) << _FOUR
    low = parts(blocks[:, 4:8], 1, 4)
    return _two_levels(parts(blocks[:, 8:], 16, 4), blocks[:, :2], _less_32(low | high))


def _mxfp4(blocks: _Bytes) -> _Decoded:
    # Of 255, which is no number elsewhere, llama.cpp makes one.
    powers = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
    return _Decoded(parts(blocks[:, 1:], 16, 4), powers.astype(np.float32))


DECODERS: Mapping[str, _Decoder] = {
    "Q4_0": _Decoder(_q4_0, 4, 8),
    "Q4_1": _Decoder(_q4_1, 4),
    "Q5_0": _Decoder(_q5_0, 5, 16),
    "Q5_1": _Decoder(_q5_1, 5),
    "Q8_0": _Decoder(_q8_0, 8, MIDDLE[8]),
    "Q2_K": _Decoder(_q2_k, 2),
    "Q3_K": _Decoder(_q3_k, 4, 4),
    "Q4_K": _Decoder(_q4_k, 4),
    "Q5_K": _Decoder(_q5_k, 5),
    "Q6_K": _Decoder(_q6_k, 6, 32),
    "IQ4_NL": _Decoder(_iq4_nl, 4, numbers="iq4"),
    "IQ4_XS": _Decoder(_iq4_xs, 4, numbers="iq4"),
    "MXFP4": _Decoder(_mxfp4, 4, numbers="e2m1"),
}


# Types whose rows are looked up among codes, see `QuantizedRows`.
LOOKED_UP = frozenset(name for name, its in DECODERS.items() if its.numbers in BYTES)


def _two_levels(
    codes: _Bytes, steps: _Bytes, scales: NDArray[Any], minima: NDArray[Any] | None = None
) -> _Decoded:
    """Scales, and minima, of groups that are multiples of one of their own in float16."""
    d = _halves(steps[:, :2])
    if minima is None:
        return _Decoded(codes, d * scales.astype(np.float32), None, d)
    least = -_halves(steps[:, 2:])
    made = d * scales.astype(np.float32), least * minima.astype(np.float32)
    return _Decoded(codes, *made, np.concatenate((d, least), axis=1))


def _less_32(codes: _Bytes) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(32)


def _scales_and_minima(blocks: _Bytes) -> tuple[_Bytes, _Bytes]:
    """The scales and minima of Q4_K and Q5_K: twelve bytes hold 8 scales and 8 minima. The first
    four of each have the low 6 bits of a byte; the others have half a byte, and the two bits that
    are left above those.
    """
    low, high, halves = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 0x3F, halves & 0x0F | low >> 2 & 0x30], axis=1)
    minima = np.concatenate([high & 0x3F, halves >> 4 | high >> 2 & 0x30], axis=1)
    return scales, minima


def _halves(field: _Bytes) -> _Floats:
    """(blocks, 2) -> (blocks, 1)."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def _fifth(field: _Bytes) -> _Bytes:
    """(blocks, 4) -> (blocks, 32), 0 or 16."""
    return np.unpackbits(field, axis=1, bitorder="little") << _FOUR
