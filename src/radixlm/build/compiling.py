"""Requests whose grammars are compiled now, so that they can be aborted before the engine knows."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from radixlm.core.errors import EngineStoppedError
from radixlm.core.grammar import Grammar
from radixlm.structured_output import Compiled, Compiler


class Compiling:
    """Used from the event loop's thread only."""

    def __init__(self, grammars: Compiler) -> None:
        self._grammars = grammars
        self._under_way: dict[asyncio.Future[Compiled], str] = {}

    async def compiled(
        self, grammar: Grammar, *, request_id: str, tenant: str = ""
    ) -> Compiled | None:
        """None when the request was aborted meanwhile. Raises what Compiler.compile raises."""
        future = asyncio.wrap_future(self._grammars.submit(grammar, tenant))
        self._under_way[future] = request_id
        try:
            await asyncio.wait([future])
        finally:
            aborted = self._under_way.pop(future, None) is None
            future.cancel()  # where nobody waits any more; what is done stays as it is
        if aborted:
            return None
        if future.cancelled():
            raise EngineStoppedError(
                "the engine was shut down while a grammar waited to be compiled"
            )
        return future.result()

    def abort(self, request_ids: Iterable[str] | None) -> int:
        """Give up these requests, with None all; returns how many there were."""
        wanted = None if request_ids is None else frozenset(request_ids)
        found = [
            future for future, name in self._under_way.items() if wanted is None or name in wanted
        ]
        for future in found:
            del self._under_way[future]
            future.cancel()
        return len(found)
