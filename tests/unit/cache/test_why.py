"""why(): where a match ended and for what reason, frozen when the lease was acquired."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from radixlm.core.misses import MissReason, MissReport
from tests.invariants import check


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> None:
    lease = cache.acquire(tokens, namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()
    check(cache)


def why(
    cache: RadixCache,
    tokens: list[int],
    namespace: str | None = None,
    max_match: int | None = None,
) -> MissReport:
    lease = cache.acquire(tokens, namespace, max_match=max_match)
    report = lease.why()
    lease.release()
    return report


def pages(*kinds: int) -> list[int]:
    """Four different tokens for each kind."""
    return [10 * kind + at for kind in kinds for at in range(4)]


class TestReasons:
    def test_new(self) -> None:
        cache = RadixCache(64)
        assert why(cache, [1, 2, 3]) == MissReport(3, 0, MissReason.NEW, 0)
        serve(cache, [1, 2])
        assert why(cache, [7, 8]) == MissReport(2, 0, MissReason.NEW, 0)
        report = why(cache, [1, 2, 3, 4])
        assert report == MissReport(4, 2, MissReason.NEW, 2)
        assert str(report) == "2 of 4 tokens cached; nothing known goes on at token 2"

    def test_diverged_within_an_edge(self) -> None:
        cache = RadixCache(64)
        serve(cache, list(range(20)))
        report = why(cache, [0, 1, 2, 93, 94, 95])
        assert report.reason is MissReason.DIVERGED
        assert (report.position, report.cached, report.prompt_tokens) == (3, 3, 6)
        assert report.cached_continuation == tuple(range(3, 15))
        assert report.requested_continuation == (93, 94)  # the last one was not asked for
        assert report.hits == 0
        assert str(report).startswith(
            "3 of 6 tokens cached; diverged at token 3: cached [3 4 5 6 7 8 9 10 11 12 13 14 …]"
        )

    def test_diverged_behind_a_node(self) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3, 4])
        serve(cache, [1, 2, 9])
        report = why(cache, [1, 2, 5, 6])
        assert (report.reason, report.position) == (MissReason.DIVERGED, 2)
        assert report.cached_continuation in {(3, 4), (9,)}
        assert report.requested_continuation == (5,)

    def test_evicted(self) -> None:
        clock = VirtualClock()
        cache = RadixCache(8, clock=clock)
        serve(cache, [1, 2, 3, 4])
        why(cache, [1, 2, 3, 4, 5])
        serve(cache, [8] * 6)
        clock.advance(40)
        report = why(cache, [1, 2, 3, 4, 5])
        assert report == MissReport(
            5, 2, MissReason.EVICTED, 2, evicted=2, evicted_ago=40.0, hits=1
        )
        assert str(report) == (
            "2 of 5 tokens cached; 2 from token 2 on were evicted 40.0 s ago, after 1 hit"
        )

    def test_evicted_from_the_first_token_on(self) -> None:
        clock = VirtualClock()
        cache = RadixCache(4, clock=clock)
        serve(cache, [1, 2, 3])
        serve(cache, [7, 7, 7, 7])
        clock.advance(1.5)
        report = why(cache, [1, 2, 9, 9])
        assert (report.reason, report.position, report.evicted_ago) == ("evicted", 0, 1.5)
        assert report.evicted == 2

    def test_forgotten_is_new_again(self) -> None:
        cache = RadixCache(4, ghost_budget=0)
        serve(cache, [1, 2, 3])
        serve(cache, [7, 7, 7, 7])
        assert why(cache, [1, 2, 3, 4]).reason is MissReason.NEW

    def test_diverged_from_a_ghost(self) -> None:
        """Cached up to 2, a ghost goes on with 3 4, but 5 was asked for."""
        cache = RadixCache(6)
        serve(cache, [1, 2, 3, 4])
        serve(cache, [8] * 4)
        report = why(cache, [1, 2, 5, 6])
        assert (report.reason, report.position) == (MissReason.DIVERGED, 2)
        assert (report.cached_continuation, report.requested_continuation) == ((3, 4), (5,))

    def test_last_token(self) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3])
        report = why(cache, [1, 2, 3])
        assert report == MissReport(3, 2, MissReason.LAST_TOKEN, 2)
        assert why(cache, [5]).reason is MissReason.LAST_TOKEN
        assert str(report) == "2 of 3 tokens cached; the last token is always computed"

    @pytest.mark.parametrize("limit", [0, 1, 2])
    def test_held_back(self, limit: int) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3, 4])
        report = why(cache, [1, 2, 3, 4], max_match=limit)
        assert report == MissReport(4, limit, MissReason.HELD_BACK, limit)

    def test_more_may_be_matched_than_there_is(self) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3, 4])
        report = why(cache, [1, 2, 3], max_match=99)
        assert (report.cached, report.reason) == (3, MissReason.LAST_TOKEN)

    def test_disabled(self) -> None:
        cache = RadixCache(64, enabled=False)
        report = why(cache, [1, 2, 3])
        assert report == MissReport(3, 0, MissReason.DISABLED, 0)
        assert str(report) == "0 of 3 tokens cached; the cache is off"

    def test_each_reason_can_be_said(self) -> None:
        for reason in MissReason:
            report = MissReport(3, 1, reason, 1, evicted_ago=1.0, hits=2)
            assert str(report).startswith("1 of 3 tokens cached; ")


class TestPages:
    def test_page_floor(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        report = why(cache, [*pages(1, 2), 5, 6, 7])
        assert report == MissReport(11, 8, MissReason.PAGE_FLOOR, 8)
        assert str(report) == "8 of 11 tokens cached; the tokens from 8 on fill no page"

    def test_the_last_token_holds_a_page_back(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        assert why(cache, pages(1, 2)) == MissReport(8, 4, MissReason.LAST_TOKEN, 4)
        assert why(cache, pages(1)) == MissReport(4, 0, MissReason.LAST_TOKEN, 0)
        assert why(cache, [*pages(1, 2), 9]) == MissReport(9, 8, MissReason.LAST_TOKEN, 8)

    @pytest.mark.parametrize("same", [1, 2, 3])
    def test_diverged_within_a_page(self, same: int) -> None:
        """The position is that of the token, though only whole pages are shared."""
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        other = pages(1, 2)
        other[4 + same] = 99
        report = why(cache, [*other, 7])
        assert (report.reason, report.cached, report.position) == ("diverged", 4, 4 + same)
        assert report.cached_continuation[0] == pages(2)[same]
        assert report.requested_continuation[0] == 99

    def test_diverged_within_the_first_page(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        report = why(cache, [10, 11, 5, 5, 5])
        assert (report.reason, report.cached, report.position) == ("diverged", 0, 2)

    def test_diverged_from_the_page_that_begins_most_like_it(self) -> None:
        cache = RadixCache(64, 4)
        for last in ([20, 21, 22, 23], [20, 91, 92, 93], [94, 95, 96, 97]):
            serve(cache, [*pages(1), *last])
        report = why(cache, [*pages(1), 20, 21, 22, 99, 7])
        assert (report.reason, report.position) == (MissReason.DIVERGED, 7)
        assert report.cached_continuation == (23,)
        serve(cache, pages(5))
        assert why(cache, [10, 11, 5, 5, 5]).position == 2

    def test_evicted(self) -> None:
        clock = VirtualClock()
        cache = RadixCache(16, 4, clock=clock)
        serve(cache, pages(1, 2, 3))
        serve(cache, pages(7, 8))
        clock.advance(3)
        report = why(cache, [*pages(1, 2, 3), 1])
        assert report == MissReport(
            13, 8, MissReason.EVICTED, 8, evicted=4, evicted_ago=3.0, hits=0
        )

    def test_held_back_to_a_page(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        assert why(cache, pages(1, 2), max_match=4).reason is MissReason.HELD_BACK
        assert why(cache, pages(1, 2), max_match=6).reason is MissReason.HELD_BACK
        assert why(cache, pages(1, 2), max_match=8) == MissReport(8, 8, MissReason.LAST_TOKEN, 8)

    def test_a_torn_page_is_to_blame_before_a_limit_within_it(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        torn = pages(1, 2)[:7]
        assert why(cache, torn, max_match=6) == MissReport(7, 4, MissReason.PAGE_FLOOR, 4)
        assert why(cache, torn, max_match=5).reason is MissReason.PAGE_FLOOR
        assert why(cache, torn, max_match=4).reason is MissReason.HELD_BACK
        assert why(cache, torn, max_match=3).reason is MissReason.HELD_BACK


class TestFrozen:
    @pytest.mark.parametrize("page_size", [1, 4])
    def test_later_changes_do_not_alter_it(self, page_size: int) -> None:
        clock = VirtualClock()
        cache = RadixCache(8 * page_size, page_size, clock=clock)
        key = [k for k in range(6) for _ in range(page_size)]
        serve(cache, key)
        serve(cache, [9] * (5 * page_size))
        prompts = [
            [*key, 7],
            [*key[:page_size], *[50] * page_size, 7],
            [60] * (2 * page_size),
            key[: page_size + 1],
        ]
        leases = [cache.acquire(prompt) for prompt in prompts]
        before = [lease.why() for lease in leases]
        assert [report.reason for report in before] == [
            MissReason.EVICTED, MissReason.DIVERGED, MissReason.NEW, MissReason.LAST_TOKEN,
        ]  # fmt: skip
        clock.advance(100)
        cache.flush()
        serve(cache, [*key[:page_size], *[50] * page_size])
        cache.flush()
        assert [lease.why() for lease in leases] == before
        leases[0].extend(page_size)
        leases[0].commit(leases[0].length)
        assert leases[0].why() == before[0]
        for lease in leases:
            lease.release()
        assert [lease.why() for lease in leases] == before
        check(cache)

    def test_an_edge_that_was_merged_split_or_cut_since(self) -> None:
        cache = RadixCache(64)
        serve(cache, list(range(20)))
        lease = cache.acquire([0, 1, 2, 3, 77, 78])
        before = lease.why()
        other = cache.acquire(list(range(10)))
        other.release()
        cache.allocator.free(cache.tree.evict(14))
        assert lease.why() == before
        assert before.cached_continuation == tuple(range(4, 16))

    def test_a_report_can_not_be_changed(self) -> None:
        report = MissReport(3, 0, MissReason.NEW, 0)
        with pytest.raises(dataclasses.FrozenInstanceError):
            report.cached = 3  # type: ignore[misc]

    def test_of_a_buffer_with_room_for_more(self) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3, 4])
        buffer = np.array([1, 2, 3, 9, 0, 0, 0, 0], dtype=np.int32)
        lease = cache.acquire(buffer, n_tokens=4)
        report = lease.why()
        assert report == MissReport(4, 3, MissReason.LAST_TOKEN, 3)
        buffer[4:] = 8
        assert lease.why() == report
        assert cache.acquire(buffer, n_tokens=3).cached == 2


class TestNamespaces:
    def test_only_its_own_is_consulted(self) -> None:
        cache = RadixCache(64)
        serve(cache, [1, 2, 3, 4], "theirs")
        serve(cache, [1, 9], "mine")
        assert why(cache, [1, 2, 3, 4, 5]) == MissReport(5, 0, MissReason.NEW, 0)
        report = why(cache, [1, 2, 3, 4, 5], "mine")
        assert (report.reason, report.position) == (MissReason.DIVERGED, 1)
        assert report.cached_continuation == (9,)

    def test_an_eviction_elsewhere_is_not_told(self) -> None:
        cache = RadixCache(4)
        serve(cache, [1, 2, 3], "theirs")
        serve(cache, [7] * 4, "mine")
        assert why(cache, [1, 2, 3, 4], "mine").reason is MissReason.NEW
        assert why(cache, [1, 2, 3, 4], "theirs").reason is MissReason.EVICTED

    def test_holders_for_operators(self) -> None:
        cache = RadixCache(64, 4)
        serve(cache, pages(1, 2))
        serve(cache, pages(1, 3), "a")
        serve(cache, pages(4), "b")
        version = cache.tree.version
        assert cache.holders(pages(1, 2)) == {None: 8, "a": 4}
        assert cache.holders(pages(5)) == {}
        assert cache.tree.version == version
