"""Evicting what may not be read again, wherever the eviction order has it."""

from __future__ import annotations

import numpy as np

from radixlm.cache.node import NO_SLOTS, Match, TreeNode, walk
from radixlm.cache.structure import Structure
from radixlm.core.keys import Slots


def discard(shape: Structure, match: Match, keep: int) -> Slots:
    """Evict what a match found after its first `keep` tokens (whole pages), and all below that,
    as far as no lock holds it; returns the slots. O(nodes below).
    """
    if match.node is None or match.length <= keep:
        return NO_SLOTS
    top = match.node
    while top.parent is not None and top.start > keep:
        top = top.parent
    freed = []
    below: list[TreeNode] = list(walk(top))
    for node in reversed(below):  # children first
        spared = max(keep - node.start, 0)
        if node.resident > spared and not node.live and not node.lock_ref:
            freed.append(shape.trim(node, node.resident - spared))
    return np.concatenate(freed) if freed else NO_SLOTS
