"""The news that a replica has still to report."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from radixlm.core.keys import Key
from radixlm.core.reports import TreeChange, TreeSnapshot
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.routing.feed import FeedUpdate, Position, TreeFeed

# While the router is away; of more it learns with the next whole tree.
MOST_TO_SETTLE = 10_000


class Report(NamedTuple):
    """The events of a replica since its last report. capacity: tokens of its pool. largest_request:
    those that one request can have. news: of its cache. began, ended: requests, these with their
    answers' tokens. tokenizer: a digest of what gives its tokens their meaning. adapters: the ids
    of those that it has.

    Now and then also: at, how far its news are with these; under_way, all requests; stats, what
    others want to know of it, as it is.
    """

    replica: str
    capacity: int
    largest_request: int
    news: Sequence[FeedUpdate] = ()
    began: Sequence[str] = ()
    ended: Sequence[tuple[str, int | None]] = ()
    at: Position | None = None
    under_way: Collection[str] | None = None
    stats: Any = None
    tokenizer: str = ""
    adapters: Collection[str] = ()


class ReportBuffer:
    """The news of a replica's cache and requests, until it is taken.

    A prompt that was computed is held, a router believes; whether it is, is reported after its
    request has ended, in the second whole report from then: by then a viewer has been shown it.
    whole_reported: whether the tree was taken as a whole, after which its changes are enough.
    blank: has what does not change.
    """

    def __init__(self, blank: Report) -> None:
        self._blank = blank
        self._feed = TreeFeed(secrets.token_hex(8))
        self.whole_reported = False
        self._news: list[FeedUpdate] = []
        self._began: list[str] = []
        self._ended: list[tuple[str, int | None]] = []
        self._under_way: set[str] = set()
        self._computed: deque[tuple[Namespace, Key]] = deque(maxlen=MOST_TO_SETTLE)
        self._to_settle: Sequence[tuple[Namespace, Key]] = ()

    def begin_again(self) -> None:
        """Begin again, since what was reported may not have come: the next that is shown must be
        the whole tree.
        """
        at = self._feed.at
        self._feed = TreeFeed(at.process, at.feed + 1)
        self.whole_reported = False
        self._news = []

    def shown(self, tree: TreeSnapshot | TreeChange) -> bool:
        """Take what a viewer sees. False: there is nothing in it to report."""
        news = self._feed.take(tree)
        if news is None:
            return False
        self._news.append(news)
        return True

    def arrived(self, request: GenerateRequest) -> None:
        self._under_way.add(request.request_id)

    def began(self, request: GenerateRequest) -> None:
        """Note that a request has its first token."""
        self._began.append(request.request_id)

    def ended(self, request: GenerateRequest, answer_tokens: int | None) -> None:
        """Note that a request has ended, with an answer of that length, or without one."""
        self._under_way.discard(request.request_id)
        self._ended.append((request.request_id, answer_tokens))
        self._computed.append((request.namespace, request.key))

    def take(self) -> Report:
        """Take what is new."""
        report = self._blank._replace(news=self._news, began=self._began, ended=self._ended)
        self.whole_reported = self.whole_reported or any(news.whole for news in self._news)
        self._news, self._began, self._ended = [], [], []
        return report

    def take_whole(self, stats: Any = None) -> Report:
        """Take what is new, and how things stand."""
        if self.whole_reported:
            if (news := self._feed.settle(self._to_settle)) is not None:
                self._news.append(news)
            self._to_settle = tuple(self._computed)
            self._computed.clear()
        at = self._feed.at if self.whole_reported else None
        return self.take()._replace(at=at, under_way=frozenset(self._under_way), stats=stats)
