"""Programs on OpenAI's API, or on a server with the same API, through the `openai` package."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import repeat
from types import ModuleType
from typing import Any

from radixlm.core.errors import BackendError, ConfigError, InvalidRequestError
from radixlm.lang.backend import Pieces, Scores, Session, scores_of_texts
from radixlm.lang.choices import Tokens
from radixlm.lang.ir import Params
from radixlm.lang.transcript import Answer, Roles, Transcript, habit_of

_TEXT_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
# Models that refuse `max_tokens`, OpenAI's older name for it.
_COUNTS_THOUGHTS = re.compile(r"(o\d|gpt-5)")
_NAMES = ("temperature", "top_p", "frequency_penalty", "presence_penalty")
# What OpenAI's own API lacks, and other servers have.
_EXTRA = ("min_new_tokens", "stop_token_ids", "top_k", "min_p", "ignore_eos", "regex")


class OpenAI:
    """A model that a server offers by OpenAI's API.

    is_chat_model: whether it answers messages, or goes on from a text; the default knows OpenAI's
        models by name, and takes others for chat models. options: as `openai.OpenAI` takes them.

    A chat model answers whole turns: `gen` stands right after `assistant`, or the program has
    num_api_spec_tokens. `select` needs a text model, and a server that echoes log-probabilities.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        is_chat_model: bool | None = None,
        chat_template_name: str | None = None,
        **options: Any,
    ) -> None:
        try:
            self._openai = importlib.import_module("openai")
        except ImportError:
            raise ConfigError("the OpenAI backend needs `pip install openai`") from None
        self.model_name = model_name
        known = model_name not in _TEXT_MODELS
        self.is_chat_model = known if is_chat_model is None else is_chat_model
        self._options = {"base_url": base_url, "api_key": api_key, **options}
        self._roles = habit_of(model_name, chat_template_name)

    def flush_cache(self) -> bool:
        """The API has no such thing."""
        return False

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with self._openai.AsyncOpenAI(**self._options) as client:
            kind = ChatSession if self.is_chat_model else TextSession
            yield kind(client, self._openai, self.model_name, self._roles)


class _OpenAISession:
    """A session of either kind. See Session."""

    shares_in_flight = True  # or not: nothing that could be asked for would change it
    calls_cost = True

    def __init__(self, client: Any, openai: ModuleType, model: str, roles: Roles) -> None:
        self._client = client
        self._openai = openai
        self._model = model
        self._roles = roles

    def begin(self) -> Transcript:
        return Transcript(self._roles)

    async def compute(self, said: Transcript) -> None:
        """There is no way to have it computed and nothing more."""

    def _arguments(self, params: Params, *, stream: bool) -> dict[str, Any]:
        given = params.given()
        limit = "max_completion_tokens" if _COUNTS_THOUGHTS.match(self._model) else "max_tokens"
        arguments = {name: given[name] for name in _NAMES if name in given}
        arguments |= {"model": self._model, limit: params.max_new_tokens, "stream": stream}
        if params.stop:
            arguments["stop"] = list(params.stop)
        if params.json_schema is not None:
            schema = {"name": "answer", "schema": json.loads(params.json_schema), "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        extra = {name.replace("_new", ""): given[name] for name in _EXTRA if name in given}
        return {**arguments, "extra_body": extra}

    @contextmanager
    def _connected(self) -> Iterator[None]:
        openai = self._openai
        try:
            yield
        except openai.APIStatusError as error:
            if error.status_code < 500:
                raise InvalidRequestError(error.message) from error
            raise BackendError(f"the API failed with {error.status_code}: {error}") from error
        except Exception as error:
            # In the middle of a stream the package lets its HTTP client's errors through.
            of_client = type(error).__module__.startswith("httpx")
            if of_client or isinstance(error, openai.APIError):
                raise BackendError(f"the connection to the API is broken: {error!r}") from error
            raise

    async def _pieces(self, create: Any, arguments: dict[str, Any]) -> Pieces:
        with self._connected():
            response = await create(**arguments)
            if not arguments["stream"]:
                yield _piece(response)
                return
            async with response:
                async for chunk in response:
                    if chunk.choices:
                        yield _piece(chunk)


class ChatSession(_OpenAISession):
    answers_turns = True

    async def answer(self, said: Transcript, params: Params, *, stream: bool) -> Pieces:
        if said.role != "assistant" or said.open_message:
            raise InvalidRequestError(
                "a chat model of OpenAI's API answers whole turns: put gen right after the "
                "beginning of an assistant's message, or use @function(num_api_spec_tokens=...)"
            )
        arguments = self._arguments(params, stream=stream) | {"messages": said.messages}
        async for piece in self._pieces(self._client.chat.completions.create, arguments):
            yield piece

    async def score(self, *_: Any, **__: Any) -> Scores:
        raise InvalidRequestError(
            "select needs log-probabilities of a text, which chat models of OpenAI's API do not "
            "give; use is_chat_model=False where the server has /v1/completions"
        )


class TextSession(_OpenAISession):
    answers_turns = False

    async def answer(self, said: Transcript, params: Params, *, stream: bool) -> Pieces:
        arguments = self._arguments(params, stream=stream) | {"prompt": said.text}
        if "response_format" in arguments:  # is for chats; servers know the schema by SGLang's name
            del arguments["response_format"]
            arguments["extra_body"]["json_schema"] = params.json_schema
        async for piece in self._pieces(self._client.completions.create, arguments):
            yield piece

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        tokens = await scores_of_texts(said.text, choices, self._echoed)
        if not alone:
            return Scores(tokens, None)
        ends = ["".join(token[2] for token in entries) for entries in tokens]
        scored = await self._echoed(ends)
        if [*map(len, scored)] != [*map(len, tokens)]:
            raise InvalidRequestError(
                f"on their own these choices are other tokens than after the prompt: {ends!r:.200}"
            )
        return Scores(tokens, scored)

    async def _echoed(self, texts: Sequence[str]) -> list[Tokens]:
        """Each text's tokens, without ids, which this API does not give."""
        with self._connected():
            response = await self._client.completions.create(
                model=self._model, prompt=list(texts), max_tokens=0, echo=True, logprobs=0
            )
        lists = [choice.logprobs for choice in response.choices]
        return [[*zip(own.token_logprobs, repeat(None), own.tokens)] for own in lists]


def _piece(response: Any) -> Answer:
    choice = response.choices[0]
    said = getattr(choice, "delta", None) or getattr(choice, "message", None)
    text = choice.text if said is None else said.content
    meta: dict[str, Any] = {"id": response.id}
    if choice.finish_reason is not None:
        meta["finish_reason"] = {"type": choice.finish_reason}
    usage = getattr(response, "usage", None)
    if usage is not None:
        meta |= {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return Answer(text or "", meta)
