"""What has changed comes in one order, whatever order it was noted in."""

from __future__ import annotations

import random

import numpy as np

from radixlm.cache.radix.node import TreeNode
from radixlm.cache.radix.tree_stats import Changes

ONE, NONE = np.zeros(1, dtype=np.int32), np.zeros(0, dtype=np.int32)


def test_parents_come_first_and_then_the_older():
    root = TreeNode(1, b"", NONE, None)
    children = [
        TreeNode(number, number.to_bytes(4, "little"), ONE, root) for number in range(3, 90)
    ]
    below = TreeNode(2, bytes(4), ONE, children[-1])
    changes = Changes()
    for node in random.Random(0).sample([*children, below], len(children) + 1):
        changes.changed(node)
    assert changes.touched() == [root, *children, below]
