"""Answers that are made of what a model pools of prompts: states, or scores."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, Depends
from typing_extensions import TypedDict

from radixlm.core.errors import wrong
from radixlm.core.keys import Key
from radixlm.core.request import Pooled, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.server.bodies.protocol import MAX_CHOICES, CacheParams
from radixlm.server.http.body import in_callers_words
from radixlm.server.http.fields import REQUEST_NO_OPS
from radixlm.server.http.http_errors import GenerationFailedError
from radixlm.server.http.routes import GENERATING, noted
from radixlm.server.insight.usage import PromptTokensDetails, UsageMeter
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.service import Service, check_room

Hidden = npt.NDArray[np.float32]

_NOTHING = SamplingParams(max_tokens=1, temperature=0.0)


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


def pooled_generation(
    service: Service,
    body: PooledBody,
    keys: Sequence[Key],
    pooled: Pooled,
    tenant: str,
    *,
    kind: str,
    param: str,
) -> Generation:
    """kind: with which the id begins. param: the field that most of a prompt is made of. Raises
    InvalidRequestError that names the field.
    """
    if len(keys) > MAX_CHOICES:
        raise wrong(param, f"makes {len(keys)} prompts, at most {MAX_CHOICES} are allowed")
    names = {"prompt": param, "max_tokens": param}
    with in_callers_words(names):
        return Generation.of(
            *(service, f"{kind}-{uuid.uuid4().hex}", keys, [_NOTHING] * len(keys), body, tenant),
            prompt_only=[True] * len(keys),
            names=names,
            pooled=pooled,
        )


class PooledWriter:
    """Writes the answer, see `Writer`. answer: made of what came of each prompt."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        body: PooledBody,
        answer: Callable[[Sequence[Hidden]], Mapping[str, Any]],
    ) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self._id, self._answer = generation.request_id, answer
        self._model = body.model or service.model_name
        self._made: list[Hidden | None] = [None] * len(generation.requests)

    def push(self, choice: int, output: RequestOutput) -> Iterable[bytes]:
        """Take what came of a prompt. Raises GenerationFailedError where nothing did."""
        if output.hidden is not None:
            self._made[choice] = output.hidden
        elif output.finished and self._made[choice] is None:
            raise GenerationFailedError("an input ended before it was computed")
        return ()

    async def finish(self) -> Iterable[bytes]:
        """Return no events: nothing waits for the end."""
        return ()

    def whole(self) -> bytes:
        usage = self.meter.as_json()
        shown: PooledUsage = {
            "prompt_tokens": usage["prompt_tokens"],
            "total_tokens": usage["prompt_tokens"],
            "prompt_tokens_details": usage["prompt_tokens_details"],
        }
        made = self._answer([each for each in self._made if each is not None])
        return json.dumps({"id": self._id, "model": self._model, **made, "usage": shown}).encode()
