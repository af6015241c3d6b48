"""The state that the routes share: the engine, its public name, and what is under way."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import version

import numpy as np
from fastapi import Request
from prometheus_client.core import Metric

from radixlm.assembly import ModelInfo
from radixlm.core import errors
from radixlm.core.clock import WallClock
from radixlm.core.keys import Key, as_key
from radixlm.core.request import GenerateRequest, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.core.side_threads import SideThreads
from radixlm.parsers.style import AnswerStyle
from radixlm.server.bodies.protocol import CacheParams, Prediction
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.envelope import Keyring, exchange_of
from radixlm.server.http.http_errors import ModelNotFoundError
from radixlm.server.http.logs import Notices
from radixlm.server.http.tracing import Tracing
from radixlm.server.insight.advice import MissWindow
from radixlm.server.insight.metrics import Metrics
from radixlm.server.insight.recorder import Recorder
from radixlm.server.pipeline.answer_memory import AnswerMemory, Span
from radixlm.server.pipeline.served_engine import ServedEngine
from radixlm.server.pipeline.under_way import UnderWay
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.thinking_switch import ThinkingSwitch

# The longest body, unless a flag says otherwise: text takes 4 to 24 bytes a token, ids up to 9.
BYTES_PER_TOKEN = 64
LEAST_BYTES, MOST_BYTES = 4 * 2**20, 32 * 2**20


class Service:
    """created: when serving began, in seconds since 1970.

    own_names: the model's, of which answers have the first one, model_name.
    sampling_defaults: of fields that requests to OpenAI's routes leave open.
    answer_style: how the model's chat answers are read. thinking_switch: how its template is asked
        to have it think.
    fingerprint: OpenAI's `system_fingerprint`, the same for as long as the same seed gives the
        same answer.
    keys: which API keys may do what.
    memory: the tokens of answers that were given.
    misses: why the last requests computed what they did. notices: what is said of requests, once.
    pages: threads that write what is seen of the cache.
    """

    def __init__(
        self,
        engine: ServedEngine,
        model_name: str,
        config: ServerConfig,
        more: Sequence[object] = (),
        recorder: Recorder | None = None,
        more_metrics: Callable[[], Iterable[Metric]] = tuple,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        """more: what other parts count. more_metrics: whole ones, with labels of their own.
        recorder: takes requests that have ended. tracing: their spans. Raises ModelError
        for sampling that the model recommends and no request could have, ConfigError for an adapter
        with the model's name.
        """
        own = self.own_names = (model_name, *config.served_model_name[1:])
        if taken := [name for name in own if name in engine.adapters.named]:
            text = f"--lora-paths: an adapter can not have the model's name {taken[0]!r:.80}"
            raise errors.ConfigError(f"{text}; give it another as NAME=FOLDER")
        info, self.clock = engine.info, WallClock()
        self.engine, self.model_name, self.config = engine, model_name, config
        self.created = int(time.time())
        names = config.metrics_names
        self.metrics = Metrics(
            engine.stats, model_name, self.clock, more=more, families=more_metrics, names=names
        )
        self.sampling_defaults = _sampling_defaults(info, config)
        bits = "deterministic" if info.deterministic else ""
        types = (info.dtype, info.kv_cache_dtype, info.quantization)
        parts = (version("radixlm"), info.model_path, *types, info.device, bits)
        self.fingerprint = "fp_" + blake2b("\n".join(parts).encode(), digest_size=5).hexdigest()
        open_paths = ("/metrics",) if config.open_metrics else ()
        self.keys = Keyring(config.api_key, config.admin_api_key, open_paths=open_paths)
        self.memory = AnswerMemory(engine.tokenizer, info.kv_tokens)
        template = engine.chat_template
        self.thinking_switch = ThinkingSwitch.of(template)
        self.answer_style = AnswerStyle.found(
            template or ChatTemplate(""),
            config.tool_call_parser,
            config.reasoning_parser,
            self.thinking_switch,
        )
        self.under_way = UnderWay(self.clock, config.max_queued_requests_per_key)
        self.misses = MissWindow(self.clock)
        self.notices = Notices()
        self.recorder = recorder
        self._tracing = tracing
        # Each is of up to 50,000 nodes, in memory while it waits.
        self.pages = SideThreads("pages of the cache", most=2, most_waiting=64)

    def stream(
        self, requests: Sequence[GenerateRequest], *, chat: bool
    ) -> AsyncGenerator[RequestOutput, None]:
        """Stream as the engine's stream_all does. chat: whether it is a conversation."""
        stream = self.engine.stream_all
        if self._tracing is None:
            return stream(requests)
        return self._tracing.stream(
            stream,
            requests,
            model=self.model_name,
            operation="chat" if chat else "text_completion",
            phases=not self.engine.info.routed,
        )

    def check_model(self, name: str | None) -> None:
        """Raise ModelNotFoundError when a request names another model, and no adapter either."""
        if name not in (None, *self.model_names):
            served = " and ".join(map(repr, self.model_names))
            verb = "are" if len(self.model_names) > 1 else "is"
            raise ModelNotFoundError(
                f"the model {name!r:.80} is not served here; {served} {verb}", param="model"
            )

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names that `model` may be: the model's, and those of it with each adapter."""
        return (*self.own_names, *self.engine.adapters.named)

    def namespace_of(self, fields: CacheParams) -> Namespace:
        """The namespace of a request: what it may share, with the adapter that it names as
        `lora_path`, or as its model. Raises InvalidRequestError for one that is not loaded.
        """
        named = fields.lora_path
        model = getattr(fields, "model", None)  # not every such body names one
        if named is None and model in self.engine.adapters.named:
            named = model
        if named is None:
            return fields.namespace
        return fields.namespace._replace(adapter_id=self.engine.adapters.id_of(named))

    @property
    def caches(self) -> bool:
        """Whether what is computed is cached."""
        return not self.engine.config.disable_radix_cache

    def isolated(self, namespace: Namespace, tenant: str) -> Namespace:
        """The part of the cache that a tenant's request may see: with --isolate-by-key its own.

        A tenant is a digest of fixed length, so no salt makes one tenant's namespace another's.
        """
        if not self.config.isolate_by_key:
            return namespace
        return namespace._replace(cache_salt=self.salt_of(tenant) + namespace.cache_salt)

    def salt_of(self, tenant: str) -> str:
        """The text with which the salts of a tenant's own namespaces begin, and nobody else's."""
        return f"{tenant}/"

    def shows_cached_text(self, tenant: str, namespace: Namespace) -> bool:
        """Whether what is cached in a namespace may be shown to a tenant: where nobody without a
        secret that it knows, a key or a salt, can have written it, and to admins.
        """
        config = self.config
        own = config.isolate_by_key or len(config.api_key) < 2
        return own or bool(namespace.cache_salt) or self.keys.is_admin(tenant)

    def sees_salted(self, tenant: str) -> bool:
        """Whether a tenant may see what is cached under salts that it does not name: they are
        secrets among those who share a key. An admin may, and everybody where there are no keys.
        """
        return not self.config.api_key or self.keys.is_admin(tenant)

    def owner_of(self, tenant: str) -> str:
        """The owner who may abort a tenant's requests: with --isolate-by-key that tenant, else
        everyone.
        """
        return tenant if self.config.isolate_by_key else ""

    @property
    def max_request_bytes(self) -> int:
        """Longest body: --max-request-bytes, or what the model's context makes of it."""
        by_context = BYTES_PER_TOKEN * self.engine.info.context_length
        return self.config.max_request_bytes or min(max(by_context, LEAST_BYTES), MOST_BYTES)

    def check_admin(self, request: Request) -> None:
        """Raise AdminKeyNeededError, InvalidApiKeyError unless it may do what is for admins."""
        if (refusal := self.keys.admin_refusal(tenant_of(request))) is not None:
            raise refusal

    def sees_all(self, request: Request) -> bool:
        """Whether a request that says all means everybody's, not only its own key's.

        With --isolate-by-key admins do, else all do. Raises as `check_admin` for who must not.
        """
        if self.config.isolate_by_key:
            admins = bool(self.config.admin_api_key)
            return admins and self.keys.admin_refusal(tenant_of(request)) is None
        self.check_admin(request)
        return True

    def retry_after(self) -> int:
        """The seconds until the requests that wait now will have had their turn: 1 to 60."""
        return self.under_way.seconds_for(self.engine.stats().waiting + 1)

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool,
        param: str,
        break_mark: str | None = None,
        known: Sequence[Span] = (),
    ) -> Key:
        """Tokenize a prompt, which `param` of the request made; see Tokenizer.encode.

        known: what of it has its tokens already, where no special tokens are added; no token
            reaches into it.

        A text that no tokens could bring into the limits is refused unread: a body full of it
        would take a minute. Raises InvalidRequestError, RequestTooLargeError.
        """
        tokenizer = self.engine.tokenizer
        breaks = 0 if break_mark is None else text.count(break_mark)
        # There is a token at least between two breaks.
        self.check_text(len(text) - breaks * len(break_mark or ""), param=param, least=breaks)
        ends = [*(span.start for span in known), len(text)]
        own = tokenizer.encode(
            text[: ends[0]], add_special_tokens=add_special_tokens, break_mark=break_mark
        )
        pieces = [own]
        for span, end in zip(known, ends[1:], strict=True):
            pieces.append(span.tokens)
            last = next((int(piece[-1]) for piece in reversed(pieces) if piece.size), None)
            pieces.append(
                tokenizer.encode_after(text[span.stop : end], last=last, break_mark=break_mark)
            )
        return np.concatenate(pieces) if known else own

    def check_text(self, characters: int, *, param: str, least: int = 0) -> None:
        """Raise RequestTooLargeError for a text that no tokens could bring into the limits. least:
        tokens that it has, at least.
        """
        least = max(math.ceil(characters / self.engine.tokenizer.longest_token), least)
        self.engine.limits.check_text(characters, least, param=param)

    def predicted(self, prediction: Prediction | None) -> Key | None:
        """The tokens of a predicted answer. Raises InvalidRequestError, RequestTooLargeError."""
        text = None if prediction is None else prediction.text
        if text is None or self.engine.config.speculative_algorithm == "off":
            return None
        predicted = self.encode(text, add_special_tokens=False, param="prediction")
        self.engine.limits.check_prediction(predicted)
        return predicted

    def key(self, prompt: str | list[int], *, add_special_tokens: bool, param: str) -> Key:
        """Text or ids, which `param` of the request holds, as a key. Raises InvalidRequestError."""
        if isinstance(prompt, str):
            return self.encode(prompt, add_special_tokens=add_special_tokens, param=param)
        try:
            return as_key(prompt)
        except errors.InvalidKeyError as error:
            raise errors.InvalidRequestError(f"{param}: {error}", param=param) from None


def _sampling_defaults(info: ModelInfo, config: ServerConfig) -> Mapping[str, float]:
    """The sampling defaults that --sampling-defaults means for this model. Raises ModelError for
    values that no request could have.
    """
    if config.sampling_defaults == "openai":
        return {}
    try:
        SamplingParams(**info.recommended_sampling)
    except errors.InvalidRequestError as error:
        raise errors.ModelError(
            f"generation_config.json of {info.model_path}: {error}; correct it, or start with "
            "--sampling-defaults openai"
        ) from None
    return info.recommended_sampling


def tenant_of(request: Request) -> str:
    """The tenant of a request: a digest of the API key that it carries, "" without one."""
    return exchange_of(request).tenant


def check_room(request: Request) -> None:
    """A route's dependency. Raises QueueFullError when one more request of a tenant would be
    refused, EngineDeadError: refusing must cost next to nothing, so it comes before the reading.
    """
    service = service_of(request)
    service.engine.check_room()
    service.under_way.check(tenant_of(request))


def service_of(request: Request) -> Service:
    """The service that `create_app` put into the application."""
    service: Service = request.app.state.service
    return service
