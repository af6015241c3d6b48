"""Walks up and down the paths of a tree, for their locks, pins and ends."""

from __future__ import annotations

from collections.abc import Iterator

from radixlm.cache.radix.node import TOKEN_BYTES, Match, TreeNode, descend, upward, walk
from radixlm.core.keys import Key


def known_end(match: Match, key: Key, page_size: int) -> tuple[TreeNode | None, int]:
    """The end of the longest prefix of `key`, ghosts included, from where its match ended."""
    node = match.node
    if node is None or match.offset < node.resident:
        return node, match.length
    whole = node.resident * TOKEN_BYTES == len(node.edge)
    top = node if whole or node.parent is None else node.parent
    return descend(top, key.data, page_size)


def lock_path(node: TreeNode, top: TreeNode | None, priority: int) -> int:
    """Add a lock to `node` and all above it, up to below `top`, and raise their priority; returns
    how many resident tokens had none.
    """
    fresh = 0
    at: TreeNode | None = node
    while at is not top and at is not None:
        if not at.lock_ref:
            fresh += at.resident
        at.lock_ref += 1
        if at.priority < priority:
            at.priority = priority
        at = at.parent
    return fresh


def add_pins(node: TreeNode, more: int) -> int:
    """Add to the pins of `node` and all above it; how many more resident tokens have any."""
    pinned = 0
    for at in upward(node):
        pinned -= at.resident if at.pins else 0
        at.pins += more
        pinned += at.resident if at.pins else 0
    return pinned


def absent_path(node: TreeNode) -> list[TreeNode]:
    """`node` and those right above it that are not resident to their ends, the topmost first."""
    path = [node]
    while (parent := path[-1].parent) is not None and parent.absent:
        path.append(parent)
    return path[::-1]


def free_after(match: Match, keep: int) -> Iterator[tuple[TreeNode, int]]:
    """List what a match found after its first `keep` tokens, and all below: each node that no lock
    holds, children first, and how many tokens of its end. Each is to be evicted before the next.
    """
    top = match.node
    if top is None or match.length <= keep:
        return
    while top.parent is not None and top.start > keep:
        top = top.parent
    below = list(walk(top))
    for node in reversed(below):
        n_tokens = node.resident - max(keep - node.start, 0)
        if n_tokens > 0 and not node.live and not node.lock_ref:
            yield node, n_tokens
