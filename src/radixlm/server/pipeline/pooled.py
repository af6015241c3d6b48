"""Answers that are made of what a model pools of prompts: states, or scores."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlm.core.errors import wrong
from radixlm.core.keys import Key
from radixlm.core.request import Pooled, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.server.bodies.protocol import MAX_CHOICES, CacheParams
from radixlm.server.http.body import in_callers_words
from radixlm.server.http.http_errors import GenerationFailedError
from radixlm.server.insight.usage import UsageMeter
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.service import Service

Hidden = npt.NDArray[np.float32]

_NOTHING = SamplingParams(max_tokens=1, temperature=0.0)


def pooled_generation(
    service: Service,
    body: CacheParams,
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


def prompt_keys(
    service: Service,
    inputs: Sequence[str | list[int]],
    before: str = "",
    *,
    param: str,
    special: bool = True,
) -> list[Key]:
    """Tokenize inputs, each a prompt. before: what goes before each text. special: whether texts
    begin and end as the tokenizer has it. Raises InvalidRequestError that names `param`.
    """
    if len(inputs) > MAX_CHOICES:
        raise wrong(param, f"holds {len(inputs)} prompts, at most {MAX_CHOICES} are allowed")
    return [
        service.key(
            before + each if isinstance(each, str) else each,
            add_special_tokens=special,
            param=param,
        )
        for each in inputs
    ]


def embedding_generation(
    service: Service,
    body: CacheParams,
    inputs: Sequence[str | list[int]],
    tenant: str,
    *,
    param: str,
    dimensions: int | None,
    prompt_name: str | None = None,
    special: bool = True,
) -> Generation:
    """Tokenize inputs that are to be embedded; call it off the event loop. dimensions: asked for.
    prompt_name: of the model's own texts, what goes before each input. Raises InvalidRequestError
    that names the field.
    """
    info = service.engine.info
    info.pooling.check()
    info.pooling.check_dimensions(dimensions, info.hidden_size)
    before = info.pooling.prompt(prompt_name)
    keys = prompt_keys(service, inputs, before, param=param, special=special)
    return pooled_generation(
        service, body, keys, info.pooling.pooled, tenant, kind="embd", param=param
    )


class PooledWriter:
    """Writes the answer, see `Writer`. answer: made of what came of each prompt, and the usage."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        answer: Callable[[Sequence[Hidden], UsageMeter], Mapping[str, Any]],
    ) -> None:
        self.meter = UsageMeter(1, caches=service.caches)
        self._answer = answer
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
        made = [each for each in self._made if each is not None]
        return json.dumps(self._answer(made, self.meter)).encode()
