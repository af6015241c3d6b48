"""Experts in MXFP4, as gpt-oss is published: of each of a layer's products one tensor of blocks for
all experts, and one of scales.

    <name>_blocks (experts, out, groups, 16) uint8      <name>_scales (experts, out, groups) uint8
                        a weight for each expert: <name>.<expert>.weight (out, 32 groups)
"""

from __future__ import annotations

from functools import partial

from radixlm.core.errors import CheckpointError
from radixlm.models.quantized_parts import WeightInParts, check_type, taken, typed
from radixlm.models.safetensors_files import StoredTensor
from radixlm.products.quantized import QuantizedWeight, from_mxfp4

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16


def experts_in_blocks(stored: dict[str, StoredTensor]) -> dict[str, WeightInParts]:
    """Take the experts' weights from a folder's tensors, one by one."""
    found = {}
    for place in [name for name in stored if name.endswith(_BLOCKS)]:
        product, blocks = place.removesuffix(_BLOCKS), stored.pop(place)
        check_type(place, blocks, ("U8",))
        if len(blocks.shape) != 4 or blocks.shape[3] != _BLOCK_BYTES:
            raise CheckpointError(
                f"tensor {place!r} has shape {blocks.shape}; supported: (experts, out, groups, "
                f"{_BLOCK_BYTES})"
            )
        experts, outputs, groups, size = blocks.shape
        types = typed(("U8",), (experts, outputs, groups))
        scales = taken(stored, product + _SCALES, place, types)
        for number in range(experts):
            read = partial(_expert, blocks, scales, number)
            weight = WeightInParts((outputs, groups * size * 2), read)
            found[f"{product}.{number}.weight"] = weight
    return found


def _expert(blocks: StoredTensor, scales: StoredTensor, number: int) -> QuantizedWeight:
    return from_mxfp4(blocks.read_part(number), scales.read_part(number))
