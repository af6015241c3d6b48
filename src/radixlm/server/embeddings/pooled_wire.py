"""Fields and forms that embeddings, scores, ranks and classes share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, Depends
from typing_extensions import TypedDict

from radixlm.server.bodies.protocol import CacheParams
from radixlm.server.http.fields import REQUEST_NO_OPS
from radixlm.server.http.routes import GENERATING, noted
from radixlm.server.insight.usage import PromptTokensDetails, UsageMeter
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.pooled import Hidden, PooledWriter
from radixlm.server.pipeline.service import Service, check_room

_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])


def answering(
    router: APIRouter, path: str, model: type, example: Mapping[str, Any]
) -> Callable[[_Endpoint], _Endpoint]:
    """Decorate what answers at a path, with `model`."""
    return router.post(
        path,
        response_model=model,
        dependencies=[Depends(check_room)],
        responses=noted(*GENERATING, example=example),
    )


class PooledBody(CacheParams):
    """Fields that all of them share."""

    no_ops = REQUEST_NO_OPS
    answered = False

    model: str | None = None


class PooledUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def writer_of(
    service: Service,
    generation: Generation,
    body: PooledBody,
    answer: Callable[[Sequence[Hidden]], Mapping[str, Any]],
) -> PooledWriter:
    """Write an answer with the request's id, the model and usage. answer: the rest of it."""

    def whole(made: Sequence[Hidden], meter: UsageMeter) -> Mapping[str, Any]:
        usage = meter.as_json()
        shown: PooledUsage = {
            "prompt_tokens": usage["prompt_tokens"],
            "total_tokens": usage["prompt_tokens"],
            "prompt_tokens_details": usage["prompt_tokens_details"],
        }
        model = body.model or service.model_name
        return {"id": generation.request_id, "model": model, **answer(made), "usage": shown}

    return PooledWriter(service, generation, whole)
