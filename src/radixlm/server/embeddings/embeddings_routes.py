"""OpenAI's embeddings, and vLLM's classes of texts.

Sources: https://platform.openai.com/docs/api-reference/embeddings;
https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import Pooled
from radixlm.server.bodies.protocol import to_prompts
from radixlm.server.embeddings.pooled_wire import PooledBody, PooledUsage, answering, writer_of
from radixlm.server.http.body import ListOf
from radixlm.server.http.routes import Route
from radixlm.server.pipeline.answer import respond
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.pooled import (
    Hidden,
    embedding_generation,
    pooled_generation,
    prompt_keys,
)
from radixlm.server.pipeline.service import Service, service_of, tenant_of


class InputsBody(PooledBody):
    """Inputs, each a prompt."""

    input: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]
    add_special_tokens: bool | None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        """One entry per prompt. Raises InvalidRequestError when there is none."""
        return to_prompts(self.input, "input")

    @property
    def special(self) -> bool:
        return self.add_special_tokens is not False


class EmbeddingsBody(InputsBody):
    """POST /v1/embeddings. prompt_name: of the model's own texts, what goes before each input."""

    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None


class EmbeddingItem(TypedDict):
    """embedding: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Embeddings(TypedDict):
    id: str
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: PooledUsage


class ClassifyBody(InputsBody):
    """POST /v1/classify. use_activation: false: scores as they are, no probabilities."""

    use_activation: bool | None = None


class ClassItem(TypedDict):
    """label: the name of the most likely one."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(TypedDict):
    id: str
    object: Literal["list"]
    created: int
    data: list[ClassItem]
    model: str
    usage: PooledUsage


def classify_generation(service: Service, body: ClassifyBody, tenant: str) -> Generation:
    """Tokenize; call it off the event loop. Raises InvalidRequestError that names the field."""
    service.check_model(body.model)
    scoring = service.engine.info.scoring
    scoring.check()
    if not scoring.labels:
        raise InvalidRequestError("this model has no classifier's head")
    keys = prompt_keys(service, body.inputs, param="input", special=body.special)
    return pooled_generation(
        *(service, body, keys, Pooled.SCORES, tenant), kind="classify", param="input"
    )


router = APIRouter(route_class=Route)
_SAID = {"input": "The capital of France is Paris."}


@answering(router, "/v1/embeddings", Embeddings, _SAID)
async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """OpenAI's embeddings: of each input the state that the model's files have pooled."""
    service = service_of(request)
    service.check_model(body.model)
    generation = await asyncio.to_thread(
        embedding_generation,
        *(service, body, body.inputs, tenant_of(request)),
        param="input",
        dimensions=body.dimensions,
        prompt_name=body.prompt_name,
        special=body.special,
    )
    pooling = service.engine.info.pooling

    def embedded(hidden: Hidden) -> list[float] | str:
        made = pooling.embedding(hidden, body.dimensions)
        if body.encoding_format == "base64":
            return base64.b64encode(made.astype("<f4").tobytes()).decode()
        numbers: list[float] = made.tolist()
        return numbers

    def answer(made: Sequence[Hidden]) -> Mapping[str, Any]:
        data: list[EmbeddingItem] = [
            {"object": "embedding", "index": index, "embedding": embedded(each)}
            for index, each in enumerate(made)
        ]
        return {"object": "list", "data": data}

    writer = writer_of(service, generation, body, answer)
    return await respond(request, generation, writer, stream=False)


@answering(router, "/v1/classify", Classes, _SAID)
@answering(router, "/classify", Classes, _SAID)
async def classify(request: Request, body: ClassifyBody) -> Response:
    """vLLM's classes: of each input how likely the labels of the model's head are."""
    service = service_of(request)
    generation = await asyncio.to_thread(classify_generation, service, body, tenant_of(request))
    scoring = service.engine.info.scoring
    plain = body.use_activation is False

    def answer(made: Sequence[Hidden]) -> Mapping[str, Any]:
        data: list[ClassItem] = []
        for index, each in enumerate(made):
            probs: list[float] = scoring.probabilities(each, plain=plain).tolist()
            label = scoring.labels[probs.index(max(probs))]
            data.append({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})
        return {"object": "list", "created": int(time.time()), "data": data}

    writer = writer_of(service, generation, body, answer)
    return await respond(request, generation, writer, stream=False)
