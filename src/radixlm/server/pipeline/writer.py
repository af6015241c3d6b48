"""How an API writes its answers: one protocol for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from radixlm.core.request import RequestOutput
from radixlm.server.pipeline.usage import UsageMeter


class Writer(Protocol):
    """Writes one answer, whole or as a stream of events. It is made for one generation.

    `push` takes each output of each choice, then `finish` is called once; then, unless the answer
    is streamed, `whole`. One call runs at a time, in whichever thread.

    meter: counts what was pushed, before `push` sees it; the pipeline does that.
    """

    meter: UsageMeter

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        """Take new output of a choice. The events that it makes, framed; they are not read where
        the answer is sent whole.
        """

    async def finish(self) -> Iterable[bytes]:
        """All outputs have come: do what waits for that, as storing. The stream's last events."""

    def whole(self) -> bytes:
        """The whole answer as JSON."""

    def failed(self, error: Exception) -> bytes:
        """What the stream ends with where an error cuts it short."""
