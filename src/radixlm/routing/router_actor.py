"""One router for all ways in, and what replicas report to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from radixlm.core.clock import Clock, WallClock
from radixlm.core.keys import Key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import Namespace
from radixlm.routing.prefix_map import PrefixMap
from radixlm.routing.report_buffer import Report
from radixlm.routing.router import Offer, ReplicaChoice, Router, Why

# A replica that has reported nothing for this long is not chosen; after the longer time it is gone.
SILENT_SECONDS = 5.0
GONE_SECONDS = 120.0
# A request that its replica does not know this long after it was sent never got there.
LOST_SECONDS = 10.0


class ReplicaStatus(NamedTuple):
    """A replica as the router knows it. silent: seconds since its last report. requests, queue:
    what was sent to it and has not ended. chosen: how often, by why. The rest: see `Report`.
    """

    replica: str
    silent: float
    requests: int
    queue: float
    chosen: Mapping[Why, int]
    stats: Any
    tokenizer: str
    largest_request: int

    @property
    def healthy(self) -> bool:
        """Whether it is chosen, where others are."""
        return self.silent <= SILENT_SECONDS


class _Heard(NamedTuple):
    """The last report of a replica, with the last stats that one had, and when it came."""

    at: float
    report: Report

    def serves(self, tokenizer: str, adapter_id: str) -> bool:
        known = self.report
        return known.tokenizer == tokenizer and (not adapter_id or adapter_id in known.adapters)


class RouterActor:
    """A router that takes reports and heeds which replicas are silent. Its methods are called from
    one thread, one after the other.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.router = Router()
        self._clock = clock or WallClock()
        self._heard: dict[str, _Heard] = {}

    def choose(
        self,
        request_id: str,
        namespace: Namespace,
        key: Key,
        max_tokens: int | None,
        among: Collection[str],
        tokenizer: str = "",
        rank: int | None = None,
    ) -> ReplicaChoice:
        """Choose as Router.choose does, of those replicas that are heard of and have this
        tokenizer, and the namespace's adapter: while a model is replaced by another there are
        replicas of both. Of these, those that reported lately; all, where none did. rank: the one
        of them that is wanted, modulo their number, if it did.
        """
        now = self._forget_gone()
        own = {
            name: heard.at
            for name in among
            if (heard := self._heard.get(name)) and heard.serves(tokenizer, namespace.adapter_id)
        }
        speaking = [name for name, at in own.items() if now - at <= SILENT_SECONDS]
        wanted = None if rank is None or not own else sorted(own)[rank % len(own)]
        among = [wanted] if wanted in speaking else speaking or own
        return self.router.choose(
            request_id, namespace, key, max_tokens=max_tokens, among=among, now=now
        )

    def report(self, report: Report) -> bool:
        """Take what a replica reports. False: its whole tree is needed anew."""
        name, router, now = report.replica, self.router, self._clock.now()
        if name not in self._heard:
            router.join(name, report.capacity)
        elif report.stats is None:
            report = report._replace(stats=self._heard[name].report.stats)
        self._heard[name] = _Heard(now, report._replace(news=(), began=(), ended=()))
        sent = router.sent_to(name)  # others may have gone on to another replica
        for request_id in sent & set(report.began):
            router.began(request_id)
        for request_id, tokens in report.ended:
            if request_id in sent:
                router.ended(request_id, tokens)
        if report.under_way is not None:
            router.end_lost(name, report.under_way, now - LOST_SECONDS)
        taken = [router.take(name, news) for news in report.news]
        if report.at is not None:
            taken.append(router.follows(name, report.at))
        return router.knows(name) and all(taken)

    def leave(self, name: str) -> None:
        """A replica is gone."""
        self.router.leave(name)
        self._heard.pop(name, None)

    def offers(
        self, namespace: Namespace, key: Key, among: Collection[str] | None = None
    ) -> list[Offer]:
        """The offers of Router.offers."""
        return self.router.offers(namespace, key, among)

    def prefixes(self, query: TreeQuery, among: Collection[str] | None = None) -> PrefixMap:
        """The prefixes of Router.prefixes."""
        return self.router.prefixes(query, among)

    def replicas(self) -> list[ReplicaStatus]:
        """All that are known."""
        now, loads = self._forget_gone(), self.router.loads()
        return [
            ReplicaStatus(
                name,
                now - at,
                *loads[name],
                self.router.chosen(name),
                report.stats,
                report.tokenizer,
                report.largest_request,
            )
            for name, (at, report) in self._heard.items()
        ]

    def _forget_gone(self) -> float:
        """Forget replicas that were silent for too long; the time."""
        now = self._clock.now()
        for name in [name for name, heard in self._heard.items() if now - heard.at > GONE_SECONDS]:
            self.leave(name)
        return now
