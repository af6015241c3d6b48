"""What chat's and text's completions have in common: head, usage, reports, the stream's end."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import TypedDict

from radixlm.core.request import RequestOutput
from radixlm.server.http.sse import DONE, compact, event, framed, spliced
from radixlm.server.pipeline.generation import Generation, reported
from radixlm.server.pipeline.protocol import GenerationBody
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.usage import CacheFields, UsageMeter

Fields = Mapping[str, Any]


class Head(TypedDict):
    """created: in seconds since 1970. system_fingerprint: of what computes the answers."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Tier(TypedDict, total=False):
    """It is there where the request names one."""

    service_tier: Literal["default"]


class TokenIds(TypedDict, total=False):
    """They are there with return_token_ids."""

    token_ids: list[int]


class PromptIds(TypedDict, total=False):
    """They are there with return_token_ids; in a stream, with a choice's first tokens."""

    prompt_token_ids: list[int]


class OpenAIWriter(ABC):
    """A Writer. whole_kind, chunk_kind: `object` of an answer and of a stream's chunk."""

    whole_kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, service: Service, generation: Generation, body: GenerationBody) -> None:
        self.meter = UsageMeter(generation.n, caches=service.caches)
        self._service = service
        self._generation = generation
        self._usage = body.usage_options
        self._with_details = bool(body.return_cached_tokens_details)
        self._created = int(time.time())
        self._beside: CacheFields = {}

    @property
    def reasoning_tokens(self) -> int:
        """How many of the tokens that were pushed are thoughts."""
        return 0

    @abstractmethod
    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        """As Writer.push."""

    @abstractmethod
    def answer(self) -> Fields:
        """`choices` of the whole answer, and what else the API gives. A choice is a mapping, or
        JSON already.
        """

    async def finish(self) -> list[bytes]:
        generation = self._generation
        if len(generation.requests) > 1:  # in a thread: each prompt's report takes a while
            report = await asyncio.to_thread(reported, self._service, generation, self.meter.misses)
        else:
            report = reported(self._service, generation, self.meter.misses)
        if "cache_report" in report:
            self._beside["cache_report"] = report["cache_report"]
        if self._with_details:
            device = self.meter.cached_tokens
            self._beside["sglext"] = {"cached_tokens_details": {"device": device, "host": 0}}
        last = {**self._head(self.chunk_kind), "choices": [], **self._beside}
        if self._usage.include_usage:
            last["usage"] = self.meter.as_json(self.reasoning_tokens)
        return [event(last), DONE] if self._usage.include_usage or self._beside else [DONE]

    def whole(self) -> bytes:
        usage = self.meter.as_json(self.reasoning_tokens)
        return _in_pieces(
            {**self._head(self.whole_kind), **self.answer(), "usage": usage, **self._beside}
        )

    def event(self, fields: Fields) -> bytes:
        """A chunk with these fields, and the usage so far where that is asked for."""
        chunk = {**self._head(self.chunk_kind), **fields}
        if self._usage.include_usage:
            so_far = self._usage.continuous_usage_stats
            chunk["usage"] = self.meter.as_json(self.reasoning_tokens) if so_far else None
        return framed(_in_pieces(chunk))

    def _head(self, kind: str) -> Head:
        return {
            "id": self._generation.request_id,
            "object": kind,
            "created": self._created,
            "model": self._service.model_name,
            "system_fingerprint": self._service.fingerprint,
        }


def _in_pieces(fields: Fields) -> bytes:
    """JSON, choice by choice: making it keeps the interpreter to itself."""
    written = (each if isinstance(each, bytes) else compact(each) for each in fields["choices"])
    rest = {name: value for name, value in fields.items() if name != "choices"}
    return spliced(rest, {"choices": b"[" + b",".join(written) + b"]"})
