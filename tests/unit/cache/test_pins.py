"""Pins: what is pinned stays until it is unpinned, or its time ends, within a budget."""

from __future__ import annotations

from math import inf, nan

import pytest

from radixlm.cache import Pin, RadixCache, Usage
from radixlm.core.clock import VirtualClock
from radixlm.core.errors import PinError
from tests.invariants import check


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


def made(clock: VirtualClock | None = None, budget: int | None = None) -> RadixCache:
    """[1 2 3 4] and [1 2 8 9] are cached, in a pool of 12."""
    cache = RadixCache(12, clock=clock, pin_budget=budget)
    serve(cache, [1, 2, 3, 4])
    serve(cache, [1, 2, 8, 9])
    return cache


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> None:
    lease = cache.acquire(tokens, namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()
    check(cache)


def cached(cache: RadixCache, *tokens: int) -> int:
    return cache.match(tokens, max_match=len(tokens)).length


def state(cache: RadixCache) -> tuple[object, ...]:
    nodes = [(n.id, n.edge, n.lock_ref, n.pins, n.last_used) for n in cache.tree.nodes()]
    return (
        cache.usage(),
        cache.tree.pinned_size,
        cache.tree.node_count,
        cache.tree.version,
        sorted(nodes),
    )


class TestLife:
    def test_survives_eviction_and_flush(self) -> None:
        cache = made()
        pin = cache.pin([1, 2, 3])
        assert (pin, cache.tree.pinned_size) == (Pin(1, 3, None), 3)
        assert cache.usage() == Usage(6, 0, 3, 3)
        check(cache)
        serve(cache, [5] * 9)
        assert cached(cache, 1, 2, 3, 4) == 3
        cache.flush()
        assert (cached(cache, 1, 2, 3, 4), cache.usage()) == (3, Usage(9, 0, 3, 0))
        check(cache)

    def test_until_it_is_unpinned(self) -> None:
        cache = made()
        pin = cache.pin([1, 2, 3])
        cache.unpin(pin.id)
        assert (cache.tree.pinned_size, cache.usage()) == (0, Usage(6, 0, 0, 6))
        check(cache)
        cache.flush()
        assert cache.tree.node_count == 0

    def test_what_is_pinned_is_what_is_cached(self) -> None:
        cache = made()
        assert cache.pin([1, 2, 3, 7, 7]).tokens == 3

    def test_a_pin_is_no_hit(self) -> None:
        cache = made()
        hits = {n.id: (n.hits, n.last_used) for n in cache.tree.nodes()}
        cache.pin([1, 2])
        assert {n.id: (n.hits, n.last_used) for n in cache.tree.nodes()} == hits

    def test_in_its_own_namespace(self) -> None:
        cache = made()
        serve(cache, [1, 2, 3], "a")
        assert cache.pin([1, 2, 3], "a").tokens == 3
        cache.flush()
        assert (cached(cache, 1, 2, 3), cache.match([1, 2, 3, 0], "a").length) == (0, 3)
        check(cache)

    def test_whole_pages(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, list(range(10)))
        assert cache.pin(range(7)).tokens == cache.tree.pinned_size == 4
        assert cache.pin(range(4)).tokens == 4
        cache.flush()
        assert cache.usage() == Usage(60, 0, 4, 0)
        check(cache)

    def test_leases_work_on_under_and_above_a_pin(self) -> None:
        cache = made()
        pin = cache.pin([1, 2, 3, 4])
        serve(cache, [1, 2, 3, 4, 5, 6])
        lease = cache.acquire([1, 2, 3, 9])
        cache.unpin(pin.id)
        check(cache)
        lease.release()
        check(cache)
        assert cache.tree.pinned_size == 0


class TestShared:
    def test_tokens_of_several_pins_count_once(self) -> None:
        cache = made(budget=6)
        first, second = cache.pin([1, 2, 3, 4]), cache.pin([1, 2, 8, 9])
        third = cache.pin([1, 2])
        assert (first.tokens, second.tokens, third.tokens, cache.tree.pinned_size) == (4, 4, 2, 6)
        check(cache)
        cache.unpin(first.id)
        assert cache.tree.pinned_size == 4
        cache.unpin(second.id)
        assert cache.tree.pinned_size == 2
        check(cache)
        cache.unpin(third.id)
        assert (cache.tree.pinned_size, cache.usage().locked) == (0, 0)
        check(cache)

    def test_two_pins_of_the_same(self) -> None:
        cache = made(budget=4)
        first, second = cache.pin([1, 2, 3, 4]), cache.pin([1, 2, 3, 4])
        assert first.id != second.id
        cache.unpin(first.id)
        cache.flush()
        assert cached(cache, 1, 2, 3, 4) == 4
        cache.unpin(second.id)
        check(cache)


class TestTimeToLive:
    def test_ends(self, clock: VirtualClock) -> None:
        cache = made(clock)
        pin = cache.pin([1, 2, 3, 4], ttl=10)
        assert pin.expires_at == 110.0
        clock.advance(9.9)
        cache.flush()
        assert cached(cache, 1, 2, 3, 4) == 4
        clock.advance(0.1)
        cache.flush()
        assert (cached(cache, 1, 2, 3, 4), cache.tree.pinned_size) == (0, 0)
        check(cache)
        with pytest.raises(PinError, match="no pin 1; it was unpinned or has expired"):
            cache.unpin(pin.id)

    def test_each_pin_has_its_own(self, clock: VirtualClock) -> None:
        cache = made(clock)
        cache.pin([1, 2, 3, 4], ttl=10)
        cache.pin([1, 2, 8], ttl=5)
        cache.pin([1])
        sizes = []
        for _ in range(4):
            cache.flush()
            sizes.append(cache.tree.pinned_size)
            clock.advance(4)
        assert sizes == [5, 5, 4, 1]
        check(cache)

    def test_room_that_an_expired_pin_held_can_be_had(self, clock: VirtualClock) -> None:
        cache = made(clock)
        cache.pin([1, 2, 3, 4], ttl=1)
        lease = cache.acquire([7] * 12)
        assert lease.extend(12) is None
        clock.advance(1)
        assert lease.extend(12) is not None
        check(cache)

    def test_an_expired_one_makes_room_in_the_budget(self, clock: VirtualClock) -> None:
        cache = made(clock, budget=4)
        cache.pin([1, 2, 3, 4], ttl=1)
        clock.advance(2)
        assert cache.pin([1, 2, 8, 9]).tokens == 4
        assert cache.tree.pinned_size == 4

    def test_may_end_at_any_time_even_at_zero(self) -> None:
        clock = VirtualClock(-5.0)
        cache = made(clock)
        cache.pin([1, 2, 3, 4], ttl=5)
        clock.advance(5)
        cache.flush()
        assert cache.tree.pinned_size == 0

    @pytest.mark.parametrize("ttl", [0, -1, -0.5, inf, nan])
    def test_must_be_a_positive_number(self, ttl: float) -> None:
        cache = made()
        before = state(cache)
        with pytest.raises(PinError, match=f"positive number of seconds, got {ttl}"):
            cache.pin([1, 2], ttl=ttl)
        assert state(cache) == before


class TestRefused:
    def test_over_the_budget(self) -> None:
        cache = made(budget=5)
        cache.pin([1, 2, 3, 4])
        before = state(cache)
        with pytest.raises(
            PinError, match="2 more tokens would make 6 pinned ones, the budget is 5"
        ):
            cache.pin([1, 2, 8, 9])
        assert state(cache) == before
        check(cache)
        assert cache.pin([1, 2, 8]).tokens == 3

    def test_half_the_pool_by_default(self) -> None:
        cache = RadixCache(12)
        serve(cache, list(range(10)))
        assert cache.pin(range(6)).tokens == 6
        with pytest.raises(PinError, match="the budget is 6"):
            cache.pin(range(7))

    def test_a_refused_pin_does_not_even_split(self) -> None:
        cache = made(budget=0)
        before = state(cache)
        with pytest.raises(PinError, match="1 more tokens would make 1 pinned ones"):
            cache.pin([1])
        assert state(cache) == before

    @pytest.mark.parametrize("namespace", [None, "nobody"])
    def test_nothing_is_cached(self, namespace: str | None) -> None:
        cache = made()
        before = state(cache)
        with pytest.raises(PinError, match="nothing of this prefix is cached"):
            cache.pin([9, 9], namespace)
        assert state(cache) == before
        check(cache)

    def test_a_ghost_can_not_be_pinned(self) -> None:
        cache = made()
        cache.allocator.free(cache.tree.evict(6))
        with pytest.raises(PinError, match="nothing of this prefix"):
            cache.pin([1, 2])

    @pytest.mark.parametrize("again", [False, True])
    def test_unpin_of_what_is_not_pinned(self, again: bool) -> None:
        cache = made()
        pin = cache.pin([1, 2])
        if again:
            cache.unpin(pin.id)
        before = state(cache)
        with pytest.raises(PinError, match=f"no pin {pin.id if again else 77}"):
            cache.unpin(pin.id if again else 77)
        assert state(cache) == before
        check(cache)


class TestKept:
    """On behalf of an owner, renewed, and yielding to later ones."""

    def test_again_is_renewed(self, clock: VirtualClock) -> None:
        cache = made(clock)
        first = cache.keep([1, 2, 3], None, 10, "a")
        clock.advance(5)
        assert cache.keep([1, 2, 3], None, 10, "a") == Pin(first.id, 3, 115.0)
        assert cache.keep([1, 2, 3], None, 1, "a").expires_at == 115.0
        clock.advance(11)
        cache.flush()
        assert cached(cache, 1, 2, 3) == 0

    def test_only_what_is_cached_whole(self) -> None:
        cache = made()
        with pytest.raises(PinError, match="3 of 4 tokens are cached"):
            cache.keep([1, 2, 3, 9], None, 10, "a")

    def test_whole_pages(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, list(range(10)))
        assert cache.keep(range(7), None, 60, "a").tokens == cache.tree.pinned_size == 4
        with pytest.raises(PinError, match="3 tokens are less than a page of 4"):
            cache.keep(range(3), None, 60, "a")
        check(cache)

    def test_the_oldest_yields(self) -> None:
        cache = made(budget=4)
        serve(cache, [5, 6, 7])
        cache.keep([1, 2], None, 10, "a")
        cache.keep([5, 6], None, 10, "a")
        cache.keep([1, 2], None, 10, "a")  # the younger one now
        cache.keep([1, 2, 8, 9], None, 10, "a")
        cache.flush()
        assert (cached(cache, 1, 2, 8, 9), cached(cache, 5, 6)) == (4, 0)
        check(cache)

    def test_more_than_the_budget_displaces_nothing(self) -> None:
        cache = made(budget=3)
        cache.keep([1, 2, 3], None, 10, "a")
        with pytest.raises(PinError, match="4 tokens are more than the budget of 3"):
            cache.keep([1, 2, 8, 9], None, 10, "a")
        assert cache.tree.pinned_size == 3

    def test_pins_of_no_owner_stay(self) -> None:
        cache = made(budget=4)
        cache.pin([1, 2, 3])
        with pytest.raises(PinError, match="beside 3 pinned"):
            cache.keep([1, 2, 8, 9], None, 10, "a")
        assert cache.tree.pinned_size == 3

    def test_who_holds_the_most_yields(self) -> None:
        """So nobody keeps the budget from the others, and nobody takes theirs."""
        cache = RadixCache(40, pin_budget=10)
        for first in (10, 20, 30, 40, 50):
            serve(cache, [first, first + 1, first + 2, first + 3])
        cache.keep([10, 11, 12, 13], None, 10, "a")
        cache.keep([20, 21, 22, 23], None, 10, "a")
        cache.keep([30, 31, 32, 33], None, 10, "b")
        kept = [cached(cache, n, n + 1, n + 2, n + 3) for n in (10, 20, 30) if cache.flush() >= 0]
        assert kept == [0, 4, 4]
        serve(cache, list(range(60, 69)))
        with pytest.raises(PinError, match="no room for 9"):
            cache.keep(range(60, 69), None, 10, "c")
        assert cache.tree.pinned_size == 8

    def test_of_several_owners_it_counts_once(self) -> None:
        cache = made(budget=3)
        cache.keep([1, 2, 3], None, 10, "a")
        cache.keep([1, 2, 3], None, 10, "b")
        assert cache.tree.pinned_size == 3
        check(cache)
