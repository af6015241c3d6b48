"""Lines of a batch as requests to the routes that they name, behind those of clients."""

from __future__ import annotations

import json
import uuid
from typing import Protocol

from starlette.types import ASGIApp

from radixlm.batch.batch_run import AskLine
from radixlm.batch.lines import BatchLine
from radixlm.batch.results import LineAnswer
from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.server.http.body import parse_json
from radixlm.server.http.http_errors import OPENAI
from radixlm.server.http.inside import post_inside
from radixlm.server.pipeline.service import Service

# Behind all, where --schedule-policy heeds it, and evicted first, where that policy does; what a
# line says of itself is among lines.
PRIORITY = -1_000_000
# While clients ask, and for some seconds after, few lines are under way: each makes every step of
# theirs longer, whatever the policy.
FEW = 2
QUIET_SECONDS = 10.0
# What a line has beside the body.
LINE_BYTES = 8_192
# In an engine, most are of the batch, not all: a client's request finds room at once.
_SHARE = 0.75


class Asking:
    """Asks a server's own routes.

    app: within its envelope. longest: bytes of a line at most.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self.longest = service.max_request_bytes + LINE_BYTES

    def on_behalf_of(self, tenant: str) -> AskLine:
        """The function that answers a line on a tenant's behalf."""

        async def ask(line: BatchLine, content: bytes, part: int) -> LineAnswer:
            try:
                body = _body_of(content, part)
            except InvalidRequestError as error:
                refusal = json.dumps(OPENAI.body(error)).encode()
                return LineAnswer(400, uuid.uuid4().hex, refusal)
            now = self._service.clock.now()
            reply = await post_inside(self._app, line.url, body, tenant, now)
            if reply.status == 503:
                self._service.engine.health()  # raises where it will never be better
            return LineAnswer(*reply)

        return ask

    @property
    def room_alone(self) -> int:
        """How many lines may be under way where nobody else asks: some wait, so that a step that
        ends some has others to begin.
        """
        return self._service.engine.config.request_rows * 5 // 4

    def room(self, batches: int, parts: int = 1) -> int:
        """How many lines of a batch's part may be under way now. batches: how many run. parts: how
        many a batch has, each for an engine of its own.
        """
        if self._service.under_way.quiet_for() < QUIET_SECONDS:
            return FEW
        rows = int(_SHARE * self._service.engine.config.request_rows)
        # A key's own limit is for its clients, too.
        per_key = (self._service.config.max_queued_requests_per_key or 2 * rows * parts) // 2
        return max(min(rows // max(batches, 1), per_key // parts), 1)


class Batches(Protocol):
    """A part of an application that has lines asked of it."""

    def connect(self, asking: Asking) -> None:
        """Take whom lines are asked. Called once, before anything runs."""


def _body_of(content: bytes, part: int) -> bytes:
    """The body in a line, as it is sent: a part goes to one of several replicas whole. Raises
    InvalidRequestError.
    """
    body = parse_json(content)["body"]
    for name in ("stream", "background"):
        if body.get(name):
            raise wrong(name, "is not for batches: an answer is written when it is whole")
    body["data_parallel_rank"] = part
    given = body.get("priority")
    if given is None or type(given) is int:
        body["priority"] = PRIORITY + max(min(given or 0, -PRIORITY - 1), PRIORITY)
    return json.dumps(body, ensure_ascii=False).encode()
