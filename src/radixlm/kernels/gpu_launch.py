"""Launching a kernel of Triton's without what Triton does each time to find out which it is."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes, by which Triton compiles other code
_LARGEST_HEAD_BYTES = 1024
DEVICES = ("cuda",)


def aligned(tensor: Tensor | None) -> bool:
    """Whether Triton compiles the code for what is aligned; None is, and what torch allocates."""
    return tensor is None or tensor.storage_offset() * tensor.itemsize % _ALIGNMENT == 0


def power_of_two(size: int) -> int:
    """The size as which Triton computes one: the next power of two, or itself."""
    return 1 << (size - 1).bit_length()


def has_kernels(device_type: str) -> bool:
    """Whether kernels in Triton can be launched there."""
    return device_type in DEVICES and importlib.util.find_spec("triton") is not None


def largest_head(dtype: torch.dtype) -> int:
    """The numbers of a head that attention in Triton has room for."""
    return _LARGEST_HEAD_BYTES // dtype.itemsize


def row_kernel(name: str, device_type: str) -> Launch | None:
    """Look up a kernel of `gpu_rows`; None: on no GPU, or without Triton."""
    if not has_kernels(device_type):
        return None
    return Launch(getattr(importlib.import_module("radixlm.kernels.gpu_rows"), name))


class Launch:
    """Launches a kernel that Triton has compiled. On the host of an H100 Triton's own way, which
    looks at each argument, took 22 us, this one 12.

    The interpreter compiles nothing, so that each call is Triton's own there.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._known: dict[Hashable, tuple[Any, Sequence[Any]]] = {}

    def __call__(
        self,
        key: Hashable,
        grid: tuple[int, ...],
        given: Sequence[Any],
        constants: Mapping[str, Any],
        **options: int,
    ) -> None:
        """key: names all that decides which code it is: constants, which arguments are None, which
        are at multiples of 16 bytes, and types. options: of compiling.
        """
        known = self._known.get(key)
        if known is not None:
            compiled, values = known
            compiled[(*grid, 1, 1)[:3]](*given, *values)
            return
        compiled = self._kernel[grid](*given, **constants, **options)
        if compiled is not None:
            values = [constants[name] for name in self._kernel.arg_names if name in constants]
            self._known[key] = compiled, values
