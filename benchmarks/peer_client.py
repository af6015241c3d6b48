"""A server that benchmarks/peers.py measures: asks it, and looks at the clock as tokens arrive."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks.peer_workloads import Ask, Draw

_WARM_UP_TOKENS, _WARM_UP_OUT = 48, 8
# POST there drops the prefix cache: ours and SGLang's; vLLM's (with VLLM_SERVER_DEV_MODE=1).
_FLUSH_PATHS = ("/flush_cache", "/reset_prefix_cache")
_FLUSH_TRIES = 20


class PeerError(Exception):
    """A server that is not there, or did not do what it was asked for."""


@dataclass(slots=True)
class Reply:
    """What came of one request. first: seconds to the first piece; gaps: seconds between tokens.

    token_ids: None where the server gives none. cached: None where it does not say.
    """

    prompt: list[int]
    text: str = ""
    token_ids: list[int] | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached: int | None = None
    first: float = 0.0
    gaps: list[float] = field(default_factory=list)


class Peer:
    """A server under test. Its methods raise PeerError that says what the server did.

    fields: further ones of each request.
    """

    def __init__(
        self, url: str, client: httpx.AsyncClient, model: str | None, **fields: object
    ) -> None:
        self.url = url.rstrip("/")
        self.model = model or ""
        self.flushes_at: str | None = None
        self._client = client
        self._fields = fields
        self._extra: dict[str, Any] = {"return_token_ids": True}

    async def connect(self, draw: Draw) -> None:
        """Learn the model's name and what the server knows, by one request that warms it up."""
        if not self.model:
            listed = await self._json("GET", "/v1/models")
            try:
                self.model = str(listed["data"][0]["id"])
            except (KeyError, IndexError, TypeError):
                raise PeerError(f"{self.url}/v1/models lists no model: {listed}") from None
        ask = Ask(draw.tokens(_WARM_UP_TOKENS), _WARM_UP_OUT)
        try:
            await self.ask(ask)
        except PeerError:
            self._extra = {}
            await self.ask(ask)
        # The first that is there: /flush_cache says by its status whether all is gone.
        for path in _FLUSH_PATHS:
            # 400 while a request runs, as ours and SGLang's say it: the one above, for a moment.
            if (await self._send("POST", path)).status_code in (200, 400):
                self.flushes_at = path
                break

    async def vocab_size(self) -> int | None:
        """As our server tells it; others do not."""
        response = await self._send("GET", "/get_model_info")
        size = response.json().get("vocab_size") if response.is_success else None
        return size if isinstance(size, int) else None

    async def flush(self) -> None:
        """Drop what is cached, once the last request is out of the server's hands."""
        if self.flushes_at is None:
            return
        for _ in range(_FLUSH_TRIES):
            response = await self._send("POST", self.flushes_at)
            if response.is_success:
                return
            await asyncio.sleep(0.1)
        raise PeerError(_said(response))

    async def ask(self, ask: Ask) -> Reply:
        body = {
            "model": self.model,
            "prompt": ask.prompt,
            "max_tokens": ask.out,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
            **self._fields,
        }
        reply = Reply(ask.prompt)
        moments: list[float] = []
        counts: list[int] = []
        sent = time.perf_counter()
        try:
            async with self._client.stream("POST", self._at("/v1/completions"), json=body) as got:
                if not got.is_success:
                    await got.aread()
                    raise PeerError(_said(got))
                async for line in got.aiter_lines():
                    if not line.startswith("data:") or line.endswith("[DONE]"):
                        continue
                    count = _take(reply, json.loads(line[5:]))
                    if count:
                        moments.append(time.perf_counter())
                        counts.append(count)
        except httpx.TimeoutException:
            seconds = time.perf_counter() - sent
            raise PeerError(f"{self.url}: no answer after {seconds:.0f} s (--timeout)") from None
        except httpx.HTTPError as error:
            raise PeerError(f"{self.url}: {type(error).__name__}: {error}") from None
        if reply.output_tokens != ask.out or not moments:
            raise PeerError(
                f"{self.url} says {reply.output_tokens} tokens instead of {ask.out}; does it know "
                "ignore_eos and stream_options.include_usage?"
            )
        reply.first = moments[0] - sent
        reply.gaps = gaps(moments, counts)
        return reply

    async def _json(self, method: str, path: str) -> Any:
        response = await self._send(method, path)
        if not response.is_success:
            raise PeerError(_said(response))
        return response.json()

    async def _send(self, method: str, path: str) -> httpx.Response:
        try:
            return await self._client.request(method, self._at(path))
        except httpx.HTTPError as error:
            raise PeerError(
                f"{self.url} does not answer ({type(error).__name__}: {error}); is it running?"
            ) from None

    def _at(self, path: str) -> str:
        """The base may end in /v1, or in /v3 as OpenVINO's server has it."""
        if self.url.endswith(("/v1", "/v3")):
            return self.url + path[3:] if path.startswith("/v1/") else self.url[:-3] + path
        return self.url + path


def _said(response: httpx.Response) -> str:
    return f"{response.request.url} said {response.status_code}: {response.text[:1_000].strip()}"


def _take(reply: Reply, event: dict[str, Any]) -> int:
    """Add an event of the stream; returns how many tokens it brought, as far as one can see."""
    if "error" in event:
        raise PeerError(f"error in the stream: {json.dumps(event['error'])[:1_000]}")
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.output_tokens = usage["completion_tokens"]
        reply.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    count = 0
    for choice in event.get("choices") or ():
        text, ids = choice.get("text") or "", choice.get("token_ids")
        reply.text += text
        if ids is not None:
            reply.token_ids = (reply.token_ids or []) + ids
        count += 1 if ids is None and text else len(ids or ())
    return count


def gaps(moments: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Seconds between tokens: those that came together share the time since the ones before."""
    found = [0.0] * (counts[0] - 1)
    for before, now, count in zip(moments, moments[1:], counts[1:], strict=False):
        found += [(now - before) / count] * count
    return found
