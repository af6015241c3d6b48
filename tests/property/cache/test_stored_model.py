"""Hypothesis against StoredTier: a set of paths, by itself, says which blocks are on disk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from radixlm.cache import POLICIES, Lease, RadixCache, TreeNode, make_policy
from radixlm.cache.node import upward
from radixlm.cache.stored_parts import Blocks, StoredPart, path_tokens
from radixlm.cache.write_queue import FOUND_OFTEN
from radixlm.core.config import DiskWritePolicy
from radixlm.core.keys import Key, as_key
from radixlm.core.misses import MissReason
from tests.invariants import check
from tests.virtual_clock import VirtualClock

Path = tuple[str | None, tuple[int, ...]]
NAMESPACES = st.sampled_from([None, None, None, "adapter"])
# Long paths that part at few places, since what is found again is what goes wrong.
TEXTS = ([0] * 14, [0] * 5 + [1] * 9, [0] * 5 + [1] * 4 + [0] * 5, [0] * 2 + [1] * 12)
PAGES = st.builds(lambda text, end: text[:end], st.sampled_from(TEXTS), st.integers(1, 14))
SOME = st.integers(0, 14)
STARTS = st.sampled_from([0, 0, 0, 0, 2, 5, 9])
# A place in the order may lie behind when keys shrink with use, as those of `mru` do.
EXACT = sorted(set(POLICIES) - {"mru"})


@dataclass(eq=False)
class Held:
    """A lock, and the path that it is on."""

    handle: StoredPart | None
    path: Path


class StoredMachine(RuleBasedStateMachine):
    """blocks: the path of each block that is on disk."""

    @initialize(
        page_size=st.sampled_from([1, 1, 2]),
        block_pages=st.integers(1, 4),
        capacity=st.sampled_from([1, 3, 6, 10, 20]),
        pool=st.integers(14, 30),
        ghosts=st.sampled_from([0, 3, 30]),
        policy=st.sampled_from(EXACT),
    )
    def start(
        self, page_size: int, block_pages: int, capacity: int, pool: int, ghosts: int, policy: str
    ) -> None:
        self.page_size, self.size = page_size, page_size * block_pages
        self.cache = RadixCache(
            pool * page_size,
            page_size,
            policy=make_policy(policy),
            ghost_budget=ghosts * page_size,
            clock=VirtualClock(),
        )
        self.tier = self.cache.add_store(self.size, capacity * self.size)
        self.blocks: set[Path] = set()
        self.locks: list[Held] = []
        self.leases: list[Lease] = []
        self.reserved = 0
        parts = self.cache.tree.parts
        assert parts is not None
        self.parts, self.drop_leaf = parts, parts.drop_leaf
        parts.drop_leaf = self.checked_drop_leaf  # type: ignore[method-assign]

    def checked_drop_leaf(self, most: int) -> int:
        """The leaf that goes is the first by the policy's key."""
        key = self.cache.tree.order.policy.key
        leaves = [part.node for part in self.parts.by_id.values() if not part.live | part.lock_ref]
        first = min(key(node) for node in leaves)
        keys = {self._path_to(node): key(node) for node in leaves}
        dropped = self.drop_leaf(most)
        last = self.parts.dropped[-1]
        assert keys[last.namespace, tuple(last.tokens.tolist())] == first
        return dropped

    def _path_to(self, node: TreeNode) -> Path:
        return node.namespace, tuple(path_tokens(node)[: node.start + node.stored].tolist())

    def _key(self, pages: list[int]) -> Key:
        return as_key([kind for kind in pages for _ in range(self.page_size)])

    def _paths(self, key: Key, namespace: str | None, start: int, stop: int) -> list[Path]:
        ends = range(start + self.size, stop + 1, self.size)
        return [(namespace, tuple(key[:end].tolist())) for end in ends]

    def _prefix(self, key: Key, namespace: str | None) -> int:
        """Tokens that all blocks on disk cover."""
        end = 0
        for path in self._paths(key, namespace, 0, key.size):
            if path not in self.blocks:
                break
            end = len(path[1])
        return end

    def _locked(self) -> set[Path]:
        return {block for block in self.blocks for held in self.locks if before(block, held.path)}

    def _take(self, dropped: Iterable[Blocks], *, spare: bool = True) -> None:
        """Blocks leave the disk: each is there, nothing follows it, no lock is on it (spare)."""
        for item in dropped:
            for name, tokens in reversed(list(item.paths(self.size))):
                path = (name, tuple(tokens.tolist()))
                assert path in self.blocks
                assert not spare or path not in self._locked()
                self.blocks.remove(path)
                assert not any(before(path, other) for other in self.blocks)
        for held in self.locks:
            end = self._prefix(as_key(held.path[1]), held.path[0]) if held.path[1] else 0
            held.path = (held.path[0], held.path[1][:end])

    @rule(pages=PAGES, namespace=NAMESPACES, keeps=st.booleans(), priority=st.integers(0, 2))
    def serve(self, pages: list[int], namespace: str | None, keeps: bool, priority: int) -> None:
        key = self._key(pages)
        stored = self._prefix(key[:-1], namespace)
        lease = self.cache.acquire(key, namespace, priority=priority)
        why = lease.why()
        if why.reason is MissReason.EVICTED:
            assert why.on_disk == max(0, stored - why.cached)
            assert why.evicted >= why.on_disk
        else:
            assert why.reason is not MissReason.NEW or stored <= why.cached
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

    @rule(pages=PAGES, namespace=NAMESPACES, start=STARTS, reserve=st.booleans())
    def store(self, pages: list[int], namespace: str | None, start: int, reserve: bool) -> None:
        """As after a restart, or when another process has written."""
        key = self._key(pages)
        start = min(start * self.page_size, key.size)
        self._store(key, namespace, start - start % self.size, reserve=reserve)

    def _store(self, key: Key, namespace: str | None, start: int, *, reserve: bool) -> None:
        stop = key.size - key.size % self.size
        size = stop - start if reserve else 0
        if size and not self.tier.reserve(size):
            assert self.tier.usage().free + self.tier.usage().evictable < size
            size = 0
        self._take(self.tier.take_dropped())
        there = self._prefix(key[:stop], namespace)
        free = self.tier.usage().free + size
        self.tier.stored(key, namespace, start, stop, reserved=size)
        dropped = self.tier.take_dropped()
        if there >= stop:
            assert not dropped
        elif self.tier.on_disk(key[:stop], namespace) == stop:
            assert there >= start
            self._take(dropped)
            self.blocks.update(self._paths(key, namespace, there, stop))
        else:
            [mine] = dropped
            assert mine.tokens.tolist() == key[:stop].tolist()
            assert mine.start == max(start, there)
            room = free if self.locks else self.tier.capacity - self.reserved - there
            assert there < start or room < stop - there

    @rule(policy=st.sampled_from(get_args(DiskWritePolicy)), most=SOME, at_stop=st.booleans())
    def write(self, policy: DiskWritePolicy, most: int, at_stop: bool) -> None:
        tree, tokens = self.cache.tree, most * self.size
        wanted = self.tier.to_write_at_stop if at_stop else lambda n: self.tier.to_write(policy, n)
        found = wanted(tokens)
        assert at_stop or policy != "off" or not found
        assert sum(item.tokens.size - item.start for item in found) <= tokens
        planned = set(self.blocks)
        for item in found:
            node, known = tree.place(item.tokens, item.namespace)
            assert known == item.tokens.size
            assert tree.match_prefix(item.tokens, item.namespace).length == known
            if policy == "selective" and not at_stop:
                assert node is not None
                assert node.hits >= FOUND_OFTEN
            new = self._paths(item.tokens, item.namespace, item.start, known)
            assert new
            assert not planned & set(new)
            planned.update(new)
            assert planned.issuperset(self._paths(item.tokens, item.namespace, 0, item.start))
        if at_stop and tokens >= self.cache.capacity:
            assert planned.issuperset(self._resident())
        for item in found:
            held = self.tier.lock(item.tokens, item.namespace, item.start)
            self._store(item.tokens, item.namespace, item.start, reserve=True)
            self.tier.unlock(held)

    def _resident(self) -> set[Path]:
        """The path of each block that is whole in the pool."""
        return {
            path
            for node in self.cache.tree.nodes()
            for path in self._paths(
                path_tokens(node), node.namespace, 0, node.start + node.resident
            )
            if all(not above.absent for above in upward(node) if above is not node)
        }

    @rule(pages=PAGES, namespace=NAMESPACES, start=SOME)
    def gone(self, pages: list[int], namespace: str | None, start: int) -> None:
        key = self._key(pages)
        begin = start * self.page_size - start * self.page_size % self.size
        first = (namespace, tuple(key[: begin + self.size].tolist()))
        left = {block for block in self.blocks if not before(first, block)}
        if len(first[1]) < begin + self.size:
            left = set(self.blocks)
        self.tier.gone(key, namespace, begin)
        self._take(self.tier.take_dropped(), spare=False)
        assert self.blocks == left

    @rule(pages=PAGES, namespace=NAMESPACES, keep=SOME)
    def discard(self, pages: list[int], namespace: str | None, keep: int) -> None:
        key = self._key(pages)
        first = (namespace, tuple(key[: (keep + 1) * self.page_size].tolist()))
        left = {block for block in self.blocks if not before(first, block)}
        if len(first[1]) < (keep + 1) * self.page_size:
            left = set(self.blocks)
        self.cache.discard(key, namespace, keep * self.page_size)
        self._take(self.tier.take_dropped(), spare=False)
        assert self.blocks == left

    @precondition(lambda self: len(self.locks) < 3)
    @rule(pages=PAGES, namespace=NAMESPACES, upto=SOME)
    def lock(self, pages: list[int], namespace: str | None, upto: int) -> None:
        key = self._key(pages)
        upto *= self.page_size
        end = self._prefix(key[:upto], namespace) if upto else 0
        held = self.tier.lock(key, namespace, upto)
        assert (held is None) == (end == 0)
        if held is None:
            return
        self.locks.append(Held(held, (namespace, tuple(key[:end].tolist()))))

    @precondition(lambda self: self.locks)
    @rule(which=st.integers(0, 2))
    def unlock(self, which: int) -> None:
        self.tier.unlock(self.locks.pop(which % len(self.locks)).handle)

    @rule(n_blocks=st.integers(0, 4))
    def reserve(self, n_blocks: int) -> None:
        free, _, _, evictable = self.tier.usage()
        done = self.tier.reserve(n_blocks * self.size)
        assert done == (free + evictable >= n_blocks * self.size)
        self.reserved += done * n_blocks * self.size
        self._take(self.tier.take_dropped())

    @rule()
    def give_back(self) -> None:
        self.tier.give_back(self.reserved)
        self.reserved = 0

    @rule()
    def flush(self) -> None:
        self.cache.flush()

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        self._take(self.tier.take_dropped())
        assert self.tier.usage().evictable == 0

    @rule(policy=st.sampled_from(EXACT))
    def set_policy(self, policy: str) -> None:
        self.cache.tree.order.rebuild(self.cache.tree.nodes(), make_policy(policy))

    @rule(pages=PAGES, namespace=NAMESPACES, limit=SOME)
    def restorable(self, pages: list[int], namespace: str | None, limit: int) -> None:
        key = self._key(pages)
        limit *= self.page_size
        stored = self._prefix(key[:limit], namespace) if limit else 0
        cached = self.cache.match(key, namespace, max_match=limit).length
        assert self.tier.restorable(key, namespace, limit) == max(stored, cached)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "cache"):
            return
        check(self.cache)
        assert not self.tier.take_dropped()
        on_disk = {
            path
            for node in self.cache.tree.nodes()
            if node.stored
            for path in self._paths(path_tokens(node), node.namespace, 0, node.start + node.stored)
        }
        assert on_disk == self.blocks
        usage = self.tier.usage()
        assert usage.private == self.reserved
        assert usage.locked + usage.evictable == len(self.blocks) * self.size
        assert usage.locked >= len(self._locked()) * self.size
        assert self.locks or not usage.locked

    def teardown(self) -> None:
        """Nothing is left behind."""
        if not hasattr(self, "cache"):
            return
        while self.leases:
            self.release()
        while self.locks:
            self.unlock(0)
        self.clear()
        self.cache.flush()
        assert not self.blocks
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
