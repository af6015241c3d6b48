"""The radix cache: the only way to the slots. It hands out leases and keeps the sums."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

from radixlm.cache.components.component import Component, cut
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_hold import Window
from radixlm.cache.components.window_slots import WindowSize
from radixlm.cache.endings import Ending
from radixlm.cache.lease import Lease, given_back, left_behind
from radixlm.cache.pins import Pin, PinBoard
from radixlm.cache.places.stored import StoredTier
from radixlm.cache.radix.allocator import SlotAllocator
from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.eviction import Chooser, EvictionPolicy
from radixlm.cache.radix.node import Inserted, Match, TreeNode, upward
from radixlm.cache.radix.paths import known_end
from radixlm.cache.radix.tree import RadixTree
from radixlm.cache.radix.tree_stats import Reuse
from radixlm.core.clock import Clock, WallClock
from radixlm.core.config import check_page_size
from radixlm.core.errors import ConfigError, InvalidKeyError, PinError
from radixlm.core.keys import Key, KeyLike, Slots, as_trusted_key
from radixlm.core.misses import POOL_SCALES, Explained, MissReason, MissReport
from radixlm.core.moves import NOWHERE, Place
from radixlm.core.request import Hint

# Trimming a leaf copies what is left of it, so decoding under pressure must not do it per token,
# and what is freed together is a longer run. A quantum is a small share of the pool, and so are
# all reserves: what is evicted before its time is a possible hit less.
EVICTION_QUANTUM = 256
_QUANTA_IN_POOL = 64
_SHARE_OF_RESERVES = 1 / 8
# Evicted tokens that are remembered, in pools, unless a policy wants others.
_GHOSTS = 4
_OWN_SIZE = POOL_SCALES.index(1.0)


class RadixCache:
    """A cache of tokens: which slots hold which. Every slot is free, private, locked or evictable:

        FREE -> PRIVATE (a lease's) -> CACHED (the tree's: locked or evictable) -> FREE

    Leases find the longest cached prefix, get slots for the rest and commit what they computed,
    while they run. Used by one thread. tree: to be looked at; the cache alone changes it. tiers:
    what is stored in host memory and on disk, where there are such stores, in this order.

    >>> cache = RadixCache(capacity=100)
    >>> first = cache.acquire([1, 2, 3, 4])
    >>> slots = first.extend(4 - first.cached)      # compute keys and values into these
    >>> first.commit(4)
    >>> first.release()
    >>> second = cache.acquire([1, 2, 3, 9])
    >>> second.cached
    3
    >>> second.release()
    >>> cache.usage()
    Usage(free=96, private=0, locked=0, evictable=4)
    """

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        *,
        enabled: bool = True,
        policy: EvictionPolicy | None = None,
        ghost_budget: int | None = None,
        pin_budget: int | None = None,
        reserve: int = 0,
        clock: Clock | None = None,
        windows: WindowSize | None = None,
        components: Sequence[Callable[[RadixTree], Component]] = (),
    ) -> None:
        """capacity: slots. policy: LRU by default. ghost_budget: evicted tokens to remember, four
        times the capacity by default, eight by a policy that learns. pin_budget: tokens that may be
        pinned, half the capacity by default. reserve: slots that a lease is given beyond what it
        asks for, taken back when they are needed: so the tokens of one that grows bit by bit lie in
        long runs. windows: where layers with a window have slots of their own. components: what
        makes others, of the tree. Raises ConfigError.
        """
        check_page_size(page_size)
        if capacity < page_size:
            raise ConfigError(f"a pool of {capacity} slots holds no page of {page_size}")
        self.capacity = capacity - capacity % page_size
        self.page_size = page_size
        self.enabled = enabled
        self.clock = clock or WallClock()
        self._reuse = Reuse(self.capacity, page_size)
        remembered = policy.ghosts if isinstance(policy, Chooser) else _GHOSTS
        self.tree = RadixTree(
            page_size,
            policy=policy,
            ghost_budget=remembered * self.capacity if ghost_budget is None else ghost_budget,
            clock=self.clock,
        )
        self.tree.watch(self._reuse)
        self.allocator = SlotAllocator(self.capacity, page_size)
        self._quantum = self.round_up(max(min(EVICTION_QUANTUM, capacity // _QUANTA_IN_POOL), 1))
        self._reserve = self.round_down(reserve)
        budget = self.capacity // 2 if pin_budget is None else pin_budget
        if not 0 <= budget <= self.capacity:
            raise ConfigError(f"--max-pinned-tokens {budget} of a pool of {self.capacity} tokens")
        self.windows = None if windows is None else Window(windows, self.capacity, self.tree)
        made = [] if self.windows is None else [self.windows]
        self.components: tuple[Component, ...] = (*made, *[make(self.tree) for make in components])
        self.states = next((each for each in self.components if isinstance(each, StateSlots)), None)
        self.pins = PinBoard(self.tree, budget, self.clock, self.components)
        self.leases: dict[Lease, None] = {}  # in order, so that runs repeat
        self._private = self.laid_aside = 0
        self.tiers: list[StoredTier] = []

    def add_store(
        self, place: Place, block_tokens: int, capacity_tokens: int, state_blocks: int = 0
    ) -> StoredTier:
        """Keep the books of a store from now on, as one of `tiers`. Raises ConfigError."""
        sizes, apart = (block_tokens, capacity_tokens, self.capacity), (self.windows, self.states)
        tier = StoredTier(self.tree, place, *sizes, *apart, state_blocks)
        self.tiers = sorted([*self.tiers, tier], key=lambda each: each.place)
        return tier

    @property
    def available(self) -> int:
        """Slots that leases can still get: free, evictable, and laid aside for other leases."""
        return self.allocator.free_size + self.tree.evictable_size + self.laid_aside

    @property
    def largest_request(self) -> int:
        """Tokens that one request can get even when all that may be pinned is pinned."""
        return self.round_down(self.capacity - self.pins.budget)

    def usage(self) -> Usage:
        free, tree = self.allocator.free_size, self.tree
        return Usage(free, self._private, tree.protected_size, tree.evictable_size)

    def match(
        self, key: KeyLike, namespace: Hashable = None, *, max_match: int | None = None
    ) -> Match:
        """The match that `acquire` would find now; leaves no trace."""
        array = as_trusted_key(key)
        limit = array.size - 1 if max_match is None else max(max_match, 0)
        return self._match(array[:limit], namespace)

    def available_after(self, match: Match, spared: Iterable[Lease] = ()) -> int:
        """Slots that would be left once `match` is locked, without evicting what these leases,
        released before, have left behind. O(nodes on their paths).
        """
        return self.available - match.unlocked() - left_behind(spared, match)

    def available_without(self, leases: Iterable[Lease], match: Match) -> int:
        """The same, if these leases were released first. O(nodes on their paths)."""
        return self.available_after(match) + given_back(leases, match)

    def has_room(self, n_slots: int) -> bool:
        """Whether leases can get `n_slots`; if not at once, pins that have ended are let go."""
        if n_slots > self.available:
            self.pins.expire()
        return n_slots <= self.available

    def acquire(
        self,
        key: KeyLike,
        namespace: Hashable = None,
        *,
        n_tokens: int | None = None,
        max_match: int | None = None,
        priority: int = 0,
        match: Match | None = None,
    ) -> Lease:
        """Take the longest cached prefix of `key` and lock it. Raises InvalidKeyError.

        n_tokens: how many tokens of the key are known, all by default; the rest is room for those
        to come. max_match: how many may be matched; all known ones but the last by default, whose
        logits are wanted. match: what `match` found for the same; found anew if the tree has
        changed.
        """
        array = as_trusted_key(key)
        size = array.size if n_tokens is None else n_tokens
        if not 0 < size <= array.size:
            raise InvalidKeyError(f"{size} tokens are known, it says, of a key of {array.size}")
        limit = size - 1 if max_match is None else max(0, min(max_match, size))
        self.pins.expire()
        sought = array[:limit]
        if match is None or match.version != self.tree.version:
            match = self._match(sought, namespace)
        last, known = known_end(match.agreed, sought, self.page_size)
        stored = self._stored(last, known)
        ending = self._ending(match, known, array, size, limit, stored) if self.enabled else None
        in_use = self._private - self.laid_aside + self.tree.protected_size
        expected = self._reuse.expected(last, known, in_use)
        if (chooser := self.tree.order.chooser) is not None:
            under_lru = expected[_OWN_SIZE]
            chooser.judge(match.length, under_lru, max(stored), size, self.capacity)
        if self.tiers:  # a pool of any size has the same ones
            expected = tuple([max(each, *stored) for each in expected])
        node = self.tree.inc_lock_ref(match, priority)
        for tier in self.tiers if match.length else ():
            tier.queue.note(node, match.length)
        reason = MissReason.DISABLED if ending is None else ending.reason
        self.tree.stats.endings[reason] += 1
        lease = Lease(self, array, node, ending, size, priority, known, expected)
        if self.components:
            found = lease.slots, node, match.agreed.length, size
            lease.holds = tuple([component.hold(*found) for component in self.components])
        self.leases[lease] = None
        return lease

    def hold(self, key: Key, namespace: Hashable, upto: int) -> Lease:
        """A lease on what is resident of key[:upto], no use: for copies to other places."""
        match = self._match(key[:upto], namespace).agreed
        lease = Lease(self, key, self.tree.hold(match), None, key.size)
        self.leases[lease] = None
        return lease

    def hold_read(self, key: Key, namespace: Hashable, upto: int, seen: int) -> Lease | None:
        """The same for copies of what follows from there; seen, None: see Component."""
        lease = self.hold(key, namespace, upto)
        for component in self.components:
            hold = component.hold_read(lease.slots, seen)
            if hold is None:
                lease.release(used=False)
                return None
            lease.holds = (*lease.holds, hold)
        return lease

    def explain(
        self, key: Key, namespace: Hashable = None, *, everywhere: bool = False
    ) -> Explained:
        """Explain what `acquire(...).why()` would say, without a trace. everywhere: and holders."""
        holders = self.holders(key) if everywhere else {}
        if not self.enabled:
            return Explained(MissReport(key.size, 0, MissReason.DISABLED, 0), holders)
        match = self.match(key, namespace)
        last, known = known_end(match.agreed, key[:-1], self.page_size)
        stored = self._stored(last, known)
        ending = self._ending(match, known, key, key.size, key.size - 1, stored)
        return Explained(ending.report(self.clock.now()), holders)

    def _stored(self, last: TreeNode | None, known: int) -> Sequence[int]:
        """Tokens of a path by place; last, known: as `RadixTree.known` gives them."""
        stored = [*NOWHERE]
        for tier in self.tiers:
            stored[tier.place] = tier.prefix(last, known)
        return stored

    def _ending(
        self, match: Match, known: int, key: Key, wanted: int, limit: int, stored: Sequence[int]
    ) -> Ending:
        """The reason why a match ended."""
        block = self.tiers[0].block_tokens if self.tiers else 0
        return Ending(match, known, key, wanted, limit, self.page_size, stored, block)

    def _match(self, sought: Key, namespace: Hashable) -> Match:
        if sought.size and self.enabled:
            found = self.tree.match_prefix(sought, namespace)
            return cut(self.components, found) if self.components else found
        return Match(0, None, 0, namespace, self.tree.version)

    def pin(self, key: KeyLike, namespace: Hashable = None, *, ttl: float | None = None) -> Pin:
        """Keep a cached prefix for `ttl` seconds, or until `unpin`. Raises PinError, changes
        nothing.
        """
        if not self.enabled:
            raise PinError("the cache is off, so there is nothing to pin")
        self.pins.expire()
        return self.pins.add(self._match(as_trusted_key(key), namespace), ttl)

    def keep(self, key: KeyLike, namespace: Hashable, ttl: float, owner: str) -> Pin:
        """Pin the whole pages of `key` for an owner; the pin yields to later ones, see PinBoard.

        Raises PinError when they are not all cached, are none, or have no room.
        """
        if not self.enabled:
            raise PinError("the cache is off, so there is nothing to keep")
        self.pins.expire()
        whole = as_trusted_key(key)
        if not (end := self.round_down(whole.size)):
            raise PinError(f"{whole.size} tokens are less than a page of {self.page_size}")
        return self.pins.keep(whole[:end], namespace, ttl, owner)

    def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when there is no such pin (any more)."""
        self.pins.expire()
        self.pins.remove(pin_id)

    def hint(self, key: KeyLike, namespace: Hashable, hint: Hint) -> int:
        """Tell a policy that learns what comes after requests for `key`, which are over; returns of
        how many cached tokens. What running requests hold is theirs. O(nodes on the path).
        """
        match, chooser = self.tree.match_prefix(key, namespace), self.tree.order.chooser
        if match.node is not None and chooser is not None:
            for node in upward(match.node):
                if not node.lock_ref and node.end:
                    chooser.hinted(node, hint.place, self.tree.uses)
        return match.length

    def holders(self, key: KeyLike) -> dict[Hashable, int]:
        """How many tokens of `key` each namespace holds: for operators, not for requests."""
        names = self.tree.roots
        return {n: its for n in names if (its := self.tree.match_prefix(key, n).length)}

    def depth_first(self, leases: Iterable[Lease]) -> list[Lease]:
        """Order leases by their place in the tree, so that those below a node are neighbours."""
        return sorted(leases, key=lambda lease: [node.id for node in upward(lease.node)][::-1])

    def flush(self) -> int:
        """Drop all tokens that are not locked, in host memory too, and all ghosts; return how many
        were resident. What is on disk stays, see `StoredTier.clear`.
        """
        self.pins.expire()
        for tier in self.tiers:
            if tier.place is Place.HOST:
                tier.clear()
        self._free(freed := self.tree.evict(self.tree.evictable_size))
        self.tree.forget_ghosts()
        return freed.size

    def discard(self, key: KeyLike, namespace: Hashable, keep: int) -> None:
        """Drop what is cached and unlocked, or stored, of `key` after its first `keep` tokens."""
        keep = self.round_down(keep)
        for tier in self.tiers:
            tier.discard(as_trusted_key(key), namespace, keep)
        self._free(self.tree.discard(self.tree.match_prefix(key, namespace), keep))

    def round_up(self, n_tokens: int) -> int:
        """The smallest number of whole pages' slots that holds `n_tokens`."""
        return -(-n_tokens // self.page_size) * self.page_size

    def round_down(self, n_tokens: int) -> int:
        """The tokens of `n_tokens` that fill whole pages."""
        return n_tokens - n_tokens % self.page_size

    def take_private(self, lease: Lease, n_slots: int, ahead: int) -> Slots | None:
        """Slots in whole pages for a lease, or None: `n_slots`, and as a reserve of the `ahead`
        that it may still ask for what can be laid aside. Eviction is by a quantum at least.
        """
        if not self.has_room(n_slots + lease.reserve):
            return None
        self._make_room(lease, n_slots)
        n_slots += self._affordable_reserve(ahead, n_slots)
        self._make_room(lease, n_slots)
        return self.take_free(lease, n_slots)

    def take_free(self, lease: Lease, n_slots: int) -> Slots | None:
        """Slots in whole pages for a lease that are free, or None."""
        if n_slots > self.allocator.free_size:
            return None
        self._private += n_slots
        return self.allocator.allocate(n_slots // self.page_size, after=lease.last_slot)

    def _affordable_reserve(self, ahead: int, n_slots: int) -> int:
        reserve = min(self.round_up(ahead), self._reserve)
        unused = self.allocator.free_size + self.tree.evictable_size - n_slots
        most = _SHARE_OF_RESERVES * self.capacity - self.laid_aside
        return reserve if reserve <= min(unused, most) else 0

    def _make_room(self, lease: Lease, n_slots: int) -> None:
        """Free slots by eviction; if that is too little, from reserves of others, oldest first."""
        short = n_slots - self.allocator.free_size
        evictable = self.tree.evictable_size
        if short > 0 and evictable:
            self._free(self.tree.evict(min(max(short, self._quantum), evictable)))
        for other in self.leases:
            if self.allocator.free_size >= n_slots:
                return
            if other is not lease:
                other.give_back_reserve()

    def insert(self, lease: Lease, upto: int) -> Inserted:
        """Hand a lease's slots up to `upto` to the tree; its lock moves to the new path."""
        inserted = self.tree.insert(
            lease.key[:upto], lease.slots[:upto], start=lease.node, priority=lease.priority
        )
        self._private -= upto - inserted.already_there
        for tier in self.tiers:
            tier.queue.note(inserted.node, min(lease.known, upto))
        return inserted

    def give_back(self, slots: Slots) -> None:
        """Free a lease's private slots."""
        self._free(slots)
        self._private -= slots.size

    def drop(self, lease: Lease, *, used: bool) -> None:
        """End a lease."""
        del self.leases[lease]
        for hold in lease.holds:
            hold.release(lease.committed, lease.slots, used=used)
        if lease.private_size:
            self.give_back(lease.private_slots())
        self.tree.dec_lock_ref(lease.node, used=used, hint=lease.hint.place)

    def _free(self, slots: Slots) -> None:
        """Free slots of tokens that are gone, and what components have of them."""
        for component in self.components:
            component.drop(slots)
        self.allocator.free(slots)
