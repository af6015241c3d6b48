"""Hypothesis against PinBoard: what stays of many pins of several owners, by sums made afresh."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache import RadixCache
from radixlm.cache.pins import PinBoard
from radixlm.core.clock import VirtualClock
from radixlm.core.errors import PinError
from tests.invariants import check

# Prefixes of these are pinned: some are of one line, some have nothing in common.
KEYS = ((1, 2, 3, 4), (1, 2, 8), (5, 5, 5, 5))
BUDGET, MOST, MOST_OF_OWNER = 8, 6, 3
PREFIXES = st.tuples(st.sampled_from(KEYS), st.integers(1, 4)).map(lambda each: each[0][: each[1]])
ACTIONS = st.one_of(
    st.tuples(st.just("keep"), PREFIXES, st.sampled_from("aabbc"), st.sampled_from([2, 5, 50])),
    st.tuples(st.just("keep"), PREFIXES, st.just("a"), st.just(5)),
    st.tuples(st.just("pin"), PREFIXES, st.just(""), st.sampled_from([None, 3])),
    st.tuples(st.just("unpin"), st.just(()), st.just(""), st.integers(1, 9)),
    st.tuples(st.just("wait"), st.just(()), st.just(""), st.sampled_from([1, 2, 20])),
)


@dataclass
class Made:
    prefix: tuple[int, ...]
    owner: str
    added: int
    end: float | None


class Model:
    """Pins by number, in the order in which they were last asked for."""

    def __init__(self) -> None:
        self.pins: dict[int, Made] = {}
        self.next_id = 0
        self.since: list[str] = []  # owners, by when they got the first of those that they have

    def pinned(self) -> set[tuple[int, ...]]:
        return {
            each.prefix[: n + 1] for each in self.pins.values() for n in range(len(each.prefix))
        }

    def more(self, prefix: tuple[int, ...]) -> int:
        return len({prefix[: n + 1] for n in range(len(prefix))} - self.pinned())

    def add(self, prefix: tuple[int, ...], owner: str, end: float | None) -> int:
        self.next_id += 1
        self.pins[self.next_id] = Made(prefix, owner, self.more(prefix), end)
        if owner and owner not in self.since:
            self.since.append(owner)
        return self.next_id

    def let_go(self, *numbers: int) -> None:
        for number in numbers:
            del self.pins[number]
        self.since = [name for name in self.since if self.of(name)]

    def pin(self, prefix: tuple[int, ...], end: float | None) -> int | None:
        fits = len(self.pinned()) + self.more(prefix) <= BUDGET
        return self.add(prefix, "", end) if len(self.pins) < MOST and fits else None

    def keep(self, prefix: tuple[int, ...], owner: str, end: float) -> int | None:
        for number, each in self.pins.items():
            if (each.prefix, each.owner) == (prefix, owner):
                each.end = max(each.end or 0, end)
                self.pins[number] = self.pins.pop(number)
                return number
        firm = sum(each.added for each in self.pins.values() if not each.owner)
        if len(prefix) + firm > BUDGET:
            return None
        if len(self.of(owner)) >= MOST_OF_OWNER:
            self.let_go(self.of(owner)[0])
        elif len(self.pins) >= MOST:
            if not self.since:
                return None
            self.let_go(self.of(max(self.since, key=lambda name: len(self.of(name))))[0])
        before = [*self.since]
        while len(self.pinned()) + self.more(prefix) > BUDGET:
            names = [name for name in before if self.of(name) or name == owner]
            sizes = {name: self.size(name) for name in dict.fromkeys([*names, owner])}
            sizes[owner] += self.more(prefix)
            largest = self.of(max(sizes, key=lambda name: sizes[name]))
            if not largest:
                return None
            self.let_go(largest[0])
        return self.add(prefix, owner, end)

    def of(self, owner: str) -> list[int]:
        return [number for number, each in self.pins.items() if each.owner == owner]

    def size(self, owner: str) -> int:
        return sum(self.pins[number].added for number in self.of(owner))


@settings(max_examples=100, deadline=None)
@given(st.lists(ACTIONS, min_size=12, max_size=30))
def test_what_stays(actions: list[tuple]) -> None:
    clock = VirtualClock(100.0)
    cache = RadixCache(40, clock=clock, pin_budget=BUDGET)
    cache.pins = PinBoard(cache.tree, BUDGET, clock, most=MOST, most_of_owner=MOST_OF_OWNER)
    for key in KEYS:
        lease = cache.acquire(key)
        lease.extend(len(key) - lease.length)
        lease.commit(len(key))
        lease.release()
    model = Model()
    for what, prefix, owner, number in actions:
        now = clock.now()
        cache.pins.expire()
        model.let_go(*[n for n, each in model.pins.items() if each.end and each.end <= now])
        made: object = None
        expected: object = None
        try:
            match what:
                case "keep":
                    expected = model.keep(prefix, owner, now + number)
                    made = cache.keep(prefix, None, number, owner).id
                case "pin":
                    expected = model.pin(prefix, None if number is None else now + number)
                    made = cache.pin(prefix, ttl=number).id
                case "unpin":
                    expected = number if number in model.pins else None
                    model.let_go(*[number] * (number in model.pins))
                    cache.unpin(number)
                    made = number
                case _:
                    clock.advance(number)
        except PinError:
            made = None
        assert (made, cache.tree.pinned_size) == (expected, len(model.pinned()))
        ends = sorted(node.end for node in cache.pins.nodes())
        assert ends == sorted(len(each.prefix) for each in model.pins.values())
        check(cache)
