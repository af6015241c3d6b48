"""Where a request goes: to the replica where it costs least, with the reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from radixlm.core.errors import ConfigError, QueueFullError
from radixlm.core.keys import Key
from radixlm.core.request import Namespace
from radixlm.routing.feed import News
from radixlm.routing.replica_tree import ReplicaTree
from radixlm.routing.tree_ledger import Change, Held

# A further row in a step costs about as much as this many tokens of a prompt: SmolLM's 135M shape
# on two cores, 0.5 ms beside 0.16 ms.
TOKENS_PER_ANSWER_TOKEN = 3.0
# Before any answer has ended.
_FIRST_ANSWER_TOKENS = 64.0
_NEWEST_ANSWER = 0.05
# New tokens push out others, which somebody may have to compute again; more so where more was
# computed lately. Four replicas on Mooncake's trace, hit rate / one cache of the size of all: 0.87
# with 0, 0.93 with 1, 0.96 with 3, 0.98 with 10, which leaves queues longer.
_CHURN = 3.0


class Why(StrEnum):
    """Why a request went where it went."""

    ONLY = "only"  # there was no other
    LONGEST_PREFIX = "longest_prefix"  # no other holds more of it
    IN_FLIGHT = "in_flight"  # its prefix is being computed there
    SPILLED = "spilled"  # others hold more of it, and have more to do
    LEAST_LOADED = "least_loaded"  # nobody holds more of it than the others


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a request goes. Sizes in tokens of a prompt; one of an answer counts as several.

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
                return f"the only replica; {rest}"
            case Why.IN_FLIGHT:
                return f"its prefix of {self.cached} tokens is being computed there; {rest}"
            case Why.LONGEST_PREFIX:
                return f"it holds {self.cached} tokens, no other more; {rest}"
            case Why.SPILLED:
                return (
                    f"{rest}; another holds {self.best_cached} tokens, but has "
                    f"{self.best_queue:.0f} to do first"
                )
            case Why.LEAST_LOADED:
                return f"all hold the same of it; {rest}"


class Offer(NamedTuple):
    """What a prompt would cost a replica, in its tokens. cached: expected to be there, `coming` of
    it still computed for others. lately: what it computed lately.
    """

    replica: str
    cached: int
    coming: int
    queue: float
    cost: float
    lately: float


@dataclass(slots=True)
class _Replica:
    """What is known of one. ahead: tokens to compute for requests that have not begun to answer.
    answering: tokens that those which have begun may still generate. lately: tokens computed, older
    ones count less. seen: by its feed, epoch and the next number; None before its first snapshot.
    """

    name: str
    number: int
    capacity: int
    ahead: int = 0
    answering: float = 0.0
    lately: float = 0.0
    seen: tuple[str, int] | None = None
    requests: set[str] = field(default_factory=set)

    @property
    def queue(self) -> float:
        return self.ahead + TOKENS_PER_ANSWER_TOKEN * self.answering


@dataclass(slots=True)
class _Sent:
    replica: _Replica
    namespace: Namespace
    key: Key
    missing: int
    answer: float
    begun: bool = False


class Router:
    """One for all ways in: what each replica holds, what was sent to it, and who is next.

    A request costs a replica the tokens that it has to compute, after those that are queued there.
    What it needs and another one is computing there comes for nothing, and is no queue to it: it
    would take as long elsewhere. So a prompt follows its
    prefix until the queue costs more than computing it again; then a second replica holds it, too.

    Every method is called from one thread. `choose` costs the prompt's path and the replicas.
    """

    def __init__(self) -> None:
        self.tree = ReplicaTree()
        self._replicas: dict[str, _Replica] = {}
        self._numbers: set[int] = set()
        self._sent: dict[str, _Sent] = {}
        self._answer_tokens = _FIRST_ANSWER_TOKENS

    @property
    def names(self) -> Collection[str]:
        return self._replicas.keys()

    def join(self, name: str, capacity: int) -> None:
        """A replica may be chosen. capacity: tokens that it can hold. Raises ConfigError."""
        if name in self._replicas:
            raise ConfigError(f"a replica {name!r} is known already")
        number = next(n for n in range(len(self._numbers) + 1) if n not in self._numbers)
        self._numbers.add(number)
        fewest = min((each.lately for each in self._replicas.values()), default=0.0)
        self._replicas[name] = _Replica(name, number, capacity, lately=fewest)

    def leave(self, name: str) -> Sequence[str]:
        """A replica is gone; the requests that were sent to it and have not ended."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return ()
        self.tree.forget(replica.number)
        self._numbers.discard(replica.number)
        for request_id in replica.requests:
            del self._sent[request_id]
        return tuple(replica.requests)

    def choose(
        self,
        request_id: str,
        namespace: Namespace,
        key: Key,
        *,
        max_tokens: int | None = None,
        among: Collection[str] | None = None,
    ) -> Choice:
        """Where a request goes; it counts as sent. among: those that may be chosen. Raises
        QueueFullError where there is none.
        """
        offers = self.offers(namespace, key, among)
        if not offers:
            raise QueueFullError("no replica can take a request now")
        chosen = min(offers, key=_rank)
        best = max(offers, key=lambda offer: (offer.cached, -offer.queue))
        choice = Choice(
            chosen.replica,
            _why(len(offers), chosen, best),
            prompt=key.size,
            cached=chosen.cached,
            coming=chosen.coming,
            missing=key.size - chosen.cached,
            queue=chosen.queue,
            best_cached=best.cached,
            best_queue=best.queue,
            candidates=len(offers),
        )
        replica = self._replicas[chosen.replica]
        self._send(request_id, replica, namespace, key, choice.missing, max_tokens)
        return choice

    def offers(
        self, namespace: Namespace, key: Key, among: Collection[str] | None = None
    ) -> list[Offer]:
        """What a prompt would cost each replica now; changes nothing."""
        candidates = [r for r in self._replicas.values() if among is None or r.name in among]
        held, coming = self.tree.find(namespace, key)
        size = key.size
        mean = sum([r.lately for r in candidates]) / max(len(candidates), 1)
        weight = _CHURN / mean if mean else 0.0
        offers = []
        for replica in candidates:
            there, queue = coming.get(replica.number, 0), replica.queue
            shared, missing = there - held.get(replica.number, 0), size - there
            cost = missing + queue - shared + weight * missing * replica.lately
            offers.append(Offer(replica.name, there, shared, queue, cost, replica.lately))
        return offers

    def began(self, request_id: str) -> None:
        """A request has its first token: its prompt is computed."""
        sent = self._sent.get(request_id)
        if sent is None or sent.begun:
            return
        sent.begun = True
        replica = sent.replica
        replica.ahead -= sent.missing
        replica.answering += sent.answer
        self.tree.arrive(replica.number, sent.namespace, sent.key, computed=True)

    def ended(self, request_id: str, answer_tokens: int | None = None) -> None:
        """A request has ended, with an answer of that length, or without one."""
        sent = self._sent.pop(request_id, None)
        if sent is None:
            return
        replica = sent.replica
        replica.requests.discard(request_id)
        if sent.begun:
            replica.answering -= sent.answer
        else:
            replica.ahead -= sent.missing
            self.tree.arrive(replica.number, sent.namespace, sent.key, computed=False)
        if answer_tokens is not None:
            self._answer_tokens += _NEWEST_ANSWER * (answer_tokens - self._answer_tokens)

    def take(self, name: str, news: News) -> bool:
        """What a replica reports of its cache. False: something was missed, all is needed anew."""
        replica = self._replicas.get(name)
        if replica is None:
            return False
        if news.whole:
            self.tree.clear(replica.number)
            replica.seen = news.epoch, news.number
        elif replica.seen is None or replica.seen[0] != news.epoch or replica.seen[1] < news.number:
            return False
        elif replica.seen[1] > news.number:  # sent twice
            return True
        else:
            replica.seen = news.epoch, news.number + 1
        self._apply(replica, news.changes)
        return True

    def knows(self, name: str) -> bool:
        """Whether what a replica holds is known."""
        replica = self._replicas.get(name)
        return replica is not None and replica.seen is not None

    def sent_to(self, name: str) -> Collection[str]:
        """The requests that were sent to a replica and have not ended."""
        replica = self._replicas.get(name)
        return () if replica is None else replica.requests

    def loads(self) -> dict[str, tuple[int, float]]:
        """By replica: requests under way, and what is queued there, in tokens."""
        return {name: (len(r.requests), r.queue) for name, r in self._replicas.items()}

    def _apply(self, replica: _Replica, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, Held):
                self.tree.hold(replica.number, change.namespace, change.key)
            else:
                self.tree.drop(replica.number, change.namespace, change.key, change.kept)

    def _send(
        self,
        request_id: str,
        replica: _Replica,
        namespace: Namespace,
        key: Key,
        missing: int,
        max_tokens: int | None,
    ) -> None:
        answer = min(self._answer_tokens, max_tokens or self._answer_tokens)
        self.ended(request_id)  # one that is sent again
        self._sent[request_id] = _Sent(replica, namespace, key, missing, answer)
        replica.requests.add(request_id)
        replica.ahead += missing
        self._age(replica, missing)
        self.tree.send(replica.number, namespace, key)

    def _age(self, replica: _Replica, computed: int) -> None:
        """What was computed lately counts half after as much as fits into the replicas."""
        capacity = sum(each.capacity for each in self._replicas.values())
        factor = 0.5 ** (computed / max(capacity, 1))
        for each in self._replicas.values():
            each.lately *= factor
        replica.lately += computed


def _rank(offer: Offer) -> tuple[float, int, float]:
    return offer.cost, -offer.cached, offer.lately


def _why(candidates: int, chosen: Offer, best: Offer) -> Why:
    if candidates == 1:
        return Why.ONLY
    if chosen.cached < best.cached:
        return Why.SPILLED
    if not chosen.cached:
        return Why.LEAST_LOADED
    return Why.IN_FLIGHT if chosen.coming else Why.LONGEST_PREFIX
