"""Hypothesis against StoredTiers: a set of paths for each says which blocks are there."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixlm.cache import POLICIES, Lease, RadixCache, make_policy
from radixlm.cache.places.stored import StoredTier
from radixlm.cache.places.stored_parts import Blocks, StoredPart, StoredParts, path_tokens
from radixlm.cache.radix.node import upward
from radixlm.core.clock import VirtualClock
from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import Key, as_key
from radixlm.core.misses import MissReason
from radixlm.core.moves import Place
from tests.invariants import check

Path = tuple[Hashable, tuple[int, ...]]
NAMESPACES = st.sampled_from([None, None, None, "adapter"])
# Long paths that part at few places, since what is found again is what goes wrong.
TEXTS = ([0] * 14, [0] * 5 + [1] * 9, [0] * 5 + [1] * 4 + [0] * 5, [0] * 2 + [1] * 12)
PAGES = st.builds(lambda text, end: text[:end], st.sampled_from(TEXTS), st.integers(1, 14))
SOME = st.integers(0, 14)
PLACES = st.sampled_from(list(Place))
STARTS = st.sampled_from([0, 0, 0, 0, 2, 5, 9])
# A place in the order may lie behind when keys shrink with use, as those of `mru` do.
EXACT = sorted(set(POLICIES) - {"mru"})


@dataclass(eq=False)
class Held:
    """A lock, and the path that it is on."""

    handle: StoredPart | None
    path: Path


@dataclass(eq=False)
class Side:
    """A tier beside what a set says. blocks: the path of each block that is stored there."""

    tier: StoredTier
    parts: StoredParts
    blocks: set[Path] = field(default_factory=set)
    locks: list[Held] = field(default_factory=list)
    reserved: int = 0

    @property
    def size(self) -> int:
        return self.tier.block_tokens

    def paths(self, key: Key, namespace: Hashable, start: int, stop: int) -> list[Path]:
        ends = range(start + self.size, stop + 1, self.size)
        return [(namespace, tuple(key[:end].tolist())) for end in ends]

    def prefix(self, key: Key, namespace: Hashable) -> int:
        """Tokens that all stored blocks cover."""
        end = 0
        for path in self.paths(key, namespace, 0, key.size):
            if path not in self.blocks:
                break
            end = len(path[1])
        return end

    def locked(self) -> set[Path]:
        return {block for block in self.blocks for held in self.locks if before(block, held.path)}

    def take(self, *, spare: bool = True) -> None:
        """What was dropped leaves: each was there, nothing follows it, no lock is on it (spare)."""
        for item in self.tier.take_dropped():
            self.lose(item, spare=spare)
        for held in self.locks:
            end = self.prefix(as_key(held.path[1]), held.path[0]) if held.path[1] else 0
            held.path = (held.path[0], held.path[1][:end])

    def lose(self, item: Blocks, *, spare: bool) -> None:
        path = (item.namespace, tuple(item.tokens[: item.start + self.size].tolist()))
        gone = {other for other in self.blocks if before(path, other)}
        assert path in gone
        assert not spare or not gone & self.locked()
        self.blocks -= gone


class StoredMachine(RuleBasedStateMachine):
    """Host memory and the disk at the same time, over one pool."""

    @initialize(
        page_size=st.sampled_from([1, 1, 2]),
        block_pages=st.integers(1, 4),
        capacity=st.sampled_from([1, 3, 6, 10, 20]),
        in_host=st.sampled_from([1, 3, 6]),
        pool=st.integers(14, 30),
        ghosts=st.sampled_from([0, 3, 30]),
        policy=st.sampled_from(EXACT),
    )
    def start(
        self,
        page_size: int,
        block_pages: int,
        capacity: int,
        in_host: int,
        pool: int,
        ghosts: int,
        policy: str,
    ) -> None:
        self.page_size, size = page_size, page_size * block_pages
        self.cache = RadixCache(
            pool * page_size,
            page_size,
            policy=make_policy(policy),
            ghost_budget=ghosts * page_size,
            clock=VirtualClock(),
        )
        self.sides: dict[Place, Side] = {}
        for place, room in ((Place.DISK, capacity), (Place.HOST, in_host)):
            tier = self.cache.add_store(place, size, room * size)
            [parts] = [
                each
                for each in self.cache.tree.observers
                if isinstance(each, StoredParts) and each.place is place
            ]
            self.sides[place] = Side(tier, parts)
            self._watch(self.sides[place].parts)
        self.leases: list[Lease] = []
        self.again: set[Path] = set()  # what a request has used that was known before

    def _watch(self, parts: StoredParts) -> None:
        """Each time that a leaf goes, it is the first by the policy's key."""
        drop_leaf = parts.drop_leaf

        def checked(most: int) -> int:
            key = self.cache.tree.order.policy.key
            leaves = [part.node for part in parts.by_id.values() if not part.live | part.lock_ref]
            first = min(key(node) for node in leaves)
            keys = {
                (node.namespace, tuple(path_tokens(node)[: parts.end(node)].tolist())): key(node)
                for node in leaves
            }
            dropped = drop_leaf(most)
            last = parts.dropped[-1]
            path = (last.namespace, tuple(last.tokens.tolist()))
            assert any(key == first for leaf, key in keys.items() if before(path, leaf))
            return dropped

        parts.drop_leaf = checked  # type: ignore[method-assign]

    def _key(self, pages: list[int]) -> Key:
        return as_key([kind for kind in pages for _ in range(self.page_size)])

    @rule(pages=PAGES, namespace=NAMESPACES, keeps=st.booleans(), priority=st.integers(0, 2))
    def serve(self, pages: list[int], namespace: str | None, keeps: bool, priority: int) -> None:
        key = self._key(pages)
        host, disk = (self.sides[place].prefix(key[:-1], namespace) for place in Place)
        _, known = self.cache.tree.place(key[:-1], namespace)
        self.again.add((namespace, tuple(key[:known].tolist())))
        lease = self.cache.acquire(key, namespace, priority=priority)
        why = lease.why()
        if why.reason is MissReason.EVICTED:
            assert why.on_host == max(0, host - why.cached)
            assert why.on_disk == max(0, disk - max(host, why.cached))
            assert why.evicted >= why.on_host + why.on_disk
        else:
            assert why.reason is not MissReason.NEW or max(host, disk) <= why.cached
        if lease.extend(key.size - lease.cached) is not None:
            lease.commit(key.size)
        if keeps and len(self.leases) < 2:
            self.leases.append(lease)
        else:
            lease.release()

    @precondition(lambda self: self.leases)
    @rule()
    def release(self) -> None:
        self.leases.pop(0).release()

    @rule(pages=PAGES, namespace=NAMESPACES, start=STARTS, reserve=st.booleans(), place=PLACES)
    def store(
        self, pages: list[int], namespace: str | None, start: int, reserve: bool, place: Place
    ) -> None:
        """As after a restart, or when another process has written."""
        key, side = self._key(pages), self.sides[place]
        start = min(start * self.page_size, key.size)
        self._store(side, key, namespace, start - start % side.size, reserve=reserve)

    def _store(
        self, side: Side, key: Key, namespace: Hashable, start: int, *, reserve: bool
    ) -> None:
        tier, stop = side.tier, key.size - key.size % side.size
        size = stop - start if reserve else 0
        if size and not tier.reserve(size):
            assert tier.usage().free + tier.usage().evictable < size
            size = 0
        side.take()
        there = side.prefix(key[:stop], namespace)
        free = tier.usage().free + size
        tier.stored(key, namespace, start, stop, reserved=size)
        dropped = tier.take_dropped()
        if there >= stop:
            assert not dropped
        elif tier.length_of(key[:stop], namespace) == stop:
            assert there >= start
            for item in dropped:
                side.lose(item, spare=True)
            side.take()
            side.blocks.update(side.paths(key, namespace, there, stop))
        else:
            [mine] = dropped
            assert mine.tokens.tolist() == key[:stop].tolist()
            assert mine.start == max(start, there)
            room = free if side.locks else tier.capacity - side.reserved - there
            assert there < start or room < stop - there

    @rule(
        policy=st.sampled_from(get_args(DiskWritePolicy)),
        most=SOME,
        at_stop=st.booleans(),
        place=PLACES,
    )
    def write(self, policy: DiskWritePolicy, most: int, at_stop: bool, place: Place) -> None:
        tree, side = self.cache.tree, self.sides[place]
        tier, tokens = side.tier, most * side.size
        wanted = tier.queue.rest if at_stop else lambda n: tier.queue.take(policy, n)
        found = wanted(tokens)
        assert at_stop or policy != "off" or not found
        assert sum(item.tokens.size - item.start for item in found) <= tokens
        planned = set(side.blocks)
        for item in found:
            _, known = tree.place(item.tokens, item.namespace)
            assert known == item.tokens.size
            assert tree.match_prefix(item.tokens, item.namespace).length == known
            if policy == "selective" and not at_stop:
                path = (item.namespace, tuple(item.tokens.tolist()))
                assert any(before(path, used) for used in self.again)
            new = side.paths(item.tokens, item.namespace, item.start, known)
            assert new
            assert not planned & set(new)
            planned.update(new)
            assert planned.issuperset(side.paths(item.tokens, item.namespace, 0, item.start))
        if at_stop and tokens >= self.cache.capacity:
            assert planned.issuperset(self._resident(side))
        for item in found:
            held = tier.lock(item.tokens, item.namespace, item.start)
            self._store(side, item.tokens, item.namespace, item.start, reserve=True)
            tier.unlock(held)

    def _resident(self, side: Side) -> set[Path]:
        """The path of each block that is whole in the pool."""
        return {
            path
            for node in self.cache.tree.nodes()
            for path in side.paths(path_tokens(node), node.namespace, 0, node.start + node.resident)
            if all(not above.absent for above in upward(node) if above is not node)
        }

    @rule(pages=PAGES, namespace=NAMESPACES, start=SOME, place=PLACES)
    def gone(self, pages: list[int], namespace: str | None, start: int, place: Place) -> None:
        key, side = self._key(pages), self.sides[place]
        begin = start * self.page_size - start * self.page_size % side.size
        left = self._left(side, key, namespace, begin + side.size)
        side.tier.gone(key, namespace, begin)
        side.take(spare=False)
        assert side.blocks == left

    @rule(pages=PAGES, namespace=NAMESPACES, keep=SOME)
    def discard(self, pages: list[int], namespace: str | None, keep: int) -> None:
        key, end = self._key(pages), (keep + 1) * self.page_size
        left = {place: self._left(side, key, namespace, end) for place, side in self.sides.items()}
        self.cache.discard(key, namespace, keep * self.page_size)
        for place, side in self.sides.items():
            side.take(spare=False)
            assert side.blocks == left[place]

    def _left(self, side: Side, key: Key, namespace: Hashable, end: int) -> set[Path]:
        """The blocks that do not go on from a path's first `end` tokens, where it has as many."""
        first = (namespace, tuple(key[:end].tolist()))
        return {block for block in side.blocks if len(first[1]) < end or not before(first, block)}

    @rule(pages=PAGES, namespace=NAMESPACES, upto=SOME, place=PLACES)
    def lock(self, pages: list[int], namespace: str | None, upto: int, place: Place) -> None:
        side = self.sides[place]
        if len(side.locks) >= 3:
            return
        key = self._key(pages)
        upto *= self.page_size
        end = side.prefix(key[:upto], namespace) if upto else 0
        held = side.tier.lock(key, namespace, upto)
        assert (held is None) == (end == 0)
        if held is not None:
            side.locks.append(Held(held, (namespace, tuple(key[:end].tolist()))))

    @rule(which=st.integers(0, 2), place=PLACES)
    def unlock(self, which: int, place: Place) -> None:
        side = self.sides[place]
        if side.locks:
            side.tier.unlock(side.locks.pop(which % len(side.locks)).handle)

    @rule(n_blocks=st.integers(0, 4), place=PLACES)
    def reserve(self, n_blocks: int, place: Place) -> None:
        side = self.sides[place]
        free, _, _, evictable = side.tier.usage()
        done = side.tier.reserve(n_blocks * side.size)
        assert done == (free + evictable >= n_blocks * side.size)
        side.reserved += done * n_blocks * side.size
        side.take()

    @rule(place=PLACES)
    def give_back(self, place: Place) -> None:
        side = self.sides[place]
        side.tier.give_back(side.reserved)
        side.reserved = 0

    @rule()
    def flush(self) -> None:
        """What is on disk stays."""
        self.cache.flush()
        host = self.sides[Place.HOST]
        host.take()
        assert host.tier.usage().evictable == 0

    @rule(place=PLACES)
    def clear(self, place: Place) -> None:
        side = self.sides[place]
        side.tier.clear()
        side.take()
        assert side.tier.usage().evictable == 0

    @rule(policy=st.sampled_from(EXACT))
    def set_policy(self, policy: str) -> None:
        self.cache.tree.set_policy(make_policy(policy))

    @rule(pages=PAGES, namespace=NAMESPACES, limit=SOME, place=PLACES)
    def restorable(self, pages: list[int], namespace: str | None, limit: int, place: Place) -> None:
        key, side = self._key(pages), self.sides[place]
        limit *= self.page_size
        stored = side.prefix(key[:limit], namespace) if limit else 0
        assert side.tier.restorable(key[:limit], namespace) == stored

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        check(self.cache)
        for side in self.sides.values():
            assert not side.tier.take_dropped()
            stored = {
                path
                for node in self.cache.tree.nodes()
                if side.parts.end(node)
                for path in side.paths(path_tokens(node), node.namespace, 0, side.parts.end(node))
            }
            assert stored == side.blocks
            usage = side.tier.usage()
            assert usage.private == side.reserved
            assert usage.locked + usage.evictable == len(side.blocks) * side.size
            assert usage.locked >= len(side.locked()) * side.size
            assert side.locks or not usage.locked

    def teardown(self) -> None:
        """Nothing is left behind."""
        if not hasattr(self, "cache"):
            return
        while self.leases:
            self.release()
        for place, side in self.sides.items():
            while side.locks:
                self.unlock(0, place)
            self.clear(place)
        self.cache.flush()
        assert not any(side.blocks for side in self.sides.values())
        assert self.cache.tree.node_count == 0


def before(path: Path, other: Path) -> bool:
    """Whether `other` goes on from `path`, or is the same."""
    return path[0] == other[0] and other[1][: len(path[1])] == path[1]


TestStored = StoredMachine.TestCase
TestStored.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.mark.slow
class TestStoredAtLength(TestStored):  # type: ignore[misc,valid-type]
    settings = settings(TestStored.settings, max_examples=400)
