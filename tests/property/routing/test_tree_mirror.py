"""Whatever happens to a replica's tree: who takes what its mirror says knows what is resident."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.reports import TreeChange, TreeSnapshot
from radixlm.core.request import Namespace
from radixlm.routing.replica_tree import ReplicaTree, below
from radixlm.routing.tree_mirror import Dropped, TreeMirror
from tests.followed_cache import FollowedCache, steps
from tests.tree_pictures import resident_prefixes

NAMESPACES = [Namespace(), Namespace(cache_salt="a")]


class Mirrored(FollowedCache):
    """A cache, the mirror that follows it, and the tree of a router that follows the mirror."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self._mirror = TreeMirror()
        self._told = ReplicaTree()

    def take(self, change: TreeChange) -> None:
        self._tell(self._mirror.update(change.removed, change.nodes))

    def take_afresh(self, tree: TreeSnapshot) -> None:
        self._told.clear(0)
        self._tell(self._mirror.replace(tree.nodes))

    def check(self) -> None:
        assert _prefixes(self._told) == resident_prefixes(self.cache.tree)

    def _tell(self, changes) -> None:
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


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([1, 1, 2]), steps(NAMESPACES))
def test_what_is_told_is_what_is_resident(page_size, taken) -> None:
    Mirrored(page_size).follow(taken)
