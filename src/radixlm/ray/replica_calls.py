"""Calls of replicas, whose errors are ours."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentResponseGenerator

from radixlm.core.errors import EngineDeadError, QueueFullError, RadixLMError
from radixlm.engine.watching import Scene, SceneChange

# What a call raises where a replica, or the way to it, is gone; and where its code fails.
FAILED = (RayError, RayServeException, EngineDeadError)

_PATIENCE_SECONDS = 30.0
_SECONDS_TO_NEXT_TRY = 1.0


class ReplicaDiedError(EngineDeadError):
    """An engine has died while it had the request, perhaps of it."""


def cause_of(error: Exception) -> Exception:
    """The cause of an error, without Ray's account of where it was raised."""
    cause: Exception = error.cause if isinstance(error, RayTaskError) else error
    return cause


def failed_itself(error: Exception) -> bool:
    """Whether the replica's code failed, as it would in another one."""
    return isinstance(error, RayTaskError) and not isinstance(error.cause, FAILED)


async def answered(call: Awaitable[Any]) -> Any:
    """The result of a call. Raises an error of ours that it returns, and EngineDeadError."""
    try:
        return _sound(await asyncio.wait_for(call, _PATIENCE_SECONDS))
    except TimeoutError:
        raise EngineDeadError("a replica does not answer") from None
    except FAILED as error:
        if failed_itself(error):
            raise
        raise EngineDeadError(f"a replica is gone: {cause_of(error)}") from error


def begun(method: Any, *arguments: Any, **named: Any) -> DeploymentResponseGenerator[Any]:
    """Call a method that streams.

    In a context of its own: calls for one HTTP request share an id in Ray Serve, and TokenRouter
    must tell them apart.
    """
    call: Callable[..., DeploymentResponseGenerator[Any]] = method.options(stream=True).remote
    return contextvars.Context().run(call, *arguments, **named)


async def items(call: DeploymentResponseGenerator[Any]) -> AsyncGenerator[Any, None]:
    """The items that it streams; closing it ends the call. Raises an error of ours that it
    streams.
    """
    ended = False
    try:
        async for item in call:
            yield _sound(item)
        ended = True
    finally:
        if not ended:
            call.cancel()


async def streamed(method: Any, *arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
    """The items of a call that is begun when the first one is wanted."""
    async with aclosing(items(begun(method, *arguments, **named))) as found:
        async for item in found:
            yield item


def _sound(item: Any) -> Any:
    if isinstance(item, RadixLMError):
        raise item
    return item


class ReplicaViewer:
    """Follows one replica's tree. dropped: not counted here; the replica shows a whole scene.

    watch: begins to. A replica ends it after a while, so that it can leave; then it begins anew,
    with a whole scene.
    """

    def __init__(self, watch: Callable[[], AsyncGenerator[Scene | SceneChange, None]]) -> None:
        self.dropped = 0
        self._watch, self._updates = watch, watch()
        self._next: asyncio.Task[Scene | SceneChange] | None = None
        self._came = self._is_again = False

    async def next(self) -> Scene | SceneChange:
        """Wait for the next update; being cancelled loses none. Raises EngineDeadError."""
        while True:
            if self._next is None:
                self._next = asyncio.ensure_future(anext(self._updates))
            try:
                update = await asyncio.shield(self._next)
            except asyncio.CancelledError:
                raise
            except StopAsyncIteration:
                if not self._came:
                    raise EngineDeadError("the replica shows nothing") from None
                self._watch_again()
            except QueueFullError:  # another one took its place
                if not self._is_again:
                    raise
                await asyncio.sleep(_SECONDS_TO_NEXT_TRY)
                self._watch_again()
            except FAILED as error:
                raise EngineDeadError(f"the replica is gone: {cause_of(error)}") from None
            else:
                self._next, self._came = None, True
                return update

    def _watch_again(self) -> None:
        self._next, self._updates = None, self._watch()
        self._came, self._is_again = False, True

    def close(self) -> None:
        """Watch no longer."""
        if self._next is not None:
            self._next.cancel()
