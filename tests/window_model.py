"""A RadixCache with window slots that is compared with a brute-force model after each operation.

The model knows prefixes by number (see cache_model) and keeps of each cached token how many leases
and pins lock its window slot, and how soon it goes. The device's memory says of each window slot
which prefix was computed into it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from radixlm.cache import Lease, Pin, RadixCache
from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.errors import PinError
from radixlm.core.keys import Slots
from tests.cache_model import code_at_start, codes_after, root_code, same
from tests.invariants import check

NOWHERE = -1
Rank = tuple[int, int, int]


@dataclass(eq=False)
class WindowReader:
    """A lease. codes: of its prefixes. names: of its tokens in the tree. start: where what it
    holds begins, by the model. ends: see WindowHold.
    """

    lease: Lease
    codes: list[int]
    names: list[int]
    start: int
    ends: tuple[int, ...]


class CheckedWindows:
    """Operations as a scheduler's, each followed by all comparisons."""

    def __init__(self, size: WindowSize, n_slots: int, page_size: int, pin_budget: int) -> None:
        self.counts: Counter[str] = Counter()
        self.size, self.page = size, page_size
        self.cache = RadixCache(n_slots, page_size, windows=size, pin_budget=pin_budget)
        assert self.cache.windows is not None
        self.windows = self.cache.windows
        self.readers: list[WindowReader] = []
        self.pins: list[tuple[Pin, list[int]]] = []
        # Copies to a place beside the pool: what holds the slots, the window slots, and names.
        self.copies: list[tuple[Lease, Slots, list[int]]] = []
        self.locks: Counter[int] = Counter()
        self.copied: Counter[int] = Counter()
        self.ranks: dict[int, Rank] = {}
        self.found: set[int] = set()
        self.time = 0
        self.place = np.full(n_slots, NOWHERE, dtype=np.int64)
        self.memory = np.full(size.capacity, NOWHERE, dtype=np.int64)

    # What is there, by a walk over the tree

    def there(self) -> dict[int, int]:
        """Every cached token's window slot, or NOWHERE, by its name."""
        found = {}
        for node in self.cache.tree.nodes():
            codes = codes_after(code_at_start(node), node.tokens().tolist())
            slots = self.windows.of[node.slots].tolist()
            found |= dict(zip(self.names(codes), slots, strict=False))
        return found

    def names(self, codes: list[int]) -> list[int]:
        """Of each token one that other tokens have only in the same page: that of its page's end,
        and its place there. Tokens after the last whole page have none.
        """
        ends = codes[self.page :: self.page]
        return [code * self.page + place for code in ends for place in range(self.page)]

    def first_seen(self, position: int) -> int:
        first = max(0, position - self.size.window + 1)
        return first - first % self.page

    def behind(self, position: int) -> int:
        block, first = self.size.block, self.first_seen(max(position - self.size.spare, 0))
        if block > 1:
            whole = position // block * block
            first = min(first, self.first_seen(max(whole - self.page, 0)) // block * block)
        return first

    def longest(self, names: list[int], limit: int) -> tuple[int, int]:
        """How much of a path is cached with its last window there; and how much at all."""
        there, whole = self.there(), 0
        limit -= limit % self.page
        while whole < limit and names[whole] in there:
            whole += 1
        for end in range(whole, -1, -self.page):
            window = names[self.first_seen(end) : end]
            if all(there[name] != NOWHERE for name in window):
                return end, whole
        raise AssertionError("nothing is always there")

    # Operations

    def acquire(self, tokens: list[int], namespace: str) -> WindowReader:
        codes = codes_after(root_code(namespace), tokens)
        key = np.array(tokens, dtype=np.int32)
        names = self.names(codes)
        length, whole = self.longest(names, len(tokens) - 1)
        found = self.cache.match(key, namespace)
        left = self.windows.available - self.windows.locked_anew(found)
        lease = self.cache.acquire(key, namespace)
        same("cached", lease.cached, length)
        same("available", self.windows.available, left)
        self.counts["cut"] += length < whole
        ends = length, whole, len(tokens)
        reader = WindowReader(lease, codes, names, self.first_seen(length), ends)
        self.locks.update(names[reader.start : length])
        self.readers.append(reader)
        return reader

    def extend(self, reader: WindowReader, n_tokens: int) -> bool:
        """Extend by so many and compute them, as one step does."""
        before, free = self.there(), self.windows.free
        start, end = reader.lease.length, reader.lease.length + n_tokens
        wanted = self._up(end) - self._up(start)
        room = wanted <= self.windows.available and self.cache.has_room(wanted)
        slots = reader.lease.extend(n_tokens)
        same("room", slots is not None, room)
        if slots is None:
            self.counts["refused"] += 1
            return False
        self._evicted(before, wanted, free)
        self._move()
        codes = reader.codes[start + 1 : end + 1]
        self.memory[self.place[slots]] = codes
        self._reads(reader)
        return True

    def pass_by(self, reader: WindowReader) -> None:
        lease, stop = reader.lease, self.behind(reader.lease.length)
        lease.pass_by(lease.length)
        if stop - reader.start < max(self.size.spare, 1):
            return
        start, reader.start = reader.start, stop
        last = min(stop, lease.committed)
        *found, ends = ({*range(self.behind(end), self._up(end))} for end in reader.ends)
        matched = found[0] | found[1]
        ends -= matched
        held = range(start, last)
        inside = [reader.names[at] for at in held if at not in ends | matched]
        passed = [reader.names[at] for at in held if at in ends]
        ended = [reader.names[at] for at in held if at in matched]
        self._unlock(inside, 0)
        self._unlock(passed, 1)
        self._unlock(ended, 1, found=True)
        self.found.update(ended)
        self.counts["passed"] += stop - start

    def commit(self, reader: WindowReader, upto: int) -> None:
        start, before = reader.lease.committed, self.there()
        reader.lease.commit(upto)
        self._move()
        stop = reader.lease.committed
        held = reader.names[max(start, reader.start) : stop]
        self.counts["healed"] += sum(before.get(name) == NOWHERE for name in held)
        for name in held:
            if before.get(name, NOWHERE) == NOWHERE:
                self._forget(name)
        self.locks.update(held)
        self._reads(reader)

    def release(self, reader: WindowReader) -> None:
        stop = reader.lease.committed
        reader.lease.release()
        self.readers.remove(reader)
        self._unlock(reader.names[reader.start : stop], 2)

    def pin(self, tokens: list[int], namespace: str) -> None:
        names = self.names(codes_after(root_code(namespace), tokens))
        length, _ = self.longest(names, len(tokens))
        window = names[self.first_seen(length) : length]
        held = set(window).union(*(others for _, others in self.pins))
        fits = len(held) <= self.size.capacity - self.size.least(self.page)
        try:
            pin = self.cache.pin(np.array(tokens, dtype=np.int32), namespace)
        except PinError:
            self.counts["pins refused"] += 1
            return
        same("pinned", (pin.tokens, fits), (length, True))
        self.pins.append((pin, window))
        self.locks.update(window)

    def unpin(self, index: int) -> None:
        pin, window = self.pins.pop(index)
        self.cache.unpin(pin.id)
        self._unlock(window, 2)

    def discard(self, tokens: list[int], namespace: str, keep: int) -> None:
        self.cache.discard(np.array(tokens, dtype=np.int32), namespace, keep)

    def begin_copy(self, tokens: list[int], namespace: str) -> None:
        """Of all whole blocks of what is cached, those whose tokens all have window slots."""
        key, block = np.array(tokens, dtype=np.int32), self.size.block
        lease = self.cache.hold(key, namespace, len(tokens))
        names, there = self.names(codes_after(root_code(namespace), tokens)), self.there()
        end = lease.cached // block * block
        blocks = [names[at : at + block] for at in range(0, end, block)]
        held = [b for b in blocks if all(there[name] != NOWHERE for name in b)]
        mine = self.windows.begin_copy(lease.slots[:end], block)
        given = [there[name] if b in held else NOWHERE for b in blocks for name in b]
        same("copied", mine.tolist(), given)
        copied = [name for b in held for name in b]
        self.copies.append((lease, mine, copied))
        self.locks.update(copied)
        self.copied.update(copied)
        self.counts["copied"] += len(copied)

    def end_copy(self, index: int) -> None:
        lease, mine, copied = self.copies.pop(index)
        self.windows.end_copy(mine)
        lease.release(used=False)
        self.locks.subtract(copied)
        self.copied.subtract(copied)

    # Comparisons

    def verify(self) -> None:
        check(self.cache)
        there = self.there()
        locked = {name for name, count in self.locks.items() if count}
        unlocked = {name for name, slot in there.items() if slot != NOWHERE and name not in locked}
        usage = self.windows.usage()
        same("adds up", sum(usage), self.size.capacity)
        same("locked", usage.locked, len(locked))
        same("locked ones are there", all(there[name] != NOWHERE for name in locked), True)
        same("evictable", usage.evictable, len(unlocked))
        private = sum(
            self._up(reader.lease.length) - max(reader.lease.committed, reader.start)
            for reader in self.readers
        )
        same("private", usage.private, private)
        same("all locks", int(self.windows.locks.sum()), self.locks.total())
        for reader in self.readers:
            self._reads(reader)

    def close(self) -> None:
        """Let everything go: nothing may be left behind."""
        while self.readers:
            self.release(self.readers[-1])
        while self.pins:
            self.unpin(0)
        while self.copies:
            self.end_copy(0)
        self.cache.flush()
        same("left", self.windows.usage(), (self.size.capacity, 0, 0, 0))
        same("left of the mapping", int((self.windows.of >= 0).sum()), 0)

    def _reads(self, reader: WindowReader) -> None:
        """All that the next token sees was computed with just these tokens before it."""
        lease = reader.lease
        first = max(self.first_seen(lease.length), reader.start)
        slots = self.place[lease.slots[first:]]
        same("window", self.memory[slots].tolist(), reader.codes[first + 1 : lease.length + 1])
        same("it is long enough", reader.start <= self.first_seen(lease.length), True)

    def _evicted(self, before: dict[int, int], wanted: int, free: int) -> None:
        """Those that go first have become tombstones, no more than are needed for `wanted`."""
        after = self.there()
        gone = {name for name in before if name not in after}
        free += sum(before[name] != NOWHERE for name in gone)
        made = {name for name in after if before[name] != NOWHERE and after[name] == NOWHERE}
        rest = [name for name in after if before[name] != NOWHERE and not self.locks[name]]
        short, expected = wanted - free, set()
        if short > 0:
            count = min(max(short, self.size.capacity // 64), len(rest))
            last = sorted(self.ranks[name] for name in rest)[count - 1]
            expected = {name for name in rest if self.ranks[name] <= last}
        same("tombstones", made, expected)
        self.counts["tombstones"] += len(made)
        for name in made | gone:
            self._forget(name)

    def _forget(self, name: int) -> None:
        self.ranks.pop(name, None)
        self.found.discard(name)

    def _unlock(self, names: list[int], level: int, *, found: bool = False) -> None:
        """In order of the context. level: 2 for an end, 1 for one that was passed, 0 for what is
        inside; never less than before. found: a match ended there; the second one makes it an end,
        whatever it was before.
        """
        self.time += 1
        self.locks.subtract(names)
        free = [name for name in names if self.locks[name] == self.copied[name]]
        for place, name in enumerate(free):
            its = max(level, self.ranks.get(name, (0,))[0])
            if found:
                its = 2 if name in self.found else level
            self.ranks[name] = (its, self.time, 0 if level else place // self.page)

    def _move(self) -> None:
        moves = self.windows.take_moves()
        if moves:
            self.place[moves["windows"].slots] = moves["windows"].window_slots

    def _up(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page) * self.page


class WindowStress:
    """Random operations, always the same for the same seed."""

    def __init__(self, seed: int, checked: CheckedWindows, *, longest: int) -> None:
        self.checked = checked
        self._random = random.Random(seed)
        self._longest = longest
        self._keys: list[list[int]] = [[0]]

    def run(self, operations: int) -> Counter[str]:
        for _ in range(operations):
            self._step()
            self.checked.verify()
        self.checked.close()
        return self.checked.counts

    def _step(self) -> None:
        draw, checked = self._random, self.checked
        match draw.choices(range(8), (30, 60, 10, 2, 2, 1, 3, 3))[0]:
            case 0 if len(checked.readers) < 5:
                checked.acquire(self._key(), draw.choice("ab"))
            case 1 if checked.readers:
                self._compute(draw.choice(checked.readers))
            case 2 if checked.readers:
                checked.release(draw.choice(checked.readers))
            case 3:
                checked.pin(draw.choice(self._keys), draw.choice("ab"))
            case 4 if checked.pins:
                checked.unpin(draw.randrange(len(checked.pins)))
            case 5:
                key = draw.choice(self._keys)
                checked.discard(key, draw.choice("ab"), draw.randrange(len(key)))
            case 6 if len(checked.copies) < 2:
                checked.begin_copy(draw.choice(self._keys), draw.choice("ab"))
            case 7 if checked.copies:
                checked.end_copy(draw.randrange(len(checked.copies)))

    def _compute(self, reader: WindowReader) -> None:
        draw, lease = self._random, reader.lease
        left = lease.key.size - lease.length
        if not left:
            self.checked.commit(reader, lease.length)
            self.checked.release(reader)
            return
        if self.checked.extend(reader, min(left, draw.choice((1, 3, self.checked.size.step)))):
            if draw.random() < 0.6:
                self.checked.commit(reader, lease.length)
            self.checked.pass_by(reader)

    def _key(self) -> list[int]:
        draw = self._random
        old = draw.choice(self._keys[-6:])
        key = old[: draw.randint(0, len(old))] + draw.choices(range(2), k=draw.randint(1, 30))
        key = key[: self._longest]
        self._keys.append(key)
        return key


def setups() -> Iterator[tuple[WindowSize, int, int]]:
    """Size, slots, and tokens of a page: windows of one token, of less than a page, of several;
    without places beside the pool, and with blocks.
    """
    sizes = (1, 1, 4), (5, 1, 4), (12, 1, 8), (3, 4, 8), (9, 4, 4), (40, 1, 16)
    with_blocks = (5, 1, 4, 4), (12, 1, 8, 3), (9, 4, 4, 8)
    for window, page, step, *block in (*sizes, *with_blocks):
        size = WindowSize(window, 0, step, *block)
        capacity = size.least(page) + 2 * size.span(page)
        capacity -= capacity % page
        yield size._replace(capacity=capacity), 3 * capacity + 16 * page, page
