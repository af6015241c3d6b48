"""The router: a request goes to the replica where it costs least, and it says why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from radixlm.core.errors import ConfigError, QueueFullError
from radixlm.core.keys import Key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import Namespace
from radixlm.routing.feed import FeedUpdate, Position
from radixlm.routing.loads import Numbers, ReplicaLoads
from radixlm.routing.prefix_map import PrefixMap, prefix_map
from radixlm.routing.replica_tree import ReplicaMatches, ReplicaTree
from radixlm.routing.tree_mirror import Change, ResidentPrefix

# A further row in a step costs about as much as this many tokens of a prompt: SmolLM's 135M shape
# on two cores, 0.5 ms beside 0.16 ms.
TOKENS_PER_ANSWER_TOKEN = 3.0
# Before any answer has ended.
_FIRST_ANSWER_TOKENS = 64.0
_NEWEST_ANSWER = 0.05


class Why(StrEnum):
    """The reason for a request's replica."""

    ONLY = "only"  # there was no other, or it was asked for
    LONGEST_PREFIX = "longest_prefix"  # no other holds more of it
    IN_FLIGHT = "in_flight"  # its prefix is being computed there
    SPILLED = "spilled"  # others hold more of it, and have more to do, or had lately
    LEAST_LOADED = "least_loaded"  # nobody holds more of it than the others


class ReplicaChoice(NamedTuple):
    """The choice of a replica for a request. Sizes in tokens of a prompt; one of an answer counts
    as several.

    cached: what is expected to be there, `coming` of it still computed for others. missing: what is
    left to compute. queue: what is to be done there before. best_cached, best_queue: of the replica
    that has most of the prompt.
    """

    replica: str
    why: Why
    prompt: int
    cached: int
    coming: int
    missing: int
    queue: float
    best_cached: int
    best_queue: float
    candidates: int

    def __str__(self) -> str:
        rest = f"{self.missing} of {self.prompt} tokens to compute, {self.queue:.0f} ahead of them"
        match self.why:
            case Why.ONLY:
                return f"the only replica that may be chosen; {rest}"
            case Why.IN_FLIGHT:
                return f"its prefix of {self.cached} tokens is being computed there; {rest}"
            case Why.LONGEST_PREFIX:
                return f"it holds {self.cached} tokens, no other more; {rest}"
            case Why.SPILLED:
                return (
                    f"{rest}; another holds {self.best_cached} tokens, but is busier: "
                    f"{self.best_queue:.0f} ahead of them"
                )
            case Why.LEAST_LOADED:
                return f"all hold the same of it; {rest}"


@dataclass(frozen=True, slots=True)
class Offer:
    """cached_tokens: that it holds or is computing; coming_tokens: those that it is computing.
    queue_tokens: what is ahead of it. cost: the least one is chosen.
    """

    replica: str
    cached_tokens: int
    coming_tokens: int
    queue_tokens: float
    cost: float


class _Candidates(NamedTuple):
    """The known ones of `among`: how many, and (replicas,) infinity for all others."""

    among: tuple[str, ...]
    known: int
    absent: Numbers


@dataclass(slots=True)
class _Replica:
    """The state of a replica, as far as it is known. seen: how far its feed was taken; None before
    its first snapshot. requests: those under way. chosen: how often it was.
    """

    name: str
    number: int
    seen: Position | None = None
    requests: set[str] = field(default_factory=set)
    chosen: Counter[Why] = field(default_factory=Counter)


@dataclass(slots=True)
class _Sent:
    """A request under way. answer: what generating it costs, in tokens of a prompt."""

    replica: _Replica
    namespace: Namespace
    key: Key
    missing: int
    answer: float
    at: float
    begun: bool = False


