"""Programs on a server over HTTP: RadixLM's, or SGLang's own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import httpx
from httpx_sse import aconnect_sse

from radixlm.core.bounded_answers import BoundedAnswers
from radixlm.core.errors import BackendError, InvalidRequestError, ModelError
from radixlm.lang.backend import Pieces, Scores, Session, scores_of_texts
from radixlm.lang.choices import Tokens
from radixlm.lang.ir import Params
from radixlm.lang.transcript import Answer, Roles, TemplateRoles, Transcript, habit_of
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.named_tokens import special_texts

DEFAULT_TIMEOUT = 600.0
_CONNECT_TIMEOUT = 10.0
# Log-probabilities of long prompts and many choices are much.
MOST_BYTES = 256 * 2**20
# At most this many of a prompt's last tokens are other ones when a choice follows.
_HEALED = 4
_LOGPROBS = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
_ELSEWHERE = {"n", "stop_regex", *_LOGPROBS}


class RuntimeEndpoint:
    """A server's `/generate`.

    base_url: such as "http://127.0.0.1:30000". verify: a certificate's file, for https.
    chat_template_name: how messages are written, where the server does not give its template.
    timeout: seconds to wait for the server's next bytes.

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
        self.model_info = _checked(self._send("GET", "/get_model_info")).json()
        info = self._send("GET", "/tokenizer_info")
        self._shares = not info.is_client_error  # SGLang's server has no such route
        config = _checked(info).json() if self._shares else {}
        self._roles: Roles
        if config.get("chat_template") and chat_template_name is None:
            self._roles = self._template_roles(config)
        else:
            model = str(self.model_info.get("model_path", ""))
            self._roles = habit_of(model, chat_template_name)

    def get_model_name(self) -> str:
        """The path of the server's model."""
        return str(self.model_info["model_path"])

    def get_server_info(self) -> dict[str, Any]:
        """The server's flags and numbers."""
        return dict(_checked(self._send("GET", "/get_server_info")).json())

    def flush_cache(self) -> bool:
        """False when requests run, since what they use stays."""
        response = self._send("POST", "/flush_cache")
        if response.status_code == httpx.codes.BAD_REQUEST:
            return False
        _checked(response)
        return True

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        hooks = BoundedAnswers(MOST_BYTES).async_hooks
        async with httpx.AsyncClient(**self._options, event_hooks=hooks) as client:
            yield EndpointSession(client, self._roles, shares_in_flight=self._shares)

    def _template_roles(self, config: Mapping[str, Any]) -> Roles:
        """config: the server's tokenizer_config.json with its template. Raises BackendError."""
        try:
            template = ChatTemplate(config["chat_template"], special_texts(config))
        except ModelError as error:
            raise BackendError(f"the server's chat template is of no use: {error}") from None
        empty = {"prompt": "", "return_token_strs": True}
        tokens = _checked(self._send("POST", "/tokenize", json=empty)).json()
        return TemplateRoles(template, "".join(tokens["token_strs"] or ()))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        hooks = BoundedAnswers(MOST_BYTES).hooks
        with _connected(self.base_url), httpx.Client(**self._options, event_hooks=hooks) as client:
            return client.request(method, path, **options)


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

    async def answer(self, said: Transcript, params: Params, *, stream: bool) -> Pieces:
        given = params.given()
        sampling = {name: value for name, value in given.items() if name not in _ELSEWHERE}
        body = {
            "text": said.text,
            "sampling_params": {"skip_special_tokens": True, **sampling},
            **{name: given[name] for name in _LOGPROBS if name in given},
        }
        if not stream:
            whole = await self._post(body)
            yield Answer(whole["text"], whole["meta_info"], tuple(whole.get("output_ids", ())))
            return
        length = 0
        async for event in self._events({**body, "stream": True}):
            yield Answer(event["text"][length:], event["meta_info"])
            length = len(event["text"])

    async def compute(self, said: Transcript) -> None:
        await self._computed(said.text)

    async def score(self, said: Transcript, choices: Sequence[str], *, alone: bool) -> Scores:
        start = max(await self._computed(said.text) - _HEALED, 0) if said.text else 0
        listed = partial(self._logprobs, "text", start)
        tokens = await scores_of_texts(said.text, choices, listed)
        if not alone:
            return Scores(tokens, None)
        ids = [[token[1] for token in entries] for entries in tokens]
        return Scores(tokens, await self._logprobs("input_ids", 0, ids))

    async def _computed(self, text: str) -> int:
        """Have a text in the cache; how many tokens it is."""
        whole = await self._post({"text": text, "sampling_params": {"max_new_tokens": 0}})
        return int(whole["meta_info"]["prompt_tokens"])

    async def _logprobs(self, field: str, start: int, prompts: Sequence[Any]) -> list[Tokens]:
        """Log-probabilities of each prompt, from its token `start` on. field: the body's, for the
        prompts.
        """
        answers = await self._post(
            {
                field: prompts,
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
        return _checked(response).json()

    async def _events(self, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        with _connected(str(self._client.base_url)):
            async with aconnect_sse(self._client, "POST", "/generate", json=body) as source:
                if source.response.is_error:
                    await source.response.aread()
                    _checked(source.response)
                async for event in source.aiter_sse():
                    if event.data == "[DONE]":
                        return
                    if "error" in (data := json.loads(event.data)):
                        raise BackendError(_reason(event.data))
                    yield data
        raise BackendError(f"{self._client.base_url} ended its answer before it was over")


@contextmanager
def _connected(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.TimeoutException as error:
        raise BackendError(f"{url} does not answer in time: {error!r}") from error
    except httpx.HTTPError as error:
        raise BackendError(f"the connection to {url} is broken: {error!r}") from error


def _checked(response: httpx.Response) -> httpx.Response:
    """Raises InvalidRequestError for what the server refuses, BackendError when it failed."""
    if response.is_success:
        return response
    text = _reason(response.text)
    if response.is_client_error:
        raise InvalidRequestError(text)
    raise BackendError(f"{response.url} failed with {response.status_code}: {text}")


def _reason(text: str) -> str:
    """An error's message, out of its JSON if it is one."""
    try:
        body = json.loads(text)
    except ValueError:
        return text[:400]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
