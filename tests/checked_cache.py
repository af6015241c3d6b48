"""A RadixCache that is compared with the brute-force model after each operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from radixlm.cache import Lease, Pin, RadixCache, Usage, make_policy
from radixlm.core.clock import VirtualClock
from radixlm.core.errors import PinError
from radixlm.core.misses import MissReason, MissReport
from tests.cache_model import (
    Mismatch,
    PrefixModel,
    Watch,
    codes_after,
    compare_tree,
    expected_to_work,
    same,
)
from tests.invariants import check, owners
from tests.tree_pictures import tree_snapshot

POISON = -1
SHOWN = 12
SHOWN_NODES = 1_000


@dataclass(eq=False)
class Reader:
    """A lease, and what must be true of it. `row` is the device's row: slots as it was told."""

    lease: Lease
    tokens: npt.NDArray[np.int32]
    codes: list[int]
    committed: int
    row: list[int]
    priority: int
    why: MissReport


@dataclass(frozen=True)
class Held:
    """A pin, and the path it is on."""

    pin: Pin
    codes: list[int]


class CheckedCache:
    """The memory says of every slot which whole prefix was computed into it, so that any wrong
    sharing shows.
    """

    def __init__(
        self,
        capacity: int,
        page_size: int = 1,
        *,
        enabled: bool = True,
        ghost_budget: int | None = None,
        pin_budget: int | None = None,
        order_every: int = 1,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.clock = VirtualClock()
        self.cache = RadixCache(
            capacity,
            page_size,
            enabled=enabled,
            ghost_budget=ghost_budget,
            pin_budget=pin_budget,
            clock=self.clock,
        )
        self.capacity, self.page_size, self.enabled = self.cache.capacity, page_size, enabled
        self.quantum = self._up(max(1, min(256, self.capacity // 64)))
        self.pin_budget = self.capacity // 2 if pin_budget is None else pin_budget
        self.model = PrefixModel(page_size)
        self.watch = Watch(self.cache.tree, self.model, self.clock.now, order_every)
        self.readers: list[Reader] = []
        self.pins: dict[int, Held] = {}
        self.free = set(range(self.capacity))
        self.memory = np.full(self.capacity, POISON, dtype=np.int64)
        self._private = 0

    def look(self, tokens: npt.NDArray[np.int32], namespace: Hashable) -> None:
        """A match finds the longest prefix, and its slots hold it; it leaves no trace."""
        version = self.cache.tree.version
        match = self.cache.match(tokens, namespace, max_match=tokens.size)
        codes = self.model.codes(namespace, tokens.tolist())
        same("match", match.length, self.model.match(codes, tokens.size))
        self._holds(match.slots(), codes[1 : match.length + 1])
        same("holder", self.cache.holders(tokens).get(namespace, 0), match.length)
        same("version after a match", self.cache.tree.version, version)
        self._after(None)

    def acquire(
        self,
        tokens: npt.NDArray[np.int32],
        namespace: Hashable,
        max_match: int | None = None,
        priority: int = 0,
    ) -> Reader:
        codes = self.model.codes(namespace, tokens.tolist())
        expired = self._expire()
        found = self.cache.match(tokens, namespace, max_match=max_match)
        left = self.cache.available_after(found)
        limit = min(tokens.size, tokens.size - 1 if max_match is None else max_match)
        length = self.model.match(codes, limit)
        lease = expected_to_work(
            lambda: self.cache.acquire(tokens, namespace, max_match=max_match, priority=priority)
        )
        same("cached", (lease.cached, lease.length, lease.committed), (length,) * 3)
        if not expired:  # it expires pins first
            same("available after a match", self.cache.available, left)
        why = lease.why()
        self._explains(why, tokens, codes, limit)
        self.model.lock(codes, 0, length, priority)
        self.model.touch(codes, length)
        reader = Reader(lease, tokens, codes, length, lease.slots.tolist(), priority, why)
        self.readers.append(reader)
        self._after(reader)
        return reader

    def extend(self, reader: Reader, n_tokens: int) -> bool:
        """Extend, and compute: the whole prefix is written into each new slot."""
        start = len(reader.row)
        reserved = self._up(start) - start
        missing = max(self._up(start + n_tokens) - self._up(start), 0)
        if missing > len(self.free) + self.model.evictable:
            self._expire()
        room = len(self.free) + self.model.evictable
        short = max(missing - len(self.free), 0)
        evicted = min(max(short, self.quantum), self.model.evictable) if short else 0
        slots = expected_to_work(lambda: reader.lease.extend(n_tokens))
        freed = self.watch.take_freed()
        same("room", slots is not None, missing <= room)
        same("evicted tokens", len(freed), evicted if slots is not None else 0)
        self._freed(freed)
        if slots is None:
            self.counts["refused"] += 1
            self._after(reader)
            return False
        new = reader.lease.private_slots()[start + reserved - reader.committed :].tolist()
        same("new slots that were free", (len(new), set(new) <= self.free), (missing, True))
        self.free.difference_update(new)
        self._private += missing
        reader.row.extend(slots.tolist())
        same("slots", len(reader.row), start + n_tokens)
        self.memory[slots] = reader.codes[start + 1 : start + n_tokens + 1]
        self._after(reader)
        return True

    def commit(self, reader: Reader, upto: int) -> None:
        remap = expected_to_work(lambda: reader.lease.commit(upto))
        upto -= upto % self.page_size
        start, expected = reader.committed, None
        if upto > start and self.enabled:
            there = self.model.insert(reader.codes, reader.row[:upto])
            self.model.lock(reader.codes, start, upto, reader.priority)
            reader.committed = upto
            self._private -= upto - start
            self.counts["duplicates"] += there - start
            if there > start:
                self._freed(reader.row[start:there])
                expected = (start, self.model.slots(reader.codes, there)[start:])
        same("remap", remap and (remap.start, remap.slots.tolist()), expected)
        if remap is not None:
            self.counts["remaps"] += 1
            reader.row[start : start + remap.slots.size] = remap.slots.tolist()
        self._after(reader)

    def release(self, reader: Reader) -> None:
        same("why, frozen at acquire", reader.lease.why(), reader.why)
        private = reader.lease.private_slots().tolist()
        expected_to_work(reader.lease.release)
        self.readers.remove(reader)
        self.model.unlock(reader.codes, reader.committed)
        self._freed(private)
        self._private -= len(private)
        self.counts["aborts"] += reader.committed < len(reader.row)
        self._after(None)

    def pin(
        self, tokens: npt.NDArray[np.int32], namespace: Hashable, ttl: float | None = None
    ) -> None:
        """Pins what is cached; over the budget it raises and changes nothing."""
        self._expire()
        codes = self.model.codes(namespace, tokens.tolist())
        length = self.model.match(codes, tokens.size)
        total = self.model.pinned * self.page_size + self.model.unpinned(codes, length)
        works = length > 0 and total <= self.pin_budget
        try:
            pin = self.cache.pin(tokens, namespace, ttl=ttl)
        except PinError as error:
            same(f"pin refused: {error}", works, False)
            self.counts["pins refused"] += 1
        else:
            same("pinned", (pin.tokens, works), (length, True))
            self.model.pin(codes, length)
            self.pins[pin.id] = Held(pin, codes)
            self.counts["pins"] += 1
        self._after(None)

    def unpin(self, pin_id: int) -> None:
        self._expire()
        held = self.pins.pop(pin_id, None)
        if held is None:
            try:
                self.cache.unpin(pin_id)
            except PinError:
                return
            raise Mismatch(f"pin {pin_id} was let go of twice")
        expected_to_work(lambda: self.cache.unpin(pin_id))
        self.model.unpin(held.codes, held.pin.tokens)
        self._after(None)

    def flush(self) -> None:
        self._expire()
        evictable = self.model.evictable
        same("flushed", expected_to_work(self.cache.flush), evictable)
        freed = self.watch.take_freed()
        same("flushed slots", (len(freed), len(self.model.ghosts)), (evictable, 0))
        self._freed(freed)
        self._after(None)

    def set_policy(self, name: str) -> None:
        self.cache.tree.set_policy(make_policy(name))
        self._after(None)

    def close(self) -> None:
        """Let everything go: nothing may be left behind."""
        while self.readers:
            self.release(self.readers[-1])
        self._expire()
        for pin_id in list(self.pins):
            self.unpin(pin_id)
        self.flush()
        self.verify()
        same(
            "nodes, ghosts after a flush",
            (self.cache.tree.node_count, self.cache.tree.ghosts.size),
            (0, 0),
        )
        same("free after a flush", len(self.free), self.capacity)

    def verify(self) -> None:
        """Compare everything."""
        check(self.cache)
        compare_tree(self.cache.tree, self.model)
        owned = owners(self.cache)
        free = {
            slot for owner, slots in owned if owner == "the free list" for slot in slots.tolist()
        }
        same("free slots", free, self.free)
        nodes: dict[int, list[int]] = {}
        for reader in self.readers:
            self._verify_reader(reader, nodes)
        self._verify_order()
        if self.cache.tree.node_count < SHOWN_NODES:
            views = tree_snapshot(self.cache.tree).nodes
            shown = {(view.id, view.parent_id, view.resident) for view in views}
            nodes_now = self.cache.tree.nodes()
            same(
                "snapshot", shown, {(n.id, n.parent and n.parent.id, n.resident) for n in nodes_now}
            )
        self.counts["checks"] += 1

    def _verify_reader(self, reader: Reader, nodes: dict[int, list[int]]) -> None:
        lease, row = reader.lease, reader.row
        same("length, committed", (lease.length, lease.committed), (len(row), reader.committed))
        same("lease.slots", lease.slots.tolist(), row)
        self._holds(lease.slots, reader.codes[1 : len(row) + 1])
        table = lease.block_table()
        same("pages in the table", table.size, self._up(len(row)) // self.page_size)
        if self.page_size > 1:
            offsets = np.arange(len(row)) % self.page_size
            same("block table", (table.repeat(self.page_size)[: len(row)] * self.page_size
                                 + offsets).tolist(), row)  # fmt: skip
        at = 0
        for segment in lease.segments():
            same("segment start", segment.start, at)
            slots = [slot for extent in segment.extents for slot in range(*extent)]
            same("segment slots", slots, row[segment.start : segment.stop])
            at = segment.stop
            if segment.node_id is not None:
                same("slots of a node", slots, nodes.setdefault(segment.node_id, slots))
            else:
                same("private tail", segment.start, reader.committed)
        same("end of the segments", at, len(row))

    def _verify_order(self) -> None:
        """Depth first: whichever prefix one takes, its readers are neighbours."""
        order = self.cache.depth_first(reader.lease for reader in self.readers)
        place = {lease: index for index, lease in enumerate(order)}
        rows: dict[int, list[int]] = {}
        for reader in self.readers:
            for code in reader.codes[: reader.committed + 1 : self.page_size]:
                rows.setdefault(code, []).append(place[reader.lease])
        for places in rows.values():
            same("neighbours", max(places) - min(places) + 1, len(places))

    def _explains(
        self, why: MissReport, tokens: npt.NDArray[np.int32], codes: list[int], limit: int
    ) -> None:
        """The report agrees with all pages that are cached or remembered."""
        model, size, known = self.model, self.page_size, tokens.size
        matched = model.match(codes, limit)
        same("why: of, cached", (why.prompt_tokens, why.cached), (known, matched))
        self.counts[f"why {why.reason}"] += 1
        if not self.enabled:
            same("why", why.reason, MissReason.DISABLED)
        elif limit - matched < size:
            capped = MissReason.LAST_TOKEN if limit >= known - 1 else MissReason.HELD_BACK
            torn = matched == known - known % size and limit > matched
            same("why", why.reason, MissReason.PAGE_FLOOR if torn else capped)
        elif (ghost := model.ghosts.get(codes[matched + size])) is not None:
            age = self.clock.now() - ghost.evicted_at
            same("why", (why.reason, why.position), (MissReason.EVICTED, matched))
            gone = takewhile(model.ghosts.__contains__, codes[matched + size : limit + 1 : size])
            same("why: evicted", why.evicted, size * len(list(gone)))
            if why.evicted_ago is None or not 0 <= why.evicted_ago <= age:
                raise Mismatch(f"why: evicted {why.evicted_ago} s ago, it was {age}")
        elif why.reason is MissReason.DIVERGED:
            self._diverged(why, tokens[:limit].tolist(), codes)
        else:
            explained = matched and model.behind.get(codes[matched])
            same("why", (why.reason, bool(explained)), (MissReason.NEW, False))

    def _diverged(self, why: MissReport, tokens: list[int], codes: list[int]) -> None:
        at, page_end = why.position, why.cached + self.page_size
        same("diverged within the page", why.cached <= at < page_end, True)
        same("requested", list(why.requested_continuation), tokens[at : at + SHOWN])
        same("diverged", why.cached_continuation[0] != tokens[at], True)
        if page_end - at <= len(why.cached_continuation):
            cached = codes_after(codes[at], why.cached_continuation[: page_end - at])[-1]
            same("what diverged is known", cached in self.model.behind[codes[why.cached]], True)

    def _expire(self) -> int:
        """What `pins.expire()` must do at this moment, in the model; how many pins end."""
        now, before = self.clock.now(), len(self.pins)
        ends = [(each.pin.expires_at, each.pin.id) for each in self.pins.values()]
        for _, pin_id in sorted(end for end in ends if end[0] is not None and end[0] <= now):
            held = self.pins.pop(pin_id)
            self.model.unpin(held.codes, held.pin.tokens)
            self.counts["pins expired"] += 1
        return before - len(self.pins)

    def _after(self, reader: Reader | None) -> None:
        self.counts["operations"] += 1
        if reader is not None:
            self._verify_reader(reader, {})
        cache, model, size = self.cache, self.model, self.page_size
        usage = cache.usage()
        expected = Usage(len(self.free), self._private, model.locked * size, model.evictable)
        same("usage", usage, expected)
        same("conservation", sum(usage), self.capacity)
        ghosts = len(model.ghosts) * size
        same(
            "pinned, ghosts",
            (cache.tree.pinned_size, cache.tree.ghosts.size),
            (model.pinned * size, ghosts),
        )
        stats = cache.tree.stats
        left = stats.evicted_tokens - stats.revived_tokens - stats.forgotten_tokens
        same("ghosts: evicted, less revived and forgotten", left, ghosts)

    def _holds(self, slots: npt.NDArray[np.int32], codes: list[int]) -> None:
        """The memory of `slots` holds exactly these prefixes."""
        if self.memory[slots].tolist() != codes:
            raise Mismatch(f"slots {slots} hold other prefixes than they should")

    def _freed(self, slots: list[int]) -> None:
        same("freed twice", self.free & set(slots), set())
        self.free.update(slots)
        self.memory[slots] = POISON

    def _up(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size) * self.page_size