class Router:
    """One for all ways in: what each replica holds, what was sent to it, and who is next.

    A request costs a replica the tokens that it has to compute, after those that are queued there,
    and the price of what new tokens push out (`ReplicaLoads`). What it needs and another one is
    computing there comes for nothing, and is no queue to it: it would take as long elsewhere. So a
    prompt follows its prefix until that costs more than computing it again; then a second replica
    holds it, too.

    Every method is called from one thread. `choose` costs the prompt's path and the replicas.
    """

    def __init__(self) -> None:
        self.tree = ReplicaTree()
        self._replicas: dict[str, _Replica] = {}
        self._by_number: dict[int, _Replica] = {}
        self._loads = ReplicaLoads()
        self._candidates: _Candidates | None = None
        self._sent: dict[str, _Sent] = {}
        self._answer_tokens = _FIRST_ANSWER_TOKENS

    @property
    def names(self) -> Collection[str]:
        return self._replicas.keys()

    def join(self, name: str, capacity: int) -> None:
        """A replica may be chosen. capacity: tokens that it can hold. Raises ConfigError."""
        if name in self._replicas:
            raise ConfigError(f"a replica {name!r} is known already")
        number = next(n for n in range(len(self._by_number) + 1) if n not in self._by_number)
        others = list(self._by_number)
        self._loads.add(number, capacity, min(self._loads.prices[others], default=0.0))
        self._replicas[name] = self._by_number[number] = _Replica(name, number)
        self._candidates = None

    def leave(self, name: str) -> None:
        """A replica is gone, with the requests that were sent to it and have not ended."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return
        self.tree.forget(replica.number)
        del self._by_number[replica.number]
        self._loads.remove(replica.number)
        self._candidates = None
        for request_id in replica.requests:
            del self._sent[request_id]

    def choose(
        self,
        request_id: str,
        namespace: Namespace,
        key: Key,
        *,
        max_tokens: int | None = None,
        among: Collection[str] | None = None,
        now: float = 0.0,
    ) -> ReplicaChoice:
        """Choose a replica for a request; it counts as sent, now. among: those that may be chosen.
        Raises QueueFullError where there is none.
        """
        self.ended(request_id)  # one that is sent again
        found = self.tree.find(namespace, key)
        candidates = self._candidates_of(among)
        if not candidates.known:
            raise QueueFullError("no replica can take a request now")
        queues = self._loads.queues
        costs = self._loads.costs(key.size, found)
        costs += candidates.absent
        chosen = int(costs.argmin())
        there = most = found.cached(chosen)
        best = chosen
        if there < found.most():
            best = self._fullest(found, candidates)
            most = found.cached(best)
        coming = there - found.held(chosen)
        replica = self._by_number[chosen]
        choice = ReplicaChoice(
            replica.name,
            _why(candidates.known, there, most, coming),
            prompt=key.size,
            cached=there,
            coming=coming,
            missing=max(key.size - there, 1),  # the last token is computed again
            queue=float(queues[chosen]),
            best_cached=most,
            best_queue=float(queues[best]),
            candidates=candidates.known,
        )
        answer = min(self._answer_tokens, max_tokens or self._answer_tokens)
        answer *= TOKENS_PER_ANSWER_TOKEN
        self._sent[request_id] = _Sent(replica, namespace, key, choice.missing, answer, now)
        replica.requests.add(request_id)
        replica.chosen[choice.why] += 1
        self._loads.send(chosen, choice.missing)
        self.tree.send(chosen, namespace, key, found)
        return choice

    def offers(
        self, namespace: Namespace, key: Key, among: Collection[str] | None = None
    ) -> list[Offer]:
        """The cost of a prompt in each replica now; changes nothing."""
        found = self.tree.find(namespace, key)
        costs, queues = self._loads.costs(key.size, found), self._loads.queues
        absent = self._candidates_of(among).absent
        return [
            Offer(
                replica.name,
                cached_tokens=found.cached(number),
                coming_tokens=found.cached(number) - found.held(number),
                queue_tokens=float(queues[number]),
                cost=float(costs[number]),
            )
            for number, replica in self._by_number.items()
            if not absent[number]
        ]

    def prefixes(self, query: TreeQuery, among: Collection[str] | None = None) -> PrefixMap:
        """The prefixes and where they live; see `prefix_map`."""
        asked = self._replicas.keys() & set(self._replicas if among is None else among)
        names = {self._replicas[name].number: name for name in asked}
        return prefix_map(self.tree, query, names)

    def _fullest(self, found: ReplicaMatches, candidates: _Candidates) -> int:
        """The candidate with most of the prompt, or of equals that with the least queue."""
        queues, absent = self._loads.queues, candidates.absent
        return min(
            (number for number in self._by_number if not absent[number]),
            key=lambda number: (-found.cached(number), queues[number]),
        )

    def _candidates_of(self, among: Collection[str] | None) -> _Candidates:
        """They are seldom others than the time before."""
        asked = tuple(self._replicas if among is None else among)
        if self._candidates is None or self._candidates.among != asked:
            known = self._replicas.keys() & set(asked)
            absent = np.full(self._loads.queues.size, np.inf)
            absent[[self._replicas[name].number for name in known]] = 0.0
            self._candidates = _Candidates(asked, len(known), absent)
        return self._candidates

    def began(self, request_id: str) -> None:
        """A request has its first token: its prompt is computed."""
        sent = self._sent.get(request_id)
        if sent is None or sent.begun:
            return
        sent.begun = True
        replica = sent.replica
        self._loads.queues[replica.number] += sent.answer - sent.missing
        self.tree.arrive(replica.number, sent.namespace, sent.key, computed=True)

    def ended(self, request_id: str, answer_tokens: int | None = None) -> None:
        """A request has ended, with an answer of that length, or without one."""
        sent = self._sent.pop(request_id, None)
        if sent is None:
            return
        replica = sent.replica
        replica.requests.discard(request_id)
        self._loads.queues[replica.number] -= sent.answer if sent.begun else sent.missing
        if not replica.requests:  # sums of fractions end near nothing
            self._loads.queues[replica.number] = 0.0
        if not sent.begun:
            self.tree.arrive(replica.number, sent.namespace, sent.key, computed=False)
        if answer_tokens is not None:
            self._answer_tokens += _NEWEST_ANSWER * (answer_tokens - self._answer_tokens)

    def end_lost(self, name: str, under_way: Collection[str], before: float) -> None:
        """End the requests that were sent to a replica before that time, and are not there."""
        for request_id in self._replicas[name].requests.difference(under_way):
            if self._sent[request_id].at < before:
                self.ended(request_id)

    def take(self, name: str, news: FeedUpdate) -> bool:
        """Take what a replica reports of its cache. False: something was missed, all is needed
        anew.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return False
        at, seen = news.at, replica.seen
        if seen is not None and seen.process == at.process and at < seen:
            return True  # late, or sent twice
        if news.whole:
            self.tree.clear(replica.number)
            replica.seen = at
        elif self.follows(name, at):
            replica.seen = at.next
        else:
            return False
        self._apply(replica, news.changes)
        return True

    def follows(self, name: str, at: Position) -> bool:
        """Whether all that a replica reported until there was taken. What another process of its
        name reported is forgotten.
        """
        replica = self._replicas[name]
        if replica.seen is not None and replica.seen.process != at.process:
            self.tree.clear(replica.number)
            replica.seen = None
        return replica.seen == at

    def knows(self, name: str) -> bool:
        """Whether what a replica holds is known."""
        replica = self._replicas.get(name)
        return replica is not None and replica.seen is not None

    def sent_to(self, name: str) -> Set[str]:
        """The requests that were sent to a replica and have not ended."""
        return self._replicas[name].requests

    def loads(self) -> dict[str, tuple[int, float]]:
        """The loads by replica: requests under way, and what is queued there, in tokens."""
        queues = self._loads.queues
        return {
            name: (len(each.requests), float(queues[each.number]))
            for name, each in self._replicas.items()
        }

    def chosen(self, name: str) -> dict[Why, int]:
        """How often a replica was chosen, by why."""
        return dict(self._replicas[name].chosen)

    def _apply(self, replica: _Replica, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, ResidentPrefix):
                self.tree.hold(replica.number, change.namespace, change.key)
            else:
                self.tree.drop(replica.number, change.namespace, change.key, change.kept)


def _why(candidates: int, there: int, most: int, coming: int) -> Why:
    if candidates == 1:
        return Why.ONLY
    if there < most:
        return Why.SPILLED
    if not there:
        return Why.LEAST_LOADED
    return Why.IN_FLIGHT if coming else Why.LONGEST_PREFIX
