"""Names of weights in the files of some families, in place of which layers here have others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.models.safetensors_files import Checkpoint
from radixlm.products.quantized import QuantizedWeight

# One convolution in three tensors, of queries, keys and values.
_CONVOLUTION = re.compile(r"(.+)\.[qkv]_conv1d\.weight")


class Renamed:
    """See `Checkpoint`: one with weights by the names that layers here have, convolutions whole.

    renamed: patterns, and what takes their place, one after the other.
    """

    def __init__(self, checkpoint: Checkpoint, renamed: Sequence[tuple[str, str]]) -> None:
        self.where, self.is_quantized = checkpoint.where, checkpoint.is_quantized
        self._checkpoint = checkpoint
        patterns = [(re.compile(old), new) for old, new in renamed]
        self._stored: dict[str, list[str]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for stored, shape in checkpoint.shapes.items():
            own = stored
            for old, new in patterns:
                own = old.sub(new, own)
            part = _CONVOLUTION.fullmatch(own)
            if part is None and own in self.shapes:
                raise CheckpointError(
                    f"tensors {self._stored[own][0]!r} and {stored!r} are the same weight"
                )
            if part is not None:
                own = f"{part[1]}.conv1d.weight"
                known = self.shapes.get(own, (0, *shape[1:]))
                if known[1:] != shape[1:]:
                    raise CheckpointError(f"tensor {stored!r} is not as wide as those beside it")
                shape = (known[0] + shape[0], *shape[1:])
            self._stored.setdefault(own, []).append(stored)
            self.shapes[own] = shape

    def read(self, name: str) -> Tensor | QuantizedWeight:
        """See `Checkpoint`."""
        first, *others = sorted(self._stored[name], key=_place)
        if not others:
            return self._checkpoint.read(first)
        return torch.cat([self._floats(stored) for stored in (first, *others)])

    def _floats(self, stored: str) -> Tensor:
        weight = self._checkpoint.read(stored)
        if isinstance(weight, Tensor):
            return weight
        return weight.dequantized().view(self._checkpoint.shapes[stored])


def _place(stored: str) -> int:
    """Queries come first, then keys, then values."""
    return "qkv".find(stored.rpartition("_conv1d")[0][-1:])
