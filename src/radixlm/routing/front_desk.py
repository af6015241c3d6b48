"""One router for all ways in, and what replicas report to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

from radixlm.core.clock import Clock, WallClock
from radixlm.core.keys import Key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import Namespace
from radixlm.routing.prefix_map import PrefixMap
from radixlm.routing.report_book import Report
from radixlm.routing.router import Offer, ReplicaChoice, Router, Why

# A replica that has reported nothing for this long is not chosen; after the longer time it is gone.
SILENT_SECONDS = 5.0
GONE_SECONDS = 120.0
# A request that its replica does not know this long after it was sent never got there.
LOST_SECONDS = 10.0


class Reported(NamedTuple):
    """A replica as it is known here. silent: seconds since its last report. requests, queue: what
    was sent to it and has not ended. chosen: how often, by why. tokenizer, largest_request: see
    `Report`.
    """

    replica: str
    silent: float
    requests: int
    queue: float
    chosen: dict[Why, int]
    stats: Any
    tokenizer: str
    largest_request: int

    @property
    def healthy(self) -> bool:
        """Whether it is chosen, where others are."""
        return self.silent <= SILENT_SECONDS


class FrontDesk:
    """A router with what it knows of requests under way. Its methods are called from one thread,
    one after the other.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.router = Router()
        self._clock = clock or WallClock()
        self._heard: dict[str, float] = {}
        self._models: dict[str, tuple[str, int, Collection[str]]] = {}
        self._stats: dict[str, Any] = {}
        self._sent: dict[str, float] = {}
        self._chosen: dict[str, Counter[Why]] = {}

    def choose(
        self,
        request_id: str,
        namespace: Namespace,
        key: Key,
        max_tokens: int | None,
        among: Collection[str],
        tokenizer: str = "",
    ) -> ReplicaChoice:
        """Choose as Router.choose does, of those replicas that are heard of and have this
        tokenizer, and the namespace's adapter: while a model is replaced by another there are
        replicas of both.
        """
        self._forget_gone()
        self._sent.pop(request_id, None)  # one that is sent again
        own = [name for name in among if self._serves(name, tokenizer, namespace.adapter_id)]
        choice = self.router.choose(
            request_id, namespace, key, max_tokens=max_tokens, among=self._speaking(own)
        )
        self._sent[request_id] = self._clock.now()
        self._chosen[choice.replica][choice.why] += 1
        return choice

    def report(self, report: Report) -> bool:
        """Take what a replica reports. False: its whole tree is needed anew."""
        name = report.replica
        if name not in self._heard:
            self.router.join(name, report.capacity)
            self._chosen[name] = Counter()
        self._heard[name] = self._clock.now()
        self._models[name] = report.tokenizer, report.largest_request, report.adapters
        if report.stats is not None:
            self._stats[name] = report.stats
        sent = self.router.sent_to(name)  # others may have gone on to another replica
        for request_id in report.began:
            if request_id in sent:
                self.router.began(request_id)
        for request_id, tokens in report.ended:
            if request_id in sent:
                self._end(request_id, tokens)
        if report.under_way is not None:
            self._end_lost(name, report.under_way)
        taken = [self.router.take(name, news) for news in report.news]
        if report.at is not None:
            taken.append(self.router.follows(name, report.at))
        return self.router.knows(name) and all(taken)

    def leave(self, name: str) -> None:
        """A replica is gone."""
        for request_id in self.router.leave(name):
            self._sent.pop(request_id, None)
        for known in (self._heard, self._models, self._stats, self._chosen):
            known.pop(name, None)

    def offers(
        self, namespace: Namespace, key: Key, among: Collection[str] | None = None
    ) -> list[Offer]:
        """The offers of Router.offers."""
        return self.router.offers(namespace, key, among)

    def prefixes(self, query: TreeQuery, among: Collection[str] | None = None) -> PrefixMap:
        """The prefixes of Router.prefixes."""
        return self.router.prefixes(query, among)

    def replicas(self) -> list[Reported]:
        """All that are known."""
        self._forget_gone()
        now, loads = self._clock.now(), self.router.loads()
        return [
            Reported(
                name,
                now - heard,
                *loads[name],
                dict(self._chosen[name]),
                self._stats.get(name),
                *self._models[name][:2],
            )
            for name, heard in self._heard.items()
        ]

    def _serves(self, name: str, tokenizer: str, adapter_id: str) -> bool:
        own, _, adapters = self._models.get(name, (None, 0, ()))
        return own == tokenizer and (not adapter_id or adapter_id in adapters)

    def _speaking(self, known: Collection[str]) -> Collection[str]:
        """The replicas of these that reported lately; all, where none did."""
        now = self._clock.now()
        return [name for name in known if now - self._heard[name] <= SILENT_SECONDS] or known

    def _forget_gone(self) -> None:
        now = self._clock.now()
        for name in [name for name, at in self._heard.items() if now - at > GONE_SECONDS]:
            self.leave(name)

    def _end(self, request_id: str, tokens: int | None) -> None:
        self.router.ended(request_id, tokens)
        self._sent.pop(request_id, None)

    def _end_lost(self, name: str, under_way: Collection[str]) -> None:
        """Requests that their replica does not have, though they should have come by now."""
        until = self._clock.now() - LOST_SECONDS
        lost = [
            request_id
            for request_id in self.router.sent_to(name)
            if request_id not in under_way and self._sent[request_id] < until
        ]
        for request_id in lost:
            self._end(request_id, None)
