"""What callers may give as prompts, put into order."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from radixlm.core.errors import ConfigError, InvalidKeyError, InvalidRequestError, counted
from radixlm.core.grammar import Constraint
from radixlm.core.keys import Key, KeyLike, as_key
from radixlm.core.request import Breakpoint, Namespace, Request
from radixlm.core.sampling import SamplingParams
from radixlm.scheduler import Limits

Prompt = str | KeyLike
Prompts = Prompt | Sequence[Prompt]


def as_list(prompts: Prompts) -> list[Prompt]:
    """One prompt becomes a list of one; a list of ints is one prompt."""
    if isinstance(prompts, str | np.ndarray):
        return [prompts]
    ids = [item for item in prompts if isinstance(item, int | np.integer)]
    if ids and len(ids) == len(prompts):
        return [[int(item) for item in ids]]
    return [_as_prompt(item) for item in prompts]


def _as_prompt(item: Prompt | int) -> Prompt:
    if isinstance(item, int | np.integer):
        raise InvalidRequestError(
            "a list of prompts holds text or lists of token ids, not both ids and prompts",
            param="prompt",
        )
    return item


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


@dataclass(frozen=True, slots=True)
class Intake:
    """Resolves what a request left open: its length, its seed, what ends it."""

    limits: Limits
    eos_token_ids: frozenset[int]

    def make(
        self,
        prompt: KeyLike,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: Namespace | None = None,
        priority: int = 0,
        tenant: str = "",
        breakpoints: Sequence[Breakpoint] = (),
        constraint: Constraint | None = None,
    ) -> Request:
        """constraint: the parameters' grammar, compiled.

        Raises InvalidRequestError that names the field; RequestTooLargeError with numbers.
        """
        key = prompt_key(prompt)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise InvalidRequestError(
                f"priority must be an integer, got {priority!r}", param="priority"
            )
        if not isinstance(tenant, str):
            raise InvalidRequestError(f"tenant must be text, got {tenant!r:.80}", param="tenant")
        if namespace is not None and not isinstance(namespace, Namespace):
            raise InvalidRequestError(
                f"namespace must be a Namespace, got {namespace!r:.80}", param="namespace"
            )
        if params.logprob_start_len > key.size:
            raise InvalidRequestError(
                f"logprob_start_len is {params.logprob_start_len}, "
                f"the prompt has {counted(key.size, 'token')}",
                param="logprob_start_len",
            )
        _check_breakpoints(breakpoints, key)
        ends = params.stop_token_ids
        # Where a grammar lets the answer end there may be nothing else that it allows.
        if not params.ignore_eos or constraint is not None:
            ends |= self.eos_token_ids
        if params.min_tokens and len(ends) >= self.limits.vocab_size:
            raise InvalidRequestError(
                f"min_tokens is {params.min_tokens}, but every one of the model's "
                f"{self.limits.vocab_size} tokens is a stop token",
                param="stop_token_ids",
            )
        return Request(
            request_id=request_id or new_request_id(),
            key=key,
            params=params,
            max_tokens=self.limits.resolve_max_tokens(key, params),
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            stop_token_ids=ends,
            namespace=namespace or Namespace(),
            priority=priority,
            tenant=tenant,
            breakpoints=tuple(breakpoints),
            constraint=constraint,
        )


def new_request_id() -> str:
    """An id for a request that its caller gave none."""
    return f"req-{secrets.token_hex(12)}"


def _check_breakpoints(breakpoints: Sequence[Breakpoint], key: Key) -> None:
    for end in breakpoints:
        if not 0 < end.tokens <= key.size or not 0 < end.ttl < inf:
            raise InvalidRequestError(
                f"a breakpoint is behind 1 to {key.size} tokens, for more than 0 seconds, got "
                f"{end!r}",
                param="breakpoints",
            )
