"""What requests ask to be kept of their prompts: pinned in the step that completes the prompt."""

from __future__ import annotations

from radixlm.cache import RadixCache
from radixlm.core.errors import PinError
from radixlm.core.request import Breakpoint, GenerateRequest


class Keeping:
    """The breakpoints of requests whose prompt is not computed yet."""

    def __init__(self, cache: RadixCache) -> None:
        self._cache = cache
        self._waiting: dict[str, GenerateRequest] = {}

    def add(self, request: GenerateRequest) -> None:
        """Remember what is to be kept of a request that is queued now."""
        if request.breakpoints:
            self._waiting[request.request_id] = request

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._waiting.pop(request_id, None)

    def computed(self, request_id: str) -> tuple[Breakpoint, ...]:
        """The prompt is in the cache: pin what is to be kept, and tell what could be.

        The longest comes last, so that it is the youngest where room is short.
        """
        request = self._waiting.pop(request_id, None)
        if request is None:
            return ()
        kept = (self._keep(request, wish) for wish in sorted(request.breakpoints))
        return tuple(entry for entry in kept if entry is not None)

    def _keep(self, request: GenerateRequest, wish: Breakpoint) -> Breakpoint | None:
        prefix = request.key[: wish.tokens]
        try:
            pin = self._cache.keep(prefix, request.namespace, wish.ttl, request.tenant)
        except PinError:
            return None
        return Breakpoint(pin.tokens, wish.ttl)
