"""A real cache in random use, for what follows its tree by ids: a base, and the steps of a run."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from radixlm.cache import RadixCache
from radixlm.core.reports import TreeChange, TreeQuery, TreeSnapshot
from radixlm.core.request import Namespace
from tests.tree_pictures import take_changes, tree_snapshot, watched

_KEYS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
_OTHERS = st.tuples(st.sampled_from(["release", "release", "tell", "tell", "afresh", "flush"]))


def steps(namespaces: list[Namespace]) -> st.SearchStrategy[list]:
    """Steps of a cache that is followed."""
    runs = st.tuples(st.just("run"), st.sampled_from(namespaces), _KEYS, st.integers(1, 7))
    return st.lists(runs | _OTHERS, max_size=40)


class FollowedCache:
    """A cache, and a viewer that is shown all of its tree."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.cache = RadixCache(24 * page_size, page_size, ghost_budget=12 * page_size)
        self._picture = watched(self.cache.tree, TreeQuery())
        self._picture.develop(10**6)
        self._picture.snapshot()
        self._leases: list = []

    def take(self, change: TreeChange) -> None:
        """Follow a change."""
        raise NotImplementedError

    def take_afresh(self, tree: TreeSnapshot) -> None:
        """Follow a tree as after a viewer was too slow: what is there, not how it came."""
        raise NotImplementedError

    def check(self) -> None:
        """See that what follows is what is there."""
        raise NotImplementedError

    def follow(self, taken: Iterable) -> None:
        """Take the steps, and check at the end of each change that is told."""
        for step in [*taken, ("tell",)]:
            match step:
                case ("run", namespace, key, chunk):
                    self._run(
                        namespace, [each for each in key for _ in range(self._page_size)], chunk
                    )
                case ("release",):
                    self._release()
                case ("flush",):
                    self.cache.flush()
                case ("tell",):
                    if (changes := take_changes(self.cache.tree)) is not None:
                        self.take(self._picture.update(changes))
                    self.check()
                case ("afresh",):
                    if (changes := take_changes(self.cache.tree)) is not None:
                        self._picture.update(changes)
                    self.take_afresh(tree_snapshot(self.cache.tree))
                    self.check()

    def _run(self, namespace: Namespace, key: list[int], chunk: int) -> None:
        """A request that computes what it can get, a chunk at a time."""
        lease = self.cache.acquire(key, namespace)
        while lease.length < len(key):
            if lease.extend(min(chunk, len(key) - lease.length)) is None:
                break
            lease.commit(lease.length)
        self._leases.append(lease)
        if len(self._leases) > 2:
            self._release()

    def _release(self) -> None:
        if self._leases:
            self._leases.pop(0).release()
