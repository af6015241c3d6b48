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

Where nothing is added the code of 0 is moved to the middle, as all symmetric weights have it.
Format: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from radixlm.core.errors import CheckpointError
from radixlm.formats.gguf_file import BlockType
from radixlm.products.quantized import MIDDLE, QuantizedWeight
from radixlm.products.unpacking import parts

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_FOUR = np.uint8(4)
# Codes (blocks, values), scales (blocks, groups), and likewise what is added, if something is.
_Decoded = tuple[_Bytes, _Floats, _Floats | None]


def quantized_weight(kind: BlockType, data: _Bytes, outputs: int, inputs: int) -> QuantizedWeight:
    """The weight (outputs, inputs) that the blocks of one of DECODERS stand for."""
    decode, bits, zero = DECODERS[kind.name]
    with np.errstate(all="ignore"):  # what is no number is found by `QuantizedWeight.check`
        codes, scales, added = decode(data.reshape(-1, kind.nbytes))
    return QuantizedWeight(
        torch.from_numpy(codes.reshape(outputs, inputs)),
        torch.from_numpy(scales.reshape(outputs, -1)),
        None if added is None else torch.from_numpy(added.reshape(outputs, -1)),
        bits,
        zero,
        "e2m1" if kind.name == "MXFP4" else "int",
    )


def bytes_per_number(kind: BlockType, dtype: torch.dtype) -> float:
    """Bytes that a number of a product's weight takes in memory, with its part of the scales, which
    are in 16 bits there. dtype: of those that are made floats.
    """
    if kind.name not in DECODERS:
        return dtype.itemsize
    decode, bits, _ = DECODERS[kind.name]
    codes, scales, added = decode(np.zeros((1, kind.nbytes), np.uint8))
    return bits / 8 + 2 * scales.size * (1 if added is None else 2) / codes.size


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
    return blocks[:, 2:] ^ np.uint8(128), _halves(blocks[:, :2]), None


def _q4_0(blocks: _Bytes) -> _Decoded:
    return parts(blocks[:, 2:], 16, 4), _halves(blocks[:, :2]), None


def _q4_1(blocks: _Bytes) -> _Decoded:
    return parts(blocks[:, 4:], 16, 4), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 6:], 16, 4) | _fifth(blocks[:, 2:6])
    return codes + np.uint8(MIDDLE[8] - 16), _halves(blocks[:, :2]), None


def _q5_1(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 8:], 16, 4) | _fifth(blocks[:, 4:8])
    return codes, _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q4_k(blocks: _Bytes) -> _Decoded:
    return parts(blocks[:, 16:], 32, 4), *_scales_and_minima(blocks)


def _q5_k(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, 48:], 32, 4) | parts(blocks[:, 16:48], 32, 1) << _FOUR
    return codes, *_scales_and_minima(blocks)


def _q6_k(blocks: _Bytes) -> _Decoded:
    codes = parts(blocks[:, :128], 64, 4) | parts(blocks[:, 128:192], 32, 2) << _FOUR
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return codes + np.uint8(MIDDLE[8] - 32), _halves(blocks[:, 208:]) * scales, None


def _q2_k(blocks: _Bytes) -> _Decoded:
    scales, minima = blocks[:, :16] & 0x0F, blocks[:, :16] >> 4
    added = -_halves(blocks[:, 82:]) * minima.astype(np.float32)
    codes = parts(blocks[:, 16:80], 32, 2)
    return codes, _halves(blocks[:, 80:82]) * scales.astype(np.float32), added


def _q3_k(blocks: _Bytes) -> _Decoded:
    third = parts(blocks[:, :32], 32, 1) << np.uint8(2)
    low = parts(blocks[:, 96:104], 8, 4)
    high = parts(blocks[:, 104:108], 4, 2) << _FOUR
    scales = (low | high).astype(np.float32) - 32
    codes = parts(blocks[:, 32:96], 32, 2) | third
    return codes + np.uint8(MIDDLE[4] - 4), _halves(blocks[:, 108:]) * scales, None


def _iq4_nl(blocks: _Bytes) -> _Decoded:
    return _UNEVEN[parts(blocks[:, 2:], 16, 4)], _halves(blocks[:, :2]), None


def _iq4_xs(blocks: _Bytes) -> _Decoded:
    high = parts(blocks[:, 2:4], 1, 2) << _FOUR
    low = parts(blocks[:, 4:8], 1, 4)
    scales = (low | high).astype(np.float32) - 32
    return _UNEVEN[parts(blocks[:, 8:], 16, 4)], _halves(blocks[:, :2]) * scales, None


def _mxfp4(blocks: _Bytes) -> _Decoded:
    # Of 255, which is no number elsewhere, llama.cpp makes one.
    powers = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 127)
    return parts(blocks[:, 1:], 16, 4), powers.astype(np.float32), None


# What the codes of IQ4_NL and IQ4_XS stand for, with 0 in the middle of a byte.
_UNEVEN = np.array(gguf.quants.IQ4_NL.kvalues, np.int8).view(np.uint8) ^ np.uint8(128)

DECODERS: Mapping[str, tuple[Callable[[_Bytes], _Decoded], int, int]] = {
    "Q4_0": (_q4_0, 4, MIDDLE[4]),
    "Q4_1": (_q4_1, 4, 0),
    "Q5_0": (_q5_0, 8, MIDDLE[8]),
    "Q5_1": (_q5_1, 8, 0),
    "Q8_0": (_q8_0, 8, MIDDLE[8]),
    "Q2_K": (_q2_k, 4, 0),
    "Q3_K": (_q3_k, 4, MIDDLE[4]),
    "Q4_K": (_q4_k, 4, 0),
    "Q5_K": (_q5_k, 8, 0),
    "Q6_K": (_q6_k, 8, MIDDLE[8]),
    "IQ4_NL": (_iq4_nl, 8, MIDDLE[8]),
    "IQ4_XS": (_iq4_xs, 8, MIDDLE[8]),
    "MXFP4": (_mxfp4, 4, 0),
}


def _scales_and_minima(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """The scales and minima of Q4_K and Q5_K: twelve bytes hold 8 scales and 8 minima. The first
    four of each have the low 6 bits of a byte; the others have half a byte, and the two bits that
    are left above those.
    """
    low, high, halves = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 0x3F, halves & 0x0F | low >> 2 & 0x30], axis=1)
    minima = np.concatenate([high & 0x3F, halves >> 4 | high >> 2 & 0x30], axis=1)
    return (
        _halves(blocks[:, :2]) * scales.astype(np.float32),
        -_halves(blocks[:, 2:4]) * minima.astype(np.float32),
    )


def _halves(field: _Bytes) -> _Floats:
    """(blocks, 2) -> (blocks, 1)."""
    return np.ascontiguousarray(field).view("<f2").astype(np.float32)


def _fifth(field: _Bytes) -> _Bytes:
    """(blocks, 4) -> (blocks, 32), 0 or 16."""
    return np.unpackbits(field, axis=1, bitorder="little") << _FOUR
