"""OpenAI's embeddings.

Source: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.request import RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.server.bodies.protocol import CacheParams, to_prompts
from radixlm.server.http.body import ListOf, in_callers_words
from radixlm.server.http.fields import REQUEST_NO_OPS
from radixlm.server.http.http_errors import GenerationFailedError
from radixlm.server.http.routes import GENERATING, Route, noted
from radixlm.server.insight.usage import PromptTokensDetails, UsageMeter
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.service import Service, check_room, service_of, tenant_of

_NOTHING = SamplingParams(max_tokens=1, temperature=0.0)
_NAMES = {"prompt": "input", "max_tokens": "input"}


class EmbeddingsBody(CacheParams):
    """POST /v1/embeddings. prompt_name: of the model's own texts, what goes before each input."""

    no_ops = REQUEST_NO_OPS
    answered = False

    input: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]
    model: str | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    add_special_tokens: bool | None = None
    prompt_name: str | None = None


class EmbeddingItem(TypedDict):
    """embedding: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Embeddings(TypedDict):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


def embedding_generation(service: Service, body: EmbeddingsBody, tenant: str) -> Generation:
    """Tokenize; call it off the event loop. Raises InvalidRequestError that names the field."""
    service.check_model(body.model)
    info = service.engine.info
    info.pooling.check()
    info.pooling.check_dimensions(body.dimensions, info.hidden_size)
    before = info.pooling.prompt(body.prompt_name)
    special = body.add_special_tokens is not False
    keys = [
        service.key(
            before + each if isinstance(each, str) else each,
            add_special_tokens=special,
            param="input",
        )
        for each in to_prompts(body.input, "input")
    ]
    with in_callers_words(_NAMES):
        generation = Generation.of(
            *(service, f"embd-{uuid.uuid4().hex}", keys, [_NOTHING] * len(keys), body, tenant),
            prompt_only=[True] * len(keys),
            names=_NAMES,
        )
    pooled = [replace(request, pooled=True) for request in generation.requests]
    return replace(generation, requests=pooled)


class EmbeddingsWriter:
    """Writes the answer, see `Writer`."""

    def __init__(self, service: Service, generation: Generation, body: EmbeddingsBody) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self._service, self._body = service, body
        self._made: list[list[float] | str] = [""] * len(generation.requests)

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        """Take an input's embedding. Raises GenerationFailedError where there is none."""
        if output.hidden is None:
            if output.finished:
                raise GenerationFailedError("an input ended before it was embedded")
            return ()
        pooling = self._service.engine.info.pooling
        made = pooling.embedding(output.hidden, self._body.dimensions)
        if self._body.encoding_format == "base64":
            self._made[choice] = base64.b64encode(made.astype("<f4").tobytes()).decode()
        else:
            self._made[choice] = made.tolist()
        return ()

    async def finish(self) -> Iterable[bytes]:
        """Return no events: nothing waits for the end."""
        return ()

    def whole(self) -> bytes:
        usage = self.meter.as_json()
        items: list[EmbeddingItem] = [
            {"object": "embedding", "index": index, "embedding": each}
            for index, each in enumerate(self._made)
        ]
        answer: Embeddings = {
            "object": "list",
            "data": items,
            "model": self._body.model or self._service.model_name,
            "usage": {
                "prompt_tokens": usage["prompt_tokens"],
                "total_tokens": usage["prompt_tokens"],
                "prompt_tokens_details": usage["prompt_tokens_details"],
            },
        }
        return json.dumps(answer).encode()


router = APIRouter(route_class=Route)
_NOTED = noted(*GENERATING, example={"input": "The capital of France is Paris."})


@router.post(
    "/v1/embeddings",
    response_model=Embeddings,
    dependencies=[Depends(check_room)],
    responses=_NOTED,
)
async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """OpenAI's embeddings: of each input the last token's state, as the model's files pool it."""
    service = service_of(request)
    generation = await asyncio.to_thread(embedding_generation, service, body, tenant_of(request))
    writer = EmbeddingsWriter(service, generation, body)
    return await respond(request, generation, writer, stream=False)
