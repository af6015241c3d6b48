"""A seeded stress run of the radix cache against a brute-force model and a simulated memory.

    python benchmarks/cache_stress.py --operations 200000 --seed 0

The model knows no tree: it is the set of all cached prefixes, in whole pages. The memory says of
every slot which whole prefix was computed into it, so any wrong sharing shows. Small pools, few
tokens and several leases make splits, collisions and evictions common. After every operation the
conservation law and the contents that the operation touched are compared; every `--check-every`
operations everything is: check(), the tree prefix by prefix, the free slots one by one, which
shows that exactly the right pages were evicted. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from radixlm.cache import Lease, RadixCache, RadixTree, TreeNode
from radixlm.cache.cache import Usage
from radixlm.core.errors import CacheError, InvariantError
from radixlm.core.events import Event, Evicted, Inserted, Split

POISON = -1
T = TypeVar("T")


class Mismatch(AssertionError):  # noqa: N818
    """The cache and the model say different things."""


def same(what: str, got: object, expected: object) -> None:
    """Raise Mismatch unless both are equal."""
    if got != expected:
        raise Mismatch(f"{what}: got {got}, expected {expected}")


def expected_to_work(call: Callable[[], T]) -> T:
    """A typed error out of a correct call is a mismatch; a broken invariant stays one."""
    try:
        return call()
    except InvariantError:
        raise
    except CacheError as error:
        raise Mismatch(f"{type(error).__name__}: {error}") from error


class Page(NamedTuple):
    """One cached page: the prefix without it, its slots, when it was last used."""

    parent: int
    slots: tuple[int, ...]
    used: int


class PrefixModel:
    """What a radix cache must do, by brute force: every cached prefix, in whole pages, by itself.

    A prefix (namespace and all tokens) is one number, its code. `held` counts the leases that end
    at a code. Eviction replays the rule: of the pages that nobody holds and that no cached page
    follows, the one used longest ago goes first, one page at a time.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.pages: dict[int, Page] = {}
        self.held: Counter[int] = Counter()
        self._codes: dict[tuple[int, Hashable], int] = {}
        self._clock = 0

    def codes(self, namespace: Hashable, tokens: Sequence[int]) -> list[int]:
        """One code per prefix of `tokens`, the empty one first."""
        codes = [self._code(POISON, ("namespace", namespace))]
        for token in tokens:
            codes.append(self._code(codes[-1], token))
        return codes

    def match(self, codes: list[int], limit: int) -> int:
        """How many of the first `limit` tokens are cached."""
        length = 0
        while length + self.page_size <= limit and codes[length + self.page_size] in self.pages:
            length += self.page_size
        return length

    def insert(self, codes: list[int], slots: Sequence[int]) -> int:
        """Cache all whole pages of a prefix; returns how many tokens were there before."""
        whole = len(slots) - len(slots) % self.page_size
        there = self.match(codes, whole)
        for start in range(there, whole, self.page_size):
            stop = start + self.page_size
            self.pages[codes[stop]] = Page(codes[start], tuple(slots[start:stop]), 0)
        self.touch(codes[whole])
        return there

    def touch(self, code: int) -> None:
        self._clock += 1
        for at in self._upwards(code):
            self.pages[at] = self.pages[at]._replace(used=self._clock)

    def slots(self, code: int) -> list[int]:
        """The slots of a cached prefix, in token order."""
        parts = [self.pages[at].slots for at in self._upwards(code)]
        return [slot for part in parts[::-1] for slot in part]

    def locked(self) -> set[int]:
        return {at for code, count in self.held.items() if count for at in self._upwards(code)}

    def evict(self, n_tokens: int) -> list[int]:
        """Drop pages until `n_tokens` are free; returns their slots in the order they went."""
        locked = self.locked()
        followers = Counter(page.parent for page in self.pages.values())
        freed: list[int] = []
        while len(freed) < n_tokens:
            leaves = [at for at in self.pages if at not in locked and not followers[at]]
            page = self.pages.pop(min(leaves, key=lambda at: self.pages[at].used))
            followers[page.parent] -= 1
            freed.extend(page.slots)
        return freed

    def _upwards(self, code: int) -> list[int]:
        path = []
        while code in self.pages:
            path.append(code)
            code = self.pages[code].parent
        return path

    def _code(self, before: int, token: Hashable) -> int:
        return self._codes.setdefault((before, token), len(self._codes))


