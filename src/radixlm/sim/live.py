"""Sessions played against a server that runs, in real time."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import httpx
import numpy as np
from httpx_sse import aconnect_sse

from radixlm.core.bounded_answers import BoundedAnswers
from radixlm.core.errors import ConfigError
from radixlm.core.keys import Key
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.outcomes import Done, Outcome, percentiles, rate
from radixlm.sim.replay import Times
from radixlm.sim.sources import TraceSource

_DONE = "[DONE]"
_CONNECT_SECONDS = 10.0
# Between two pieces of an answer; a call may wait for its turn as long.
_SILENCE_SECONDS = 600.0
# Of an answer, or of one of its events, which repeats all that was answered so far.
MOST_BYTES = 32 * 2**20


class Heard(NamedTuple):
    """The part of an answer that has come so far. tokens: all of them; cached: of the prompt's."""

    tokens: Sequence[int]
    cached: int


class Target(Protocol):
    """A server that answers with exactly as many tokens as are asked for. Raises OSError,
    ValueError.
    """

    def ask(self, prompt: Key, out: int) -> AsyncIterator[Heard]: ...


class ServerTarget:
    """A server with SGLang's /generate, this one or that."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def ask(self, prompt: Key, out: int) -> AsyncIterator[Heard]:
        body = {
            "input_ids": prompt.tolist(),
            "sampling_params": {"max_new_tokens": out, "temperature": 0, "ignore_eos": True},
            "stream": True,
        }
        async with aconnect_sse(self._client, "POST", "/generate", json=body) as source:
            if source.response.is_error:
                text = (await source.response.aread()).decode(errors="replace")
                raise ValueError(f"status {source.response.status_code}: {text:.200}")
            async for event in source.aiter_sse():
                if event.data == _DONE:
                    return
                said = json.loads(event.data)
                if "meta_info" not in said:
                    raise ValueError(f"{event.data:.200}")
                yield Heard(said["output_ids"], said["meta_info"]["cached_tokens"])


def client_of(url: str, api_key: str | None) -> httpx.AsyncClient:
    """A client for `ServerTarget`: as many connections as there are calls at a time."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
        timeout=httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS, pool=None),
        limits=httpx.Limits(max_connections=None),
        event_hooks=BoundedAnswers(MOST_BYTES).async_hooks,
    )


@dataclass(slots=True)
class Player:
    """Plays each session: a call comes a pause after the answer before, and goes on from what was
    really answered. Calls that fail are problems. done: called after each.
    """

    target: Target
    problems: Problems
    users: int = 8
    done: Callable[[], object] = lambda: None
    times: Times = field(default_factory=Times)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated: int = 0
    calls: int = 0
    seconds: float = 0.0

    async def run(self, sessions: Iterable[TraceSession]) -> None:
        """Run to the last answer. O(sessions that are under way) memory."""
        began, free = time.perf_counter(), asyncio.Semaphore(self.users)
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                if session.at is None:
                    await free.acquire()
                    task = group.create_task(self._play(session))
                    task.add_done_callback(lambda _: free.release())
                else:
                    await asyncio.sleep(max(began + session.at - time.perf_counter(), 0.0))
                    group.create_task(self._play(session))
        self.seconds = time.perf_counter() - began

    async def _play(self, session: TraceSession) -> None:
        said: list[tuple[TraceCall, Key, Key]] = []
        for place, call in enumerate(session.calls):
            await asyncio.sleep(call.gap if place else 0.0)
            prompt = as_answered(call.prompt, said)
            try:
                said.append((call, prompt, await self._ask(prompt, call.answer.size)))
            except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
                self.problems.add(call.where, "the server gives no answer", f"{error!r:.200}")
            self.done()

    async def _ask(self, prompt: Key, out: int) -> Key:
        began, first, heard = time.perf_counter(), 0.0, Heard((), 0)
        async for more in self.target.ask(prompt, out):
            first, heard = first or time.perf_counter(), more
        last, count = time.perf_counter(), len(heard.tokens)
        if not count:
            raise ValueError("an answer without tokens")
        self.times.first.append(first - began)
        if count > 1:
            self.times.between.append((last - first) / (count - 1))
        self.prompt_tokens += prompt.size
        self.cached_tokens += heard.cached
        self.generated += count
        self.calls += 1
        return np.array(heard.tokens, dtype=np.int32)


async def _played(
    source: TraceSource, client: httpx.AsyncClient, users: int, done: Callable[[], object]
) -> Done:
    problems = Problems()
    try:
        answer = await client.get("/server_info")
        facts = answer.raise_for_status().json()
        settings: dict[str, Any] = {
            "kv_tokens": int(facts["max_total_num_tokens"]),
            "page_size": int(facts["page_size"]),
            "eviction_policy": str(facts.get("eviction_policy", "")),
            "schedule_policy": str(facts["schedule_policy"]),
        }
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{client.base_url} says nothing of itself at /server_info, as this server and SGLang "
            f"do: {error!r:.200}"
        ) from None
    began = time.perf_counter()
    player = Player(ServerTarget(client), problems, users, done)
    await player.run(source.open(problems))
    outcome = Outcome(
        trace=source.name,
        costs=str(client.base_url),
        **settings,
        calls=player.calls,
        left_out=problems.count,
        prompt_tokens=player.prompt_tokens,
        cached_tokens=player.cached_tokens,
        output_tokens=player.generated,
        hit_rate=round(player.cached_tokens / max(player.prompt_tokens, 1), 6),
        **percentiles(player.times),
        output_tokens_per_s=rate(player.generated, player.seconds),
        prompt_tokens_per_s=rate(player.prompt_tokens, player.seconds),
        duration_s=round(player.seconds, 3),
        wall_s=round(time.perf_counter() - began, 3),
    )
    return Done(outcome, problems)


def played(
    source: TraceSource,
    url: str,
    api_key: str | None,
    users: int,
    done: Callable[[], object] = lambda: None,
) -> Done:
    """Play a trace to a server; return its outcome. Raises ConfigError where none answers."""

    async def play() -> Done:
        async with client_of(url, api_key) as client:
            return await _played(source, client, users, done)

    return asyncio.run(play())


def as_answered(prompt: Key, said: Sequence[tuple[TraceCall, Key, Key]]) -> Key:
    """The prompt with the real answers in it, of the latest call that it goes on from.

    said: calls, their prompts as they were asked, and what was answered.
    """
    for call, asked, answer in reversed(said):
        known = np.concatenate((call.prompt, call.answer))
        if prompt[: known.size].tobytes() == known.tobytes():
            return np.concatenate((asked, answer, prompt[known.size :]))
    return prompt
