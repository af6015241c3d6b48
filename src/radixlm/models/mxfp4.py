"""Experts in MXFP4, as gpt-oss is published: of each of a layer's products one tensor of blocks for
all experts, and one of scales.

    <name>_blocks (experts, out, groups, 16) uint8      <name>_scales (experts, out, groups) uint8
                        a weight for each expert: <name>.<expert>.weight (out, 32 groups)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.models.cuts import Cut
from radixlm.models.quantized_parts import check_type
from radixlm.models.safetensors_files import FLOATS, StoredTensor, survey
from radixlm.products.quantized import QuantizedWeight, from_mxfp4

_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK_BYTES = 16
# E8M0, the scales' type, has one code that is no number.
_NO_NUMBER = 255


class _Expert(NamedTuple):
    """An expert's tensor: of which product, and which expert's."""

    product: str
    number: int


class MXFP4Checkpoint:
    """A folder of safetensors files with some weights in blocks, see `Checkpoint`; which they are
    the tensors say. The types and shapes of all are checked before any is read.
    """

    is_quantized = True

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self._stored = survey(folder, (*FLOATS, "U8"))
        self._experts: dict[str, _Expert] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for name, tensor in self._stored.items():
            if name.endswith(_BLOCKS):
                self._take(name.removesuffix(_BLOCKS), tensor)
            elif not name.endswith(_SCALES):
                check_type(name, tensor, FLOATS)
                self._shapes[name] = tensor.shape
            elif f"{name.removesuffix(_SCALES)}{_BLOCKS}" not in self._stored:
                raise CheckpointError(f"tensor {name!r} has no blocks beside it")

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str) -> Tensor | QuantizedWeight:
        if name not in self._experts:
            return self._stored[name].read()
        product, number = self._experts[name]
        blocks, scales = (
            self._stored[product + end].read_part(number) for end in (_BLOCKS, _SCALES)
        )
        if (scales == _NO_NUMBER).any():
            raise CheckpointError(f"the scales of tensor {name!r} are not all numbers")
        return from_mxfp4(blocks, scales)

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        if name in self._experts:
            return cut.of(name, self.read(name))
        return self._stored[name].read_cut(cut)

    def _take(self, product: str, blocks: StoredTensor) -> None:
        """All experts' weights of a product."""
        check_type(product + _BLOCKS, blocks, ("U8",))
        if len(blocks.shape) != 4 or blocks.shape[3] != _BLOCK_BYTES:
            raise CheckpointError(
                f"tensor {product + _BLOCKS!r} has shape {blocks.shape}; supported: (experts, out, "
                f"groups, {_BLOCK_BYTES})"
            )
        scales = self._stored.get(product + _SCALES)
        if scales is None:
            raise CheckpointError(f"tensor {product + _SCALES!r} is missing")
        check_type(product + _SCALES, scales, ("U8",))
        if scales.shape != blocks.shape[:3]:
            raise CheckpointError(
                f"tensor {product + _SCALES!r} has shape {scales.shape}; with the blocks' shape it "
                f"should be {blocks.shape[:3]}"
            )
        experts, outputs, groups, size = blocks.shape
        for number in range(experts):
            name = f"{product}.{number}.weight"
            self._experts[name] = _Expert(product, number)
            self._shapes[name] = outputs, groups * size * 2
