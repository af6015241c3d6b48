"""Layers with a window beside host memory and a disk: chats that are evicted and come back.

The runner compares in every step all that each new token sees. What the tiers say can be restored
is compared with the blocks that are there, token by token.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from radixlm.cache.components.window_slots import NONE, WindowSize, WindowSlots
from radixlm.cache.places.stored_parts import StoredParts
from radixlm.core.errors import CacheError, InvariantError
from radixlm.core.keys import Key, as_key
from radixlm.core.moves import News
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.testing.fake_runner import FakeRunner
from tests.disk_bench import BLOCK, DiskBench, FakeDisk
from tests.engines import make_request
from tests.invariants import check

# Windows of one token, of a block, of some; tokens of a page; window slots beyond the least.
SETUPS = [(1, 1, 8), (4, 1, 0), (7, 1, 20), (11, 1, 60), (6, 2, 8), (9, 4, 28)]
STEP = 12


class Chats:
    """Prompts that go on from earlier ones and their answers, with copies in flight."""

    def __init__(self, seed: int, window: int, page: int, spare: int) -> None:
        self.draw = random.Random(seed)
        size = WindowSize(window, 0, STEP, BLOCK)
        size = size._replace(capacity=size.least(page) + spare)
        options = {"page_size": page, "budget": STEP, "windows": size, "vocab_size": 3}
        self.bench = DiskBench(240, host=20 * BLOCK, room=40 * BLOCK, **options)
        self.reach = window - 1 + page
        self.known: list[list[int]] = [[0] * 9]
        self.tokens: dict[str, list[int]] = {}
        self.counts: Counter[str] = Counter()

    def run(self, rounds: int) -> Counter[str]:
        bench, draw = self.bench, self.draw
        for number in range(rounds):
            bench.moves = draw.choice((0, 1, 1, 3))
            requests = [self._request(f"{number}-{n}") for n in range(draw.randint(1, 3))]
            for request in requests:
                bench.core.add(request)
                for floor in bench.tiering.floors:
                    floor.restoring.pace.computed = 1.0
                for _ in range(draw.randint(0, 4)):
                    self._step()
            for _ in range(2_000):
                if not bench.core.has_work:
                    break
                bench.moves = max(bench.moves, 1)
                self._step()
            assert not bench.core.has_work
            for request in requests:
                answer = bench.expected(request)
                assert self.tokens[request.request_id] == answer
                self.known.append([*request.key.tolist(), *answer])
            if draw.random() < 0.5:
                bench.settle()
                self._compare()
            self._forget()
        bench.settle()
        check(bench.cache)
        assert bench.cache.windows is not None
        assert bench.cache.windows.usage()[1:3] == (0, 0)
        for floor in bench.tiering.floors:
            assert floor.failed_reads <= self.counts["lost"]
            self.counts["restored"] += floor.restoring.restored
        self.counts["tombstones"] += bench.cache.windows.evicted_tokens
        return self.counts

    def _request(self, name: str) -> GenerateRequest:
        draw = self.draw
        before = draw.choice(self.known[-8:])
        cut = draw.choice((len(before), draw.randrange(1, len(before) + 1)))
        prompt = before[:cut] + draw.choices(range(3), k=draw.randint(1, 9))
        self.tokens[name] = []
        return make_request(name, prompt[:90], draw.randint(1, 12))

    def _step(self) -> None:
        self.bench.time.advance(0.01)
        for output in self.bench.step():
            self.tokens[output.request_id] += output.token_ids

    def _forget(self) -> None:
        """Some of what no lock holds leaves the pool, or only its window slots."""
        windows, draw = self.bench.cache.windows, self.draw
        assert windows is not None
        match draw.randrange(4):
            case 0:
                self.bench.evict()
            case 1:
                self.bench.evict(draw.random())
            case 2 if windows.evictable:
                windows.evict(draw.randint(1, windows.evictable))
            case 3 if self.bench.disk.blocks:
                # Another process had deleted a block, and wrote it anew without its windows.
                blocks = self.bench.disk.blocks
                name = draw.choice(list(blocks))
                self.counts["lost"] += len(blocks[name]) == 2
                blocks[name] = blocks[name][:1]
                self.bench.tiering.take(News(self.bench.disk.paths()))

    def _compare(self) -> None:
        """What each place says it has of each prompt, with what it has."""
        bench = self.bench
        for place, disk in zip(bench.tiering.floors, (bench.host, bench.disk), strict=True):
            for tokens in self.known:
                key = as_key(tokens)
                stored = self._stored(disk, key)
                end = len(stored)
                first = max(end * BLOCK - self.reach, 0) // BLOCK
                while not all(stored[first:end]):
                    end -= 1
                    first = max(end * BLOCK - self.reach, 0) // BLOCK
                said = (
                    place.tier.length_of(key, Namespace()),
                    place.tier.restorable(key, Namespace()),
                )
                assert said == (len(stored) * BLOCK, end * BLOCK)
                self.counts["cut"] += end < len(stored)

    def _stored(self, disk: FakeDisk, key: Key) -> list[bool]:
        """Of each block of a path that is there, whether with both parts."""
        found: list[bool] = []
        for end in range(BLOCK, key.size + 1, BLOCK):
            kept = disk.blocks.get((Namespace().packed(), key[:end].tobytes()))
            if kept is None:
                break
            found.append(len(kept) == 2)
        return found


def run_all(rounds: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed, setup in enumerate(SETUPS):
        counts += Chats(seed, *setup).run(rounds)
    return counts


@pytest.mark.slow  # a longer run is slow, too
def test_right_tokens_and_nothing_said_that_is_not_there() -> None:
    counts = run_all(15)
    for rare, least in (("restored", 50), ("tombstones", 50), ("cut", 50), ("lost", 10)):
        assert counts[rare] > least, counts


Patch = pytest.MonkeyPatch
FAULTS: dict[str, Callable[[Patch], None]] = {}


def fault(owner: type, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace owner.name by broken(original, self, *args)."""

    def decorate(broken: Callable[..., Any]) -> Callable[..., Any]:
        original = getattr(owner, name)

        def replaced(self: Any, *args: Any, **named: Any) -> Any:
            return broken(original, self, *args, **named)

        FAULTS[broken.__name__] = lambda patch: patch.setattr(owner, name, replaced)
        return broken

    return decorate


