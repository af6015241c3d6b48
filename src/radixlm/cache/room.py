"""What leases would leave behind or give back if they were released, for those who plan room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from radixlm.cache.lease import Lease
from radixlm.cache.node import Match, TreeNode


def left_behind(leases: Iterable[Lease], match: Match) -> int:
    """Evictable tokens that leases, released before, have left and `match` would not lock."""
    locked = _matched(match)
    left = {
        node.id: node.resident
        for lease in leases
        for node, _ in _path(lease.node, lease.node.resident)
        if not node.lock_ref
    }
    return sum(max(0, size - locked.get(name, 0)) for name, size in left.items())


def given_back(leases: Iterable[Lease], match: Match) -> int:
    """Slots that could be had again if these leases were released and `match` were locked."""
    kept = _matched(match)
    freed = 0
    ends: Counter[TreeNode] = Counter()
    for lease in leases:
        freed += lease.private_size - lease.reserve
        ends.update(node for node, _ in _path(lease.node, lease.node.resident))
    for node, count in ends.items():
        if count == node.lock_ref:
            freed += node.resident - kept.get(node.id, 0)
    return freed


def path_ids(lease: Lease) -> list[int]:
    """The ids of the nodes on a lease's path, from the root on."""
    return [node.id for node, _ in _path(lease.node, 0)][::-1]


def _matched(match: Match) -> dict[int, int]:
    """How many tokens of each node are matched, by its id."""
    return {node.id: length for node, length in _path(match.node, match.offset)}


def _path(node: TreeNode | None, offset: int) -> Iterator[tuple[TreeNode, int]]:
    """The nodes from `node` up, and how many tokens of each are on the path."""
    while node is not None:
        yield node, offset
        node = node.parent
        offset = node.resident if node is not None else 0
