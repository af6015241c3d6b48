"""Stretches of a stored weight, of which a rank reads no more."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.products.quantized import QuantizedWeight


class Cut(NamedTuple):
    """A part of one dimension, one stretch after the other.

    >>> Cut(0, ((1, 2), (4, 6))).shape((8, 3))
    (3, 3)
    """

    dim: int
    stretches: tuple[tuple[int, int], ...]

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that is left of one."""
        size = sum(stop - start for start, stop in self.stretches)
        return (*whole[: self.dim], size, *whole[self.dim + 1 :])

    def of(self, name: str, weight: Tensor | QuantizedWeight) -> Tensor | QuantizedWeight:
        """A weight's part. name: for messages. Raises ConfigError where a scale would be cut."""
        if isinstance(weight, QuantizedWeight):
            return self._of_quantized(name, weight)
        return torch.cat([weight.narrow(self.dim, a, b - a) for a, b in self.stretches], self.dim)

    def _of_quantized(self, name: str, weight: QuantizedWeight) -> QuantizedWeight:
        where = torch.cat([torch.arange(start, stop) for start, stop in self.stretches])
        if self.dim == 0:
            return weight.rows(where)
        group, groups = weight.group, weight.scales.shape[1]
        parts = replace(weight, codes=weight.codes[:, where])
        if groups == 1:
            return parts
        if any(edge % group for stretch in self.stretches for edge in stretch):
            raise ConfigError(
                f"--tp-size would part tensor {name!r} at {self.stretches[0]} of {weight.shape[1]} "
                f"inputs, within a group of {group} that share a scale: take fewer ranks"
            )
        offsets = None if weight.offsets is None else weight.offsets[:, self._at(group)]
        steps = weight.steps
        if steps is not None:
            whole = not any(edge % weight.block for stretch in self.stretches for edge in stretch)
            steps = steps[:, self._at(weight.block)] if whole else None
        scales = weight.scales[:, self._at(group)]
        return replace(parts, scales=scales, offsets=offsets, steps=steps)

    def _at(self, size: int) -> Tensor:
        """The places of what as many numbers share."""
        return torch.cat([torch.arange(a // size, b // size) for a, b in self.stretches])
