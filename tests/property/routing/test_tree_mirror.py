"""Whatever happens to a replica's tree: who takes what its mirror tells knows what is resident."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache import RadixCache
from radixlm.core.reports import TreeQuery
from radixlm.core.request import Namespace
from radixlm.routing import Dropped, ReplicaTree, TreeMirror
from radixlm.routing.replica_tree import below
from tests.tree_pictures import resident_prefixes, take_changes, tree_snapshot, watched

NAMESPACES = [Namespace(), Namespace(cache_salt="a")]


class Followed:
    """A cache, the mirror that follows it, and the tree of a router that follows the mirror."""

    def __init__(self, page_size: int) -> None:
        self.cache = RadixCache(24 * page_size, page_size, ghost_budget=12 * page_size)
        self._picture = watched(self.cache.tree, TreeQuery())
        self._picture.develop(10**6)
        self._picture.snapshot()
        self._mirror = TreeMirror()
        self._told = ReplicaTree()
        self._leases: list = []

    def run(self, namespace: Namespace, key: list[int], chunk: int) -> None:
        lease = self.cache.acquire(key, namespace)
        while lease.length < len(key):
            if lease.extend(min(chunk, len(key) - lease.length)) is None:
                break
            lease.commit(lease.length)
        self._leases.append(lease)
        if len(self._leases) > 2:
            self.release()

    def release(self) -> None:
        if self._leases:
            self._leases.pop(0).release()

    def tell(self) -> None:
        changes = take_changes(self.cache.tree)
        if changes is not None:
            change = self._picture.update(changes)
            self._take(self._mirror.update(change.removed, change.nodes))

    def tell_afresh(self) -> None:
        changes = take_changes(self.cache.tree)
        if changes is not None:
            self._picture.update(changes)
        self._told.clear(0)
        self._take(self._mirror.replace(tree_snapshot(self.cache.tree).nodes))

    def check(self) -> None:
        assert _prefixes(self._told) == resident_prefixes(self.cache.tree)

    def _take(self, changes) -> None:
        for change in changes:
            if isinstance(change, Dropped):
                self._told.drop(0, change.namespace, change.key, change.kept)
            else:
                self._told.hold(0, change.namespace, change.key)


def _prefixes(tree: ReplicaTree) -> set[tuple[Namespace, tuple[int, ...]]]:
    found = set()
    for namespace, root in tree.roots.items():
        paths: dict[object, tuple[int, ...]] = {root: ()}
        for branch in below(root):
            if branch.parent is not None:
                above = paths[branch.parent]
                edge = memoryview(branch.edge).cast("i").tolist()
                paths[branch] = above + tuple(edge)
                assert branch.holders == 1
                found |= {
                    (namespace, paths[branch][:n]) for n in range(len(above) + 1, branch.end + 1)
                }
    return found


_KEYS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
_REQUESTS = st.tuples(st.just("run"), st.sampled_from(NAMESPACES), _KEYS, st.integers(1, 7))
_OTHERS = st.tuples(st.sampled_from(["release", "release", "tell", "tell", "afresh", "flush"]))


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([1, 1, 2]), st.lists(_REQUESTS | _OTHERS, max_size=40))
def test_what_is_told_is_what_is_resident(page_size, steps) -> None:
    followed = Followed(page_size)
    for step in [*steps, ("tell",)]:
        match step:
            case ("run", namespace, key, chunk):
                followed.run(namespace, [token for token in key for _ in range(page_size)], chunk)
            case ("release",):
                followed.release()
            case ("flush",):
                followed.cache.flush()
            case ("tell",):
                followed.tell()
                followed.check()
            case ("afresh",):
                followed.tell_afresh()
                followed.check()
