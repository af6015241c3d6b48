"""Must show 3: a request that never matches waits behind endless ones that do."""

from __future__ import annotations

import pytest

from radixlm.core.config import SchedulePolicy
from radixlm.core.reports import Event, Scheduled
from radixlm.core.request import GenerateRequest
from tests.engines import EACH_ORDER, Bench, make_request

WARM = [200] * 24
N_COLD = 3
BACKLOG = 6
PATIENCE = 400  # admissions after which a stream without bound is given up


def _favourite(n: int) -> GenerateRequest:
    """Cached, in the heaviest branch, short to compute, with the longest answer: every order that
    looks at more than the arrival prefers it to a cold one.
    """
    return make_request(f"hot{n}", [*WARM, n % 256, n // 256], 6)


class Stream:
    """Cold requests wait first; then favourites arrive so fast that some always wait."""

    def __init__(self, policy: SchedulePolicy, bound: int) -> None:
        self.arrivals: dict[str, int] = {}
        self.waits: dict[str, int] = {}
        self.largest = 0
        self.bench = Bench(
            2_000,
            policy=policy,
            max_running=2,
            budget=64,
            max_wait_admissions=bound,
            sink=self._listen,
        )

    def _listen(self, event: Event) -> None:
        """Count, for all that wait, the admissions of younger ones."""
        if not isinstance(event, Scheduled):
            return
        arrival = self.arrivals[event.request_id]
        self.largest = max(self.largest, self.waits.pop(event.request_id))
        for name in self.waits:
            if self.arrivals[name] < arrival:
                self.waits[name] += 1

    def _add(self, request: GenerateRequest) -> None:
        self.arrivals[request.request_id] = len(self.arrivals)
        self.waits[request.request_id] = 0
        self.bench.core.add(request)

    def largest_wait(self) -> int:
        """In admissions of younger requests, over all requests, until no cold one waits."""
        self._add(make_request("warmer", WARM, 6))
        self.bench.run()
        self._add(_favourite(0))
        for n in range(N_COLD):
            self._add(make_request(f"cold{n}", [n + 1] * 48, 2))
        n = 1
        while any(name.startswith("cold") for name in self.waits) and n < PATIENCE:
            while len(self.waits) < N_COLD + BACKLOG:
                self._add(_favourite(n))
                n += 1
            self.bench.core.step()
        return max(self.largest, *self.waits.values())


@pytest.mark.slow
@EACH_ORDER
def test_nobody_is_overtaken_more_often_than_the_bound(policy: SchedulePolicy) -> None:
    """... though without the bound every order but two would let the cold ones starve: fcfs never
    prefers anybody, and by lot one is sooner or later next.
    """
    bound = 40
    bounded = Stream(policy, bound).largest_wait()
    unbounded = Stream(policy, 10**9).largest_wait()
    given_up = "given up after " if unbounded > PATIENCE / 2 else ""
    print(f"{policy:24} largest wait {bounded:3}, bound {bound}; without: {given_up}{unbounded}")
    assert bounded <= bound
    if policy == "fcfs":
        assert unbounded == 0
    elif policy != "random":
        assert bounded == bound
        assert unbounded > PATIENCE / 2
