"""The tree over all replicas against sets of prefixes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.keys import Key, as_key
from radixlm.core.reports import TreeQuery
from radixlm.routing.prefix_map import prefix_map
from radixlm.routing.replica_tree import ReplicaTree, below

_KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=8)
_REPLICAS = 4
_NUMBERS = st.integers(0, _REPLICAS - 1)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), _NUMBERS, _KEYS),
        st.tuples(st.just("send"), _NUMBERS, _KEYS),
        st.tuples(st.just("arrive"), st.booleans(), st.integers(0, 9)),
        st.tuples(st.just("drop"), _NUMBERS, _KEYS, st.integers(0, 8)),
        st.tuples(st.sampled_from(["clear", "forget"]), _NUMBERS),
    ),
    max_size=40,
)


class Model:
    """Of each replica every prefix that it holds, and every request that was sent."""

    def __init__(self) -> None:
        self.held: dict[int, set[tuple[int, ...]]] = {r: set() for r in range(4)}
        self.sent: list[tuple[int, tuple[int, ...]]] = []

    def apply(self, step, tree: ReplicaTree) -> None:
        match step:
            case ("hold", replica, key):
                self.held[replica] |= _prefixes(key)
                tree.hold(replica, "", as_key(key))
            case ("send", replica, key):
                self.sent.append((replica, tuple(key)))
                tree.send(replica, "", as_key(key))
            case ("arrive", computed, which) if self.sent:
                replica, key = self.sent.pop(which % len(self.sent))
                if computed:
                    self.held[replica] |= _prefixes(key)
                tree.arrive(replica, "", as_key(key), computed=computed)
            case ("drop", replica, key, kept):
                gone = tuple(key[: kept + 1])
                if kept < len(key):
                    held = self.held[replica]
                    self.held[replica] = {each for each in held if each[: kept + 1] != gone}
                tree.drop(replica, "", as_key(key), kept)
            case ("clear", replica):
                self.held[replica] = set()
                tree.clear(replica)
            case ("forget", replica):
                self.held[replica] = set()
                self.sent = [each for each in self.sent if each[0] != replica]
                tree.forget(replica)

    def check(self, tree: ReplicaTree, key: Key) -> None:
        wanted = tuple(key.tolist())
        held = {r: _longest(wanted, each) for r, each in self.held.items()}
        coming = dict(held)
        for replica, sent in self.sent:
            coming[replica] = max(coming[replica], _longest(wanted, _prefixes(sent)))
        found = tree.find("", key)
        assert {r: found.held(r) for r in held} == held
        assert {r: found.cached(r) for r in coming} == coming
        assert found.most() == max(coming.values())
        waiting = [_prefixes(sent) for _, sent in self.sent]
        shares = [
            1 / (1 + sum(wanted[: end + 1] in each for each in waiting)) for end in range(key.size)
        ]
        for begin in range(key.size):
            assert found.own(begin, key.size) == pytest.approx(sum(shares[begin:]))

    def check_map(self, tree: ReplicaTree) -> None:
        """A prefix of n tokens ends in the branch that has its last one."""
        names = {r: str(r) for r in self.held}
        known = set().union(*self.held.values(), *(_prefixes(sent) for _, sent in self.sent))
        paths: list[tuple[int, ...]] = []
        for each in prefix_map(tree, TreeQuery(), names).prefixes:
            above = () if each.above is None else paths[each.above]
            top = (*above, memoryview(each.edge).cast("i")[0])
            paths.append((*above, *memoryview(each.edge).cast("i")))
            assert (each.start, each.tokens) == (len(above), len(paths[-1]) - len(above))

            def below(prefixes, top=top) -> int:
                return sum(prefix[: len(top)] == top for prefix in prefixes)

            assert each.below == below(known)
            has = {names[r]: below(held) for r, held in self.held.items()}
            assert each.cached == {name: size for name, size in has.items() if size}
            sent = {r for r, prefix in self.sent if prefix[: len(top)] == top}
            assert each.coming == [names[r] for r in sorted(sent)]
        assert len(paths) == tree.nodes


def _prefixes(key) -> set[tuple[int, ...]]:
    return {tuple(key[: end + 1]) for end in range(len(key))}


def _longest(key: tuple[int, ...], prefixes: set[tuple[int, ...]]) -> int:
    return max((end for end in range(len(key) + 1) if key[:end] in prefixes), default=0)


@settings(max_examples=300, deadline=None)
@given(_STEPS, st.lists(_KEYS, min_size=1, max_size=6))
def test_it_finds_what_a_set_of_prefixes_does(steps, keys) -> None:
    tree, model = ReplicaTree(), Model()
    for step in steps:
        model.apply(step, tree)
        for key in keys:
            model.check(tree, as_key(key))
        _check_shape(tree)
        model.check_map(tree)


def _check_shape(tree: ReplicaTree) -> None:
    """Nothing that nobody wants, nothing apart without a reason, holders hold what is above."""
    branches = [branch for root in tree.roots.values() for branch in below(root)]
    inner = [branch for branch in branches if branch.parent is not None]
    assert tree.nodes == len(inner)
    assert all(root.children for root in tree.roots.values())
    for branch in inner:
        assert branch.wanted
        assert branch.edge
        parent = branch.parent
        if parent.parent is not None:
            assert branch.holders & ~parent.holders == 0
            assert not Counter(branch.coming) - Counter(parent.coming)
            alike = (branch.holders, branch.coming) == (parent.holders, parent.coming)
            assert len(parent.children) > 1 or not alike
