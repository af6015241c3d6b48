"""A map of prefixes to replicas: the heaviest branches of the tree of all replicas."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.core.reports import TreeQuery
from radixlm.routing.replica_tree import ReplicaNode, ReplicaTree

# The router decides nothing meanwhile: some milliseconds.
MOST_LOOKED_AT = 1_000
_MOST_NAMESPACES = 100
# Of a node, the newest.
_MOST_CHILDREN = 10 * MOST_LOOKED_AT
# Of the tokens of a branch, for the text that is shown of it.
_BEGINNING = 400
_TOKEN_BYTES = 4


class Prefix(NamedTuple):
    """A branch; sizes in tokens, of what was looked at.

    above: its parent's place in the list; None where it begins a prompt. edge: the bytes of the
    int32 ids of its first tokens. below: in it and below it. cached: the same that a replica has,
    by replica; who is in it has all of the branch. coming: those that are about to compute it.
    """

    above: int | None
    namespace: Hashable
    start: int
    tokens: int
    edge: bytes
    below: int
    cached: dict[str, int]
    coming: list[str]


class PrefixMap(NamedTuple):
    """The heaviest branches, each after its parent. looked_at: of the tree's nodes."""

    nodes: int
    looked_at: int
    prefixes: list[Prefix]


def prefix_map(tree: ReplicaTree, query: TreeQuery, names: Mapping[int, str]) -> PrefixMap:
    """The branches with the most tokens in them and below, `query.max_nodes` at most.

        root ── [system prompt] 300 ─┬─ [question 1] 40     a: 340, b: 320
                                     └─ [question 2] 20

    Looked at are the nodes next to the roots, of many children first those that have some, then
    the newest: what is shared is there. Sizes are of what was looked at. names: of the replicas to
    show, by number. O(MOST_LOOKED_AT nodes and replicas, and the children of these nodes).
    """
    seen = list(_nearest(tree, query, names))
    places = {id(branch): at for at, (_, branch) in enumerate(seen)}
    parents = [places.get(id(branch.parent)) for _, branch in seen]
    numbers, own = sorted(names), _mask(names)
    holders = [branch.holders & own for _, branch in seen]
    has = _bits(holders, max(numbers, default=0) + 1)[:, numbers]
    sizes = np.array([branch.end - branch.start for _, branch in seen], np.int64)
    below = np.column_stack([sizes, has * sizes[:, None]])
    for at in range(len(seen) - 1, -1, -1):
        if (above := parents[at]) is not None:
            below[above] += below[at]
    chosen: dict[int | None, int | None] = {None: None}
    found: list[Prefix] = []
    for at in _heaviest(below[:, 0], parents, query.max_nodes):
        namespace, branch = seen[at]
        tokens, *cached = below[at].tolist()
        chosen[at] = len(found)
        found.append(
            Prefix(
                above=chosen[parents[at]],
                namespace=namespace,
                start=branch.start,
                tokens=int(sizes[at]),
                edge=branch.edge[: _BEGINNING * _TOKEN_BYTES],
                below=tokens,
                cached={names[n]: size for n, size in zip(numbers, cached, strict=True) if size},
                coming=[names[number] for number in numbers if number in branch.coming],
            )
        )
    return PrefixMap(tree.nodes, len(seen), found)


def _bits(holders: Sequence[int], count: int) -> npt.NDArray[np.uint8]:
    """(holders, at least `count`) 0 and 1, the lowest bit first."""
    size = -(-count // 8)
    packed = b"".join(each.to_bytes(size, "little") for each in holders)
    rows = np.frombuffer(packed, np.uint8).reshape(len(holders), size)
    return np.unpackbits(rows, axis=1, bitorder="little")


def _heaviest(
    sizes: npt.NDArray[np.int64], parents: Sequence[int | None], most: int | None
) -> Iterator[int]:
    """The largest, each followed by those below it. A parent is at least as large as its children
    and before them, so none is there without it.
    """
    below: dict[int | None, list[int]] = {}
    for at in np.argsort(-sizes, kind="stable")[:most].tolist():
        below.setdefault(parents[at], []).append(at)
    waiting = below.get(None, [])[::-1]
    while waiting:
        yield (at := waiting.pop())
        waiting.extend(reversed(below.get(at, [])))


def _nearest(
    tree: ReplicaTree, query: TreeQuery, names: Mapping[int, str]
) -> Iterator[tuple[Hashable, ReplicaNode]]:
    """Nodes that may be seen and that these replicas want, those next to the roots first; of the
    namespaces first those with the most below them.
    """
    own = _mask(names)
    roots = ((each, root) for each, root in tree.roots.items() if query.admits(each))
    waiting = deque(nlargest(_MOST_NAMESPACES, roots, key=lambda each: len(each[1].children)))
    left = MOST_LOOKED_AT
    while waiting and left:
        namespace, branch = waiting.popleft()
        if branch.parent is not None:
            left -= 1
            yield namespace, branch
        room = max(left - len(waiting), 0)
        newest = islice(reversed(branch.children.values()), _MOST_CHILDREN if room else 0)
        wanted = [
            child for child in newest if child.holders & own or child.coming.keys() & names.keys()
        ]
        wanted.sort(key=lambda child: not child.children)  # several prompts share those with some
        waiting.extend((namespace, child) for child in wanted[:room])


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in numbers)
