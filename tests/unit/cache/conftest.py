"""Trees that several tests begin with."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixTree


@pytest.fixture
def classic() -> RadixTree:
    """root - [1 2] 10 11 - [3 4] 12 13 and [9] 22."""
    tree = RadixTree()
    tree.insert([1, 2, 3, 4], [10, 11, 12, 13])
    tree.insert([1, 2, 9], [20, 21, 22])
    return tree
