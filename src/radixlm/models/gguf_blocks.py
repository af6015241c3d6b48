"""Blocks of GGUF's quantized types as codes with scales: exactly what they stand for.

A block is a stretch of a row; its bytes are fields one after the other, little-endian:

    Q8_0  d f16 | 32 signed codes
    Q4_0  d f16 | 32 codes in halves of bytes: first all low ones, then all high ones
    Q4_1  d f16 | m f16 | codes as in Q4_0
    Q5_0  as Q4_0, Q5_1 as Q4_1, and before the codes the fifth bit of each
    Q4_K  d f16 | dmin f16 | 8 scales, 8 minima in 6 bits | 256 codes, groups of 32
    Q5_K  the same, and before the codes a fifth bit each
    Q6_K  256 codes: 4 bits, 2 bits | 16 signed scales | d f16, groups of 16

Where nothing is added the code of 0 is moved to the middle, as all symmetric weights have it.
Format: https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from radixlm.formats.gguf_file import BlockType
from radixlm.products.quantized import MIDDLE, QuantizedWeight

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_FOUR = np.uint8(4)
# Codes (blocks, values), scales (blocks, groups), and likewise what is added, if something is.
_Decoded = tuple[_Bytes, _Floats, _Floats | None]


def quantized_weight(kind: BlockType, data: _Bytes, outputs: int, inputs: int) -> QuantizedWeight:
    """The weight (outputs, inputs) that the blocks of one of DECODERS stand for."""
    decode, bits, zero = DECODERS[kind.name]
    codes, scales, added = decode(data.reshape(-1, kind.nbytes))
    return QuantizedWeight(
        torch.from_numpy(codes.reshape(outputs, inputs)),
        torch.from_numpy(scales.reshape(outputs, -1)),
        None if added is None else torch.from_numpy(added.reshape(outputs, -1)),
        bits,
        zero,
    )


def _q8_0(blocks: _Bytes) -> _Decoded:
    return blocks[:, 2:] ^ np.uint8(128), _halves(blocks[:, :2]), None


def _q4_0(blocks: _Bytes) -> _Decoded:
    return _parts(blocks[:, 2:], 16, 4), _halves(blocks[:, :2]), None


def _q4_1(blocks: _Bytes) -> _Decoded:
    return _parts(blocks[:, 4:], 16, 4), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q5_0(blocks: _Bytes) -> _Decoded:
    codes = _parts(blocks[:, 6:], 16, 4) | _fifth(blocks[:, 2:6])
    return codes + np.uint8(MIDDLE[8] - 16), _halves(blocks[:, :2]), None


def _q5_1(blocks: _Bytes) -> _Decoded:
    codes = _parts(blocks[:, 8:], 16, 4) | _fifth(blocks[:, 4:8])
    return codes, _halves(blocks[:, :2]), _halves(blocks[:, 2:4])


def _q4_k(blocks: _Bytes) -> _Decoded:
    return _parts(blocks[:, 16:], 32, 4), *_scales_and_minima(blocks)


def _q5_k(blocks: _Bytes) -> _Decoded:
    codes = _parts(blocks[:, 48:], 32, 4) | _parts(blocks[:, 16:48], 32, 1) << _FOUR
    return codes, *_scales_and_minima(blocks)


def _q6_k(blocks: _Bytes) -> _Decoded:
    codes = _parts(blocks[:, :128], 64, 4) | _parts(blocks[:, 128:192], 32, 2) << _FOUR
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return codes + np.uint8(MIDDLE[8] - 32), _halves(blocks[:, 208:]) * scales, None


DECODERS: Mapping[str, tuple[Callable[[_Bytes], _Decoded], int, int]] = {
    "Q4_0": (_q4_0, 4, MIDDLE[4]),
    "Q4_1": (_q4_1, 4, 0),
    "Q5_0": (_q5_0, 8, MIDDLE[8]),
    "Q5_1": (_q5_1, 8, 0),
    "Q8_0": (_q8_0, 8, MIDDLE[8]),
    "Q4_K": (_q4_k, 4, 0),
    "Q5_K": (_q5_k, 8, 0),
    "Q6_K": (_q6_k, 8, MIDDLE[8]),
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


def _parts(field: _Bytes, run: int, bits: int) -> _Bytes:
    """(blocks, n) -> (blocks, n x 8 / bits): of each `run` bytes the lowest bits, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    spread = field.reshape(len(field), -1, 1, run) >> shifts
    return (spread & np.uint8((1 << bits) - 1)).reshape(len(field), -1)
