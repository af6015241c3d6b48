"""Fields of bits come out of bytes in the order that files have."""

from __future__ import annotations

import numpy as np
import pytest

from radixlm.products.unpacking import parts


@pytest.mark.parametrize(("run", "bits"), [(16, 4), (32, 1), (64, 4), (32, 2), (1, 2)])
def test_each_run_of_bytes_gives_its_lowest_bits_first(run: int, bits: int) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (300, 150), np.uint8)
    field = blocks[:, 7:135]
    shifts = np.arange(0, 8, bits)[:, None]
    wanted = field.reshape(300, -1, 1, run) >> shifts & (1 << bits) - 1
    assert np.array_equal(parts(field, run, bits), wanted.reshape(300, -1))
