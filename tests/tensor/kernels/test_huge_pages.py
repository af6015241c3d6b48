"""Room for weights in huge pages."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from radixlm.kernels.huge_pages import HugePages


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_tensors_are_apart_and_begin_with_a_line(dtype: torch.dtype) -> None:
    pages = HugePages()
    shapes = [(3, 5), (1,), (0, 4), (7 << 20,), (9, 1 << 20), (2, 2, 2), (11 << 20,), (6 << 20,)]
    made = [pages.zeros(shape, dtype) for shape in shapes]
    for number, tensor in enumerate(made):
        assert tensor.data_ptr() % 64 == 0 or not tensor.numel()
        assert not tensor.any()
        tensor.fill_(number)
    for number, (shape, tensor) in enumerate(zip(shapes, made, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype) == (shape, dtype)
        assert (tensor == number).all()


def _mapped() -> int:
    """Pages of this process's memory."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="looks at /proc")
def test_memory_goes_with_its_tensors() -> None:
    pages = HugePages()
    gc.collect()
    before = _mapped()
    made = [pages.zeros((1 << 28,), torch.uint8) for _ in range(4)]
    assert _mapped() - before > (1 << 29) // 4096
    del made
    gc.collect()
    assert _mapped() - before < (1 << 28) // 4096
