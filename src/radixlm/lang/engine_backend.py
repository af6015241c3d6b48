"""Programs on an engine in this process: their states are token ids."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from radixlm.core.errors import EngineDeadError
from radixlm.core.grammar import Grammar
from radixlm.core.keys import Key
from radixlm.core.request import FinishReason, RequestOutput, TokenLogprob
from radixlm.core.sampling import SamplingParams
from radixlm.lang.backend import Piece, Scores, Session
from radixlm.lang.choices import Token, Tokens
from radixlm.lang.interpreter import side_by_side
from radixlm.lang.meta import AnswerMeta
from radixlm.lang.params import Params
from radixlm.lang.roles import HabitRoles, Roles, TemplateRoles
from radixlm.lang.tokens import TokenTranscript
from radixlm.lang.transcript import Transcript
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer


@runtime_checkable
class AnyEngine(Protocol):
    """What radixlm.Engine and radixlm.AsyncEngine have in common."""

    info: Any
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def stream(
        self, prompt: Key, params: SamplingParams, /
    ) -> AsyncGenerator[RequestOutput, None]: ...

    def flush_cache(self) -> int | Awaitable[bool]: ...


class EngineBackend:
    """Runs programs on an Engine or an AsyncEngine, which stays its owner's to close."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._roles = roles_of(engine)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        yield EngineSession(self._engine, self._roles)

    def flush_cache(self) -> bool:
        """Not from a coroutine on an AsyncEngine: await the engine's own there."""
        dropped = self._engine.flush_cache()
        return True if isinstance(dropped, int) else asyncio.run(_awaited(dropped))


async def _awaited(dropped: Awaitable[bool]) -> bool:
    return await dropped


def roles_of(engine: AnyEngine) -> Roles:
    if engine.chat_template is None:
        return HabitRoles.of_model(engine.info.name)
    tokenizer = engine.tokenizer
    given = tokenizer.decode(tokenizer.encode(""), skip_special_tokens=False)
    return TemplateRoles(engine.chat_template, given)


class EngineSession:
    """See Session."""

    shares_in_flight = True
    answers_turns = False
    calls_cost = False

    def __init__(self, engine: AnyEngine, roles: Roles) -> None:
        self._engine = engine
        self._roles = roles

    def begin(self) -> TokenTranscript:
        return TokenTranscript(self._roles, self._engine.tokenizer)

    async def answer(
        self, said: Transcript, params: Params, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        key = _key(said)
        prompt_only = params.max_new_tokens == 0
        if prompt_only:
            params = _of_prompt(params)
        meta = AnswerMeta(self._engine.tokenizer, params, key)
        async for output in self._outputs(key, sampling_of(params), stream=stream):
            if prompt_only:
                output = output.without_answer()
            tokens = output.token_ids
            if isinstance(output.matched_stop, int):
                tokens = tokens[:-1]
            cut = isinstance(output.matched_stop, str)
            yield Piece(output.text, tokens, meta.after(output), cut)

    async def compute(self, said: Transcript) -> None:
        async for _ in self._outputs(_key(said), SamplingParams(max_tokens=1, temperature=0.0)):
            pass

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        base = _key(said)
        keys = [_with(said, choice) for choice in choices]
        starts = [_shared(base, key) for key in keys]
        tokens = await side_by_side(
            [self._score(key, start) for key, start in zip(keys, starts, strict=True)]
        )
        if not alone:
            return Scores(tokens, None)
        ends = [key[start:] for key, start in zip(keys, starts, strict=True)]
        return Scores(tokens, await side_by_side([self._score(end, 0) for end in ends]))

    async def _score(self, key: Key, start: int) -> Tokens:
        """Log-probabilities of the tokens from `start` on; of a first one there is none."""
        scored: list[Token] = [] if start else [self._token(int(key[0]), None)]
        if key.size > max(start, 1):
            params = SamplingParams(
                max_tokens=1, temperature=0.0, prompt_logprobs=0, logprob_start_len=max(start, 1)
            )
            async for output in self._outputs(key, params):
                scored += [self._token(*_pair(entry)) for entry in output.prompt_logprobs]
        return scored

    def _token(self, token: int, logprob: float | None) -> Token:
        return logprob, token, self._engine.tokenizer.token_text(token)

    async def _outputs(
        self, key: Key, params: SamplingParams, *, stream: bool = False
    ) -> AsyncGenerator[RequestOutput, None]:
        """As they come if `stream`, else one: what is done for each then costs once an answer."""
        async with aclosing(self._engine.stream(key, params)) as outputs:
            async for output in outputs if stream else _joined(outputs):
                if output.finish_reason is FinishReason.ABORT:
                    raise EngineDeadError("the request was aborted")
                yield output


def _of_prompt(params: Params) -> Params:
    """For no answer: as on the server, a token is sampled all the same, and log-probabilities are
    the prompt's.
    """
    start = params.logprob_start_len
    return replace(params, max_new_tokens=1, logprob_start_len=0 if start is None else start)


async def _joined(
    outputs: AsyncIterator[RequestOutput],
) -> AsyncGenerator[RequestOutput, None]:
    yield RequestOutput.joined([output async for output in outputs])


def sampling_of(params: Params) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequestError that names the field."""
    grammar = None
    if params.regex is not None:
        grammar = Grammar.regex(params.regex, param="regex")
    elif params.json_schema is not None:
        grammar = Grammar.json_schema(params.json_schema, param="json_schema")
    named = {
        "max_tokens": params.max_new_tokens,
        "min_tokens": params.min_new_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "ignore_eos": params.ignore_eos,
        "stop": params.stop,
        "stop_token_ids": params.stop_token_ids,
    }
    if params.return_logprob:
        top, start = params.top_logprobs_num or 0, params.logprob_start_len
        named["logprobs"] = top
        if start is not None and start >= 0:
            named |= {"prompt_logprobs": top, "logprob_start_len": start}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    return SamplingParams(grammar=grammar, **given)


def _key(said: Transcript) -> Key:
    return cast(TokenTranscript, said).key()  # a session goes on from what it began itself


def _with(said: Transcript, text: str) -> Key:
    branch = said.copy()
    branch.write(text)
    return _key(branch)


def _shared(one: Key, other: Key) -> int:
    size = min(one.size, other.size)
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if different.size else size


def _pair(entry: TokenLogprob) -> tuple[int, float]:
    return entry.token, entry.logprob
