"""Requests that the engine's thread can take and that can ever fit, made of what callers give."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any, TypedDict, Unpack

import numpy as np

from radixlm.core.errors import (
    ConfigError,
    EngineStoppedError,
    InvalidKeyError,
    InvalidRequestError,
    counted,
)
from radixlm.core.keys import Key, KeyLike, as_key
from radixlm.core.request import Breakpoint, GenerateRequest, Hint, Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.engine.limits import Limits
from radixlm.structured_output import Compiled, Compiler

Prompt = str | KeyLike
Prompts = Prompt | Sequence[Prompt]


def as_list(prompts: Prompts) -> list[Prompt]:
    """One prompt becomes a list of one; a list of ints is one prompt."""
    if isinstance(prompts, str | np.ndarray):
        return [prompts]
    ids = [int(item) for item in prompts if isinstance(item, int | np.integer)]
    if ids and len(ids) < len(prompts):
        raise InvalidRequestError(
            "a list of prompts holds text or lists of token ids, not both ids and prompts",
            param="prompt",
        )
    return [ids] if ids else [item for item in prompts if not isinstance(item, int | np.integer)]


def params_for(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One for each prompt: the one given for all, or the list. Raises ConfigError."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if isinstance(params, Mapping):
        raise ConfigError(
            "sampling parameters are a SamplingParams, not a dict: SamplingParams(**params)"
        )
    if len(params) != count:
        raise ConfigError(
            f"{counted(count, 'prompt')} but {counted(len(params), 'sampling parameter')}"
        )
    return list(params)


def prompt_key(prompt: KeyLike) -> Key:
    """A prompt's ids as a key. Raises InvalidRequestError: it is the caller's input."""
    if len(prompt) == 0:
        raise InvalidRequestError("the prompt is empty; give at least one token", param="prompt")
    try:
        return as_key(prompt)
    except InvalidKeyError as error:
        raise InvalidRequestError(f"prompt: {error}", param="prompt") from None


class InputProcessor:
    """Makes requests ready for the engine's thread: checks them, resolves what they left open,
    compiles their grammars. `compiled` and `abort` are for the event loop's thread.
    """

    def __init__(self, limits: Limits, eos_token_ids: frozenset[int], grammars: Compiler) -> None:
        self.limits = limits
        self._eos_token_ids = eos_token_ids
        self._grammars = grammars
        # Requests of batches that wait for grammars; abort takes them out.
        self._compiling: dict[GenerateRequest, asyncio.Future[Compiled] | None] = {}

    def resolve(self, request: GenerateRequest) -> GenerateRequest:
        """The same with length, seed and stops. Raises InvalidRequestError that names the field."""
        _check_types(request)
        _check_breakpoints(request)
        key, params = request.key, request.params
        if params.logprob_start_len > key.size:
            raise InvalidRequestError(
                f"logprob_start_len is {params.logprob_start_len}, "
                f"the prompt has {counted(key.size, 'token')}",
                param="logprob_start_len",
            )
        ends = params.stop_token_ids
        # Where a grammar lets the answer end there may be nothing else that it allows.
        if not params.ignore_eos or params.grammar is not None:
            ends |= self._eos_token_ids
        if params.min_tokens and len(ends) >= self.limits.vocab_size:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but every one of the model's "
                f"{self.limits.vocab_size} tokens is a stop token",
                param="stop_token_ids",
            )
        return replace(
            request,
            max_tokens=self.limits.resolve_max_tokens(key, params),
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            stop_token_ids=ends,
            namespace=request.namespace.of_length(key.size, self.limits.short_length),
        )

    def ready(self, request: GenerateRequest) -> GenerateRequest:
        """Resolve a request and wait for its grammar. Blocks. Raises as `resolve`, `Compiler`."""
        request, grammar = self.resolve(request), request.params.grammar
        if grammar is None:
            return request
        return replace(request, constraint=self._grammars.submit(grammar, request.tenant).result())

    async def compiled(self, requests: Sequence[GenerateRequest]) -> list[GenerateRequest | None]:
        """The same with their grammars compiled, all at once; None for one that was aborted
        meanwhile. Raises what Compiler.submit raises.
        """
        batch: dict[GenerateRequest, asyncio.Future[Compiled] | None] = dict.fromkeys(requests)
        try:
            for request in batch:
                if (grammar := request.params.grammar) is not None:
                    submitted = self._grammars.submit(grammar, request.tenant)
                    batch[request] = asyncio.wrap_future(submitted)
            futures = [future for future in batch.values() if future is not None]
            if futures:
                self._compiling |= batch
                await asyncio.wait(futures)
            aborted = batch.keys() - self._compiling.keys() if futures else set()
        finally:
            for request, future in batch.items():
                self._compiling.pop(request, None)
                _give_up(future)
        return [
            None if request in aborted else _constrained(request, batch[request])
            for request in requests
        ]

    def abort(self, request_ids: Collection[str] | None) -> int:
        """Give up these requests that wait for grammars, with None all; returns how many."""
        found = [
            request
            for request in self._compiling
            if request_ids is None or request.request_id in request_ids
        ]
        for request in found:
            _give_up(self._compiling.pop(request))
        return len(found)

    def close(self) -> None:
        """End the compiler; requests that wait for it end with an error."""
        self._grammars.close()


def _give_up(grammar: asyncio.Future[Compiled] | None) -> None:
    """Nobody waits for it any more; one that is done stays as it is."""
    if grammar is not None:
        grammar.cancel()


def _constrained(
    request: GenerateRequest, grammar: asyncio.Future[Compiled] | None
) -> GenerateRequest:
    """The request with its grammar. Raises what compiling raised, EngineStoppedError."""
    if grammar is None:
        return request
    if grammar.cancelled():
        raise EngineStoppedError("the engine was shut down while a grammar waited to be compiled")
    return replace(request, constraint=grammar.result())


class RequestFields(TypedDict, total=False):
    """The fields that callers of the Python interface may give a request: see GenerateRequest.

    request_id: for `abort`; a fresh one, unless it is given. breakpoints: kept within
    --max-pinned-tokens; the output with the first token says which ones are. lora_path: the name of
    an adapter that is loaded; None: the model alone.
    """

    request_id: str | None
    lora_path: str | None
    namespace: Namespace | None
    priority: int
    tenant: str
    breakpoints: Sequence[Breakpoint]
    hint: Hint


def new_request(
    key: Key, params: SamplingParams, **fields: Unpack[RequestFields]
) -> GenerateRequest:
    """A request from the Python interface, unchecked. Raises TypeError for other fields."""
    if unknown := fields.keys() - RequestFields.__annotations__.keys():
        raise TypeError(f"a request has no field {', '.join(map(repr, sorted(unknown)))}")
    given: dict[str, Any] = {"namespace": Namespace(), **fields}
    if given["namespace"] is None:
        given["namespace"] = Namespace()
    name = given.pop("request_id", None) or f"req-{secrets.token_hex(12)}"
    given["breakpoints"] = tuple(given.get("breakpoints", ()))
    return GenerateRequest(name, key, params, **given)


def _check_types(request: GenerateRequest) -> None:
    """Callers of the Python interface need not check types."""
    for name, kind, called in (
        ("priority", int, "an integer"),
        ("tenant", str, "text"),
        ("namespace", Namespace, "a Namespace"),
        ("hint", Hint, "a Hint"),
    ):
        value = getattr(request, name)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InvalidRequestError(f"{name} must be {called}, got {value!r:.80}", param=name)


def _check_breakpoints(request: GenerateRequest) -> None:
    for end in request.breakpoints:
        if not 0 < end.tokens <= request.key.size or not 0 < end.ttl < inf:
            raise InvalidRequestError(
                f"a breakpoint comes after 1 to {request.key.size} tokens, for more than 0 "
                f"seconds, got {end!r}",
                param="breakpoints",
            )