def compare_tree(tree: RadixTree, model: PrefixModel) -> None:
    """Raise Mismatch unless the tree holds exactly the model's prefixes, in the same slots."""
    size, found = model.page_size, {}
    pending: list[tuple[TreeNode, list[int]]] = [
        (root, model.codes(name, [])) for name, root in tree._roots.items()
    ]
    while pending:
        node, above = pending.pop()
        codes = above[-1:]
        for token in node.tokens().tolist():
            codes.append(model._code(codes[-1], token))
        for start in range(0, len(node), size):
            found[codes[start + size]] = tuple(node.slots[start : start + size].tolist())
        pending.extend((child, codes) for child in node.children.values())
    same("cached prefixes", found, {code: page.slots for code, page in model.pages.items()})


@dataclass(eq=False)
class Reader:
    """A lease, and what must be true of it. `row` is the device's row: slots as it was told."""

    lease: Lease
    tokens: npt.NDArray[np.int32]
    codes: list[int]
    committed: int
    row: list[int]

    @property
    def ends(self) -> tuple[int, int]:
        return len(self.row), self.committed


class CheckedCache:
    """A RadixCache that is compared with the model after each operation."""

    def __init__(self, capacity: int, page_size: int = 1, *, enabled: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self.cache = RadixCache(capacity, page_size, enabled=enabled, sink=self._count)
        self.capacity, self.page_size, self.enabled = self.cache.capacity, page_size, enabled
        self.model = PrefixModel(page_size)
        self.readers: list[Reader] = []
        self.free = set(range(self.capacity))
        self.memory = np.full(self.capacity, POISON, dtype=np.int64)

    def look(self, tokens: npt.NDArray[np.int32], namespace: Hashable) -> None:
        """A match finds the longest prefix, and its slots hold it; it leaves no trace."""
        version = self.cache.version
        match = self.cache.match(tokens, namespace, max_match=tokens.size)
        codes = self.model.codes(namespace, tokens.tolist())
        same("match", match.length, self.model.match(codes, tokens.size) if self.enabled else 0)
        self._holds(match.slots(), codes[1 : match.length + 1])
        same("version after a match", self.cache.version, version)

    def acquire(
        self, tokens: npt.NDArray[np.int32], namespace: Hashable, max_match: int | None = None
    ) -> Reader:
        codes = self.model.codes(namespace, tokens.tolist())
        limit = min(tokens.size, tokens.size - 1 if max_match is None else max_match)
        length = self.model.match(codes, limit) if self.enabled else 0
        found = self.cache.match(tokens, namespace, max_match=max_match)
        after = self.cache.available_after(found)
        lease = expected_to_work(lambda: self.cache.acquire(tokens, namespace, max_match=max_match))
        same("cached", (lease.cached, lease.length, lease.committed), (length,) * 3)
        same("available after a match", self.cache.available, after)
        self.model.held[codes[length]] += 1
        self.model.touch(codes[length])
        reader = Reader(lease, tokens, codes, length, lease.slots.tolist())
        self.readers.append(reader)
        self._after(reader)
        return reader

    def extend(self, reader: Reader, n_tokens: int) -> bool:
        """Extend, and compute: the whole prefix is written into each new slot."""
        start = len(reader.row)
        reserved = self._up(start) - start
        missing = max(self._up(start + n_tokens) - self._up(start), 0)
        evictable = self._usage().evictable
        slots = expected_to_work(lambda: reader.lease.extend(n_tokens))
        same("room", slots is not None, missing <= len(self.free) + evictable)
        if slots is None:
            self.counts["refused"] += 1
            self._after(reader)
            return False
        if missing > len(self.free):
            self._freed(self.model.evict(missing - len(self.free)))
        new = reader.lease.private_slots()[start + reserved - reader.committed :].tolist()
        same("new slots that were free", (len(new), set(new) <= self.free), (missing, True))
        self.free.difference_update(new)
        reader.row.extend(slots.tolist())
        same("slots", len(reader.row), start + n_tokens)
        self.memory[slots] = reader.codes[start + 1 : start + n_tokens + 1]
        self._after(reader)
        return True

    def commit(self, reader: Reader, upto: int) -> None:
        self._verify_reader(reader, {})
        remap = expected_to_work(lambda: reader.lease.commit(upto))
        upto -= upto % self.page_size
        start, expected = reader.committed, None
        if upto > start and self.enabled:
            self.model.held[reader.codes[start]] -= 1
            there = self.model.insert(reader.codes, reader.row[:upto])
            self.model.held[reader.codes[upto]] += 1
            reader.committed = upto
            if there > start:
                self._freed(reader.row[start:there])
                expected = (start, self.model.slots(reader.codes[there])[start:])
        same("remap", remap and (remap.start, remap.slots.tolist()), expected)
        if remap is not None:
            self.counts["remaps"] += 1
            reader.row[start : start + remap.slots.size] = remap.slots.tolist()
        self._after(reader)

    def release(self, reader: Reader) -> None:
        private = reader.lease.private_slots().tolist()
        expected_to_work(reader.lease.release)
        self.readers.remove(reader)
        self.model.held[reader.codes[reader.committed]] -= 1
        self.model.touch(reader.codes[reader.committed])
        self._freed(private)
        self._after(None)

    def flush(self) -> None:
        evictable = self._usage().evictable
        same("flushed", expected_to_work(self.cache.flush), evictable)
        self._freed(self.model.evict(evictable))
        self._after(None)

    def verify(self) -> None:
        """Compare everything."""
        self.cache.check()
        compare_tree(self.cache._tree, self.model)
        runs = self.cache._allocator.runs()
        same("free slots", {slot for run in runs for slot in range(*run)}, self.free)
        nodes: dict[int, list[int]] = {}
        for reader in self.readers:
            self._verify_reader(reader, nodes)
        self._verify_order()
        self.counts["checks"] += 1

    def _verify_reader(self, reader: Reader, nodes: dict[int, list[int]]) -> None:
        same("lease.slots", reader.lease.slots.tolist(), reader.row)
        self._holds(reader.lease.slots, reader.codes[1 : len(reader.row) + 1])
        at = 0
        for segment in reader.lease.segments():
            same("segment start", segment.start, at)
            slots = [slot for extent in segment.extents for slot in range(*extent)]
            same("segment slots", slots, reader.row[segment.start : segment.stop])
            at = segment.stop
            if segment.node_id is not None:
                same("slots of a node", slots, nodes.setdefault(segment.node_id, slots))
            else:
                same("private tail", segment.start, reader.committed)
        same("end of the segments", at, len(reader.row))

    def _verify_order(self) -> None:
        """Depth first: whichever prefix one takes, its readers are neighbours."""
        order = self.cache.depth_first(reader.lease for reader in self.readers)
        rows: dict[int, list[int]] = {}
        for reader in self.readers:
            for code in reader.codes[: reader.committed + 1 : self.page_size]:
                rows.setdefault(code, []).append(order.index(reader.lease))
        for places in rows.values():
            same("neighbours", max(places) - min(places) + 1, len(places))

    def _after(self, reader: Reader | None) -> None:
        self.counts["operations"] += 1
        if reader is not None:
            lease = reader.lease
            same("length, committed", (lease.length, lease.committed), reader.ends)
            self._verify_reader(reader, {})
        usage = self.cache.usage()
        same("usage", usage, self._usage())
        same("conservation", sum(usage), self.capacity)

    def _usage(self) -> Usage:
        private = sum(self._up(len(reader.row)) - reader.committed for reader in self.readers)
        locked = len(self.model.locked()) * self.page_size
        cached = len(self.model.pages) * self.page_size
        return Usage(len(self.free), private, locked, cached - locked)

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

    def _count(self, event: Event) -> None:
        if isinstance(event, Split):
            self.counts["splits"] += 1
        elif isinstance(event, Inserted):
            self.counts["duplicates"] += event.duplicate
        elif isinstance(event, Evicted):
            self.counts["evicted"] += event.tokens
            self.counts["trims"] += not event.gone


class Stress:
    """Random operations on a CheckedCache, always the same for the same seed."""

    def __init__(
        self, seed: int, page_size: int = 1, *, pages: int = 32, enabled: bool = True
    ) -> None:
        self.checked = CheckedCache(pages * page_size, page_size, enabled=enabled)
        self.page_size = page_size
        self._random = random.Random(seed)
        self._longest = 10
        self._keys: list[list[int]] = [[0] * page_size]
        self._most_leases = 6

    def run(self, operations: int, check_every: int = 1) -> Counter[str]:
        """Do that many operations, then let everything go: nothing may be left behind."""
        counts = self.checked.counts
        due = check_every
        while counts["operations"] < operations:
            self._step()
            if counts["operations"] >= due:
                self.checked.verify()
                due = counts["operations"] + check_every
        while self.checked.readers:
            self.checked.release(self.checked.readers[-1])
        self.checked.flush()
        self.checked.verify()
        same("nodes after a flush", self.checked.cache.node_count, 0)
        return counts

    def _step(self) -> None:
        readers, draw = self.checked.readers, self._random.random()
        if draw < 0.01:
            self.checked.flush()
        elif draw < 0.10:
            self.checked.look(self._key(), self._namespace())
            self.checked.counts["operations"] += 1
        elif len(readers) < self._most_leases and (draw < 0.35 or not readers):
            tokens = self._key()
            limit = None if draw < 0.3 else self._random.randint(0, tokens.size)
            self.checked.acquire(tokens, self._namespace(), limit)
        elif readers:
            self._use(self._random.choice(readers), draw)

    def _use(self, reader: Reader, draw: float) -> None:
        length = len(reader.row)
        left = reader.tokens.size - length
        if draw < 0.65 and left:
            whole = left if self._random.random() < 0.5 else self._random.randint(1, left)
            if not self.checked.extend(reader, whole) and self._random.random() < 0.7:
                self.checked.commit(reader, length)
                self.checked.release(reader)
        elif draw < 0.85 or left:
            self.checked.commit(reader, self._random.choice([length, length, length // 2]))
        else:
            self.checked.release(reader)

    def _key(self) -> npt.NDArray[np.int32]:
        """An earlier key's beginning and a few pages more; two kinds of pages, some torn."""
        pick, size = self._random, self.page_size
        tokens = list(pick.choice(self._keys))
        del tokens[pick.randint(0, len(tokens)) :]
        for _ in range(pick.randint(0, 5)):
            tokens.extend([pick.randint(0, 1)] * size)
        if pick.random() < 0.3:
            tokens.extend([2] * pick.randint(1, size))
        tokens = tokens[: self._longest * size] or [pick.randint(0, 1)]
        self._keys = [*self._keys[-8:], tokens]
        return np.array(tokens, dtype=np.int32)

    def _namespace(self) -> Hashable:
        return self._random.choice([None, None, None, "adapter"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--operations", type=int, default=200_000, help="in total")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check-every", type=int, default=20, help="operations")
    args = parser.parse_args()
    setups = [(1, 32, True), (1, 12, True), (4, 24, True), (16, 24, True), (4, 24, False)]
    total: Counter[str] = Counter()
    began = time.perf_counter()
    print(f"{'page':>4} {'pool':>5} {'cache':>5} {'operations':>10} {'checks':>7} {'splits':>7} "
          f"{'evicted':>8} {'trims':>6} {'remaps':>7} {'refused':>7} {'seconds':>8}")  # fmt: skip
    for page_size, pages, enabled in setups:
        start = time.perf_counter()
        stress = Stress(args.seed, page_size, pages=pages, enabled=enabled)
        counts = stress.run(args.operations // len(setups), args.check_every)
        total.update(counts)
        print(f"{page_size:>4} {pages * page_size:>5} {'on' if enabled else 'off':>5} "
              f"{counts['operations']:>10,} {counts['checks']:>7,} {counts['splits']:>7,} "
              f"{counts['evicted']:>8,} {counts['trims']:>6,} {counts['remaps']:>7,} "
              f"{counts['refused']:>7,} {time.perf_counter() - start:>8.1f}")  # fmt: skip
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"benchmark": "cache_stress", "seed": args.seed, "seconds": seconds, **total}))


if __name__ == "__main__":
    main()
