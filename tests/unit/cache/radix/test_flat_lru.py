"""What leaf-first eviction is worth: a search tree, beside a flat LRU over its nodes.

Here only, for comparison: the flat one evicts whichever node was used longest ago, be it the trunk.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest

from radixlm.cache import RadixCache
from tests.invariants import check

TRUNK = 1_500
NODE = 90  # tokens: 60 asked, 30 answered
EXPANSIONS = 200
ABREAST = 3  # expansions that run at the same time
DEPTH = 10
POOL = (TRUNK + NODE * EXPANSIONS) // 4


@dataclass(frozen=True)
class Search:
    """Paths of nodes, the trunk first; each expansion adds one node below a former one."""

    paths: list[tuple[int, ...]]

    def key(self, path: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        parts = [np.random.default_rng(node).integers(0, 2**31, _size(node)) for node in path]
        return np.concatenate(parts).astype(np.int32)


def grow(seed: int) -> Search:
    """A search that goes deeper mostly, and goes back now and then."""
    draw = random.Random(seed)
    paths: list[tuple[int, ...]] = [(0,)]
    for node in range(1, EXPANSIONS + 1):
        recent = paths[-8:] if draw.random() < 0.7 else paths
        parent = draw.choice([path for path in recent if len(path) < DEPTH] or paths[:8])
        paths.append((*parent, node))
    return Search(paths[1:])


def leaf_first(search: Search) -> int:
    """Tokens computed with RadixCache, some expansions at a time."""
    cache = RadixCache(POOL)
    computed = 0
    for wave in _waves(search.paths):
        leases = []
        for path in wave:
            key = search.key(path)
            lease = cache.acquire(key)
            assert lease.extend(key.size - lease.cached) is not None
            computed += key.size - lease.cached
            lease.commit(key.size)
            leases.append(lease)
        for lease in leases:
            lease.release()
        check(cache)
    return computed


def flat(search: Search, *, touch_path: bool) -> tuple[int, int]:
    """Tokens computed, and how often the trunk was, when the node used longest ago is evicted,
    whatever hangs below it.

    touch_path: a match is a use of every node on its path, the trunk first, and holds them; else it
    is a use of the node where it ends, and its request works on a copy, as where prompts are cached
    as wholes.
    """
    used: dict[int, int] = {}
    computed = trunks = tick = 0
    for wave in _waves(search.paths):
        held: set[int] = set()
        for path in wave:
            hit = next((at for at, node in enumerate(path) if node not in used), len(path))
            for node in path[0 if touch_path else max(hit - 1, 0) : hit]:
                used[node] = tick = tick + 1
            if touch_path:
                held.update(path[:hit])
            for node in path[hit:]:
                computed += _size(node)
                trunks += not node
                while sum(map(_size, used)) + _size(node) > POOL:
                    del used[min((n for n in used if n not in held), key=used.__getitem__)]
                used[node] = tick = tick + 1
                held.add(node)
    return computed, trunks


@pytest.mark.parametrize("seed", range(3))
def test_leaf_first_keeps_the_trunk(seed: int) -> None:
    search = grow(seed)
    ours = leaf_first(search)
    by_path, _ = flat(search, touch_path=True)
    by_end, trunks = flat(search, touch_path=False)
    print(
        f"seed {seed}, {TRUNK + NODE * EXPANSIONS} distinct tokens; computed: leaf-first {ours}; "
        f"flat LRU {by_path}; by where matches end {by_end}, the trunk {trunks} times"
    )
    assert ours < by_path < by_end
    assert trunks > 1


def _size(node: int) -> int:
    return NODE if node else TRUNK


def _waves(paths: list[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    return [paths[start : start + ABREAST] for start in range(0, len(paths), ABREAST)]
