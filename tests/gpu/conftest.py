"""Tests for a GPU run on the CPU, too, so that none of them is out of date once there is one."""

from __future__ import annotations

import pytest
import torch

NEEDS_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)
