"""Programs on a server over HTTP: RadixLM's, or SGLang's own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx

from radixlm.core.errors import BackendError, InvalidRequestError, ModelError
from radixlm.lang.backend import Piece, Scores, Session
from radixlm.lang.choices import Tokens, behind
from radixlm.lang.params import Params
from radixlm.lang.roles import HabitRoles, Roles, TemplateRoles
from radixlm.lang.transcript import Transcript
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import special_token_text

DEFAULT_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 10.0
# A token that was tokenized otherwise than in the prompt alone is among so many of its last.
_HEALED = 4
_LOGPROBS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
_ELSEWHERE = {"n", "stop_regex", *_LOGPROBS}


class RuntimeEndpoint:
    """A server's `/generate`.

    base_url: such as "http://127.0.0.1:30000". verify: a certificate's file, for https.
    chat_template_name: how messages are written, where the server does not tell its template.
    timeout: seconds without a word from the server that are too many.

    Raises BackendError when there is no such server, ValueError.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: str | None = None,
        chat_template_name: str | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": {"authorization": f"Bearer {api_key}"} if api_key else {},
            "verify": httpx.create_ssl_context(verify or True),
            "timeout": httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT),
            "limits": httpx.Limits(max_connections=None),
        }
        with self._client() as client:
            self.model_info = _get(client, "/get_model_info")
            told = _get(client, "/tokenizer_info", optional=True)
            self._shares = told is not None  # SGLang's server has no such route
            if chat_template_name is not None:
                self._roles: Roles = HabitRoles.named(chat_template_name)
            elif told and told.get("chat_template"):
                self._roles = _roles_of(client, told)
            else:
                self._roles = HabitRoles.of_model(str(self.model_info.get("model_path", "")))

    def get_model_name(self) -> str:
        """Where the server has its model from."""
        return str(self.model_info["model_path"])

    def get_server_info(self) -> dict[str, Any]:
        """The server's flags and numbers."""
        with self._client() as client:
            return dict(_get(client, "/get_server_info"))

    def flush_cache(self) -> bool:
        """False when requests run, since what they use stays."""
        with self._client() as client, _connected(self.base_url):
            response = client.post("/flush_cache")
        if response.status_code == httpx.codes.BAD_REQUEST:
            return False
        _check(response)
        return True

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        async with httpx.AsyncClient(**self._options) as client:
            yield EndpointSession(client, self._roles, shares_in_flight=self._shares)

    @contextmanager
    def _client(self) -> Any:
        with httpx.Client(**self._options) as client:
            yield client


class EndpointSession:
    """See Session."""

    answers_turns = False
    calls_cost = False

    def __init__(self, client: httpx.AsyncClient, roles: Roles, *, shares_in_flight: bool) -> None:
        self._client = client
        self._roles = roles
        self.shares_in_flight = shares_in_flight

    def begin(self) -> Transcript:
        return Transcript(self._roles)

    async def answer(
        self, said: Transcript, params: Params, *, stream: bool
    ) -> AsyncGenerator[Piece, None]:
        body = {"text": said.text, "sampling_params": _sampling(params), **_wanted(params)}
        if not stream:
            whole = await self._post(body)
            yield Piece(whole["text"], tuple(whole.get("output_ids", ())), whole["meta_info"])
            return
        length = 0
        async for event in self._events({**body, "stream": True}):
            yield Piece(event["text"][length:], (), event["meta_info"])
            length = len(event["text"])

    async def compute(self, said: Transcript) -> None:
        await self._computed(said.text)

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        texts = [said.text + choice for choice in choices]
        if said.text:
            start = max(await self._computed(said.text) - _HEALED, 0)
            base, *lists = await self._logprobs({"text": [said.text, *texts]}, start)
            tokens = [behind(base, entries) for entries in lists]
        else:
            tokens = await self._logprobs({"text": texts}, 0)
        if not alone:
            return Scores(tokens, None)
        ids = [[token[1] for token in entries] for entries in tokens]
        return Scores(tokens, await self._logprobs({"input_ids": ids}, 0))

    async def _computed(self, text: str) -> int:
        """Have a text in the cache; how many tokens it is."""
        whole = await self._post({"text": text, "sampling_params": {"max_new_tokens": 0}})
        return int(whole["meta_info"]["prompt_tokens"])

    async def _logprobs(self, prompts: Mapping[str, Any], start: int) -> list[Tokens]:
        answers = await self._post(
            {
                **prompts,
                "sampling_params": {"max_new_tokens": 0, "temperature": 0},
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": start,
            }
        )
        return [answer["meta_info"]["input_token_logprobs"] for answer in answers]

    async def _post(self, body: Mapping[str, Any]) -> Any:
        with _connected(str(self._client.base_url)):
            response = await self._client.post("/generate", json=body)
        _check(response)
        return response.json()

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        with _connected(str(self._client.base_url)):
            async with self._client.stream("POST", "/generate", json=body) as response:
                if response.is_error:
                    await response.aread()
                    _check(response)
                async for line in _lines(response):
                    data = line.removeprefix(b"data:").strip()
                    if data == b"[DONE]":
                        return
                    if data:
                        yield _event(data.decode())
        raise BackendError(f"{self._client.base_url} ended its answer before it was over")


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines as events have them: `aiter_lines` ends one at U+2028, too, where JSON does not."""
    rest = b""
    async for data in response.aiter_bytes():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line
    yield rest


def _roles_of(client: httpx.Client, told: Mapping[str, Any]) -> Roles:
    """told: the server's tokenizer_config.json with its template. Raises BackendError."""
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    texts = {name: special_token_text(told, name) for name in names}
    special = {name: text for name, text in texts.items() if text is not None}
    try:
        template = ChatTemplate(told["chat_template"], special)
    except ModelError as error:
        raise BackendError(f"the server's chat template is of no use: {error}") from None
    with _connected(str(client.base_url)):
        response = client.post("/tokenize", json={"prompt": "", "return_token_strs": True})
    _check(response)
    return TemplateRoles(template, "".join(response.json()["token_strs"] or ()))


def _sampling(params: Params) -> dict[str, Any]:
    given = {name: value for name, value in params.given().items() if name not in _ELSEWHERE}
    return {"skip_special_tokens": True, **given}


def _wanted(params: Params) -> dict[str, Any]:
    return {name: value for name, value in params.given().items() if name in _LOGPROBS}


@contextmanager
def _connected(url: str) -> Any:
    try:
        yield
    except httpx.TimeoutException as error:
        raise BackendError(f"{url} does not answer in time: {error!r}") from error
    except httpx.HTTPError as error:
        raise BackendError(f"the connection to {url} is broken: {error!r}") from error


def _get(client: httpx.Client, path: str, *, optional: bool = False) -> Any:
    with _connected(str(client.base_url)):
        response = client.get(path)
    if optional and response.is_client_error:
        return None
    _check(response)
    return response.json()


def _check(response: httpx.Response) -> None:
    """Raise InvalidRequestError for what the server refuses, BackendError when it failed."""
    if response.is_success:
        return
    text = _reason(response.text)
    if response.is_client_error:
        raise InvalidRequestError(text)
    raise BackendError(f"{response.url} failed with {response.status_code}: {text}")


def _event(data: str) -> Any:
    event = json.loads(data)
    if "error" in event:
        raise BackendError(_reason(data))
    return event


def _reason(text: str) -> str:
    """An error's message, out of its JSON if it is one."""
    try:
        body = json.loads(text)
    except ValueError:
        return text[:400]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