@fault(StoredParts, "split")
def split_leaves_all_windows_with_the_lower_half(split, self, node, upper):
    part = self.by_id.get(node.id)
    before = 0 if part is None else part.windows
    split(self, node, upper)
    if part is not None and node.id in self.by_id and upper.id in self.by_id:
        self.by_id[upper.id].windows, part.windows = 0, before


@fault(StoredParts, "merged")
def merge_forgets_the_windows_of_the_upper_half(merged, self, node, child):
    part = self.by_id.get(child.id)
    before = None if part is None else part.windows
    merged(self, node, child)
    if part is not None:
        part.windows = before


@fault(StoredParts, "_resize")
def blocks_that_go_leave_their_windows(resize, self, node, stored):
    part = self.by_id.get(node.id)
    before = 0 if part is None else part.windows
    resize(self, node, stored)
    if part is not None:
        part.windows |= before


@fault(StoredParts, "cover")
def all_blocks_count_as_stored_with_windows(cover, self, node, upto, _windows, _exact=0):
    cover(self, node, upto, (1 << upto // self.block_tokens) - 1)


@fault(StoredParts, "cover")
def no_window_is_said_to_be_stored(cover, self, node, upto, _windows, _exact=0):
    cover(self, node, upto, 0)


@fault(StoredParts, "cover")
def windows_that_others_took_away_still_count(cover, self, node, upto, windows, _exact=0):
    cover(self, node, upto, windows)


@fault(StoredParts, "usable")
def windows_do_not_matter_for_what_is_restorable(_usable, _self, _node, upto, _blocks):
    return upto


@fault(StoredParts, "usable")
def a_window_is_a_block_shorter(usable, self, node, upto, window_blocks):
    return usable(self, node, upto, window_blocks - 1)


@fault(WindowSlots, "first_restored")
def nothing_is_read_for_who_computes_the_last_token(_first, self, end):
    return self.first_seen(end)


@fault(WindowSlots, "first_restored")
def windows_are_not_read(_first, _self, end):
    return end


@fault(WindowSlots, "resident")
def all_windows_count_as_resident(_resident, _self, slots):
    return np.ones(slots.size, dtype=np.bool_)


@fault(WindowSlots, "begin_copy")
def a_write_does_not_lock_its_windows(begin, self, slots, block_tokens):
    mine = begin(self, slots, block_tokens)
    self.end_copy(mine)
    there = mine >= 0
    self.locks[mine[there]] += 1
    self._copies[mine[there]] += 1
    return mine


@fault(WindowSlots, "end_copy")
def a_write_keeps_its_locks(_end, _self, _mine):
    pass


@fault(WindowSlots, "begin_copy")
def a_block_is_written_with_half_of_its_windows(begin, self, slots, block_tokens):
    return begin(self, slots, 1)


@fault(FakeRunner, "unpack")
def a_reader_skips_the_window_part(unpack, self, kept, slots, windows):
    return unpack(self, kept, slots, np.full_like(windows, NONE))


@fault(FakeRunner, "pack")
def a_writer_skips_the_window_part(pack, self, slots, windows):
    kept = pack(self, slots, windows)
    return [*kept[:1], *(np.zeros_like(each) for each in kept[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught(name: str, monkeypatch: Patch) -> None:
    FAULTS[name](monkeypatch)
    with pytest.raises((AssertionError, CacheError, InvariantError)):
        run_all(15)
