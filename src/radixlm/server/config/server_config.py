"""What the user may set about the HTTP side: one frozen dataclass, one field per flag."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from radixlm.core.errors import ConfigError
from radixlm.parsers.formats import AUTO, FORMATS
from radixlm.parsers.reasoning import THINKING
from radixlm.server.config.kv_events_config import KVEventsConfig

LogFormat = Literal["text", "json"]
MetricsNames = Literal["radixlm", "sglang", "both", "vllm"]
SamplingDefaults = Literal["model", "openai"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
_KEY = re.compile(r"[!-~]+")
_COUNTS = (
    "max_request_bytes",
    "max_queued_requests_per_key",
    "max_stored_responses",
    "max_stored_bytes",
)
_ORIGIN = re.compile(r"\*|https?://[^/\s]+")
_ROOT_PATH = re.compile(r"(/[\w.~%!$&'()*+,;=:@-]+)*", re.ASCII)


def _flag(default: Any, text: str, choices: tuple[str, ...] = (), *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": text, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where to listen, whom to let in, how long to wait, what to log.

    kv_events: what kv_events_config says; None where none are published.
    Raises ConfigError that names the flag and the value; of a key, only its place.
    """

    host: str = _flag(DEFAULT_HOST, "Address to listen on.")
    port: int = _flag(DEFAULT_PORT, "Port to listen on; 0 takes a free one.")
    uds: str | None = _flag(None, "Unix socket to listen on, instead of --host and --port.")
    root_path: str = _flag("", "Path that a proxy in front takes away, as in /llm.")
    ssl_keyfile: str | None = _flag(None, "PEM file of the private key, for HTTPS.")
    ssl_certfile: str | None = _flag(None, "PEM file of the certificate chain, for HTTPS.")
    served_model_name: str | None = _flag(
        None, "Name that clients ask for. Default: the model folder's name."
    )
    sampling_defaults: SamplingDefaults = _flag(
        "model",
        "Sampling where a request to OpenAI's routes leaves it open: as the model's "
        "generation_config.json says, or as OpenAI's API does.",
        get_args(SamplingDefaults),
    )
    tool_call_parser: str = _flag(
        AUTO,
        "How the model writes calls of tools; auto tells it from the chat template.",
        (AUTO, *FORMATS),
    )
    reasoning_parser: str = _flag(
        AUTO,
        "How the model writes its thoughts before an answer: not at all, between <think> and "
        "</think>, or always and without the first of these; auto tells it from the chat template.",
        (AUTO, *THINKING),
    )
    api_key: tuple[str, ...] = _flag(
        (),
        "Key that clients must send as `Authorization: Bearer KEY`; may be given several times. "
        "Default: none is needed.",
        secret=True,
    )
    admin_api_key: tuple[str, ...] = _flag(
        (),
        "Key that alone may empty the cache and abort everybody's requests; opens all else too. "
        "May be given several times. Default: whoever may ask may do these as well.",
        secret=True,
    )
    isolate_by_key: bool = _flag(False, "Requests with different keys share nothing in the cache.")
    max_request_bytes: int | None = _flag(
        None,
        "Longest body of a request. Default: 64 bytes for each token of the model's context, but "
        "from 4 to 32 MiB.",
    )
    max_queued_requests_per_key: int | None = _flag(
        None, "Requests of one API key that wait or run; more are refused. Default: no such limit."
    )
    cors_origin: tuple[str, ...] = _flag(
        (),
        "Origin whose pages may ask from a browser, as in https://example.org, or * for all; may "
        "be given several times. Default: none but this server's own page.",
    )
    strict_fields: bool = _flag(
        False,
        "Refuse fields that are unknown, or that came with an answer, also where they ask for "
        "nothing.",
    )
    request_timeout: float = _flag(
        0.0, "Seconds after which a request is aborted; 0 lets it take as long as it does."
    )
    header_timeout: float = _flag(
        30.0, "Seconds that a client may take to send its headers; 0 waits for ever."
    )
    body_timeout: float = _flag(
        60.0, "Seconds that a client may take to send its body; 0 waits for ever."
    )
    keep_alive_timeout: float = _flag(
        75.0,
        "Seconds that a connection is kept for the next request; longer than clients and proxies "
        "keep theirs, or one of them asks on a connection that has just been ended.",
    )
    response_store: str | None = _flag(
        None, "File that keeps the responses of /v1/responses. Default: memory, until the end."
    )
    max_stored_responses: int = _flag(10_000, "Most stored responses; the oldest make room.")
    max_stored_bytes: int = _flag(
        256 * 2**20, "Most bytes of stored responses, about; the oldest make room."
    )
    response_ttl: float = _flag(30 * 86_400.0, "Seconds for which a response is stored at most.")
    kv_events_config: str | None = _flag(
        None,
        "JSON as vLLM and SGLang take it: what enters and leaves the cache is published over ZMQ, "
        "for routers. Default: it is not.",
    )
    metrics_names: MetricsNames = _flag(
        "radixlm",
        "Prefix of the names in /metrics, for dashboards: this server's own; SGLang's; each metric "
        "under both; or its own, and vLLM's names too where it has the same metric.",
        get_args(MetricsNames),
    )
    open_metrics: bool = _flag(False, "/metrics needs no --api-key.")
    disable_access_log: bool = _flag(False, "Do not log a line for each request.")
    log_health: bool = _flag(False, "Log requests for /health that find all well, too.")
    log_format: LogFormat = _flag("text", "How log lines are written.", get_args(LogFormat))
    kv_events: KVEventsConfig | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("request_timeout", "header_timeout", "body_timeout", "keep_alive_timeout"):
            _check_seconds(name, getattr(self, name))
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        _check_seconds("response_ttl", self.response_ttl)
        if not self.response_ttl:
            raise ConfigError("--response-ttl is more than 0 seconds, got 0")
        _check_choice("--log-format", self.log_format, get_args(LogFormat))
        _check_choice("--sampling-defaults", self.sampling_defaults, get_args(SamplingDefaults))
        _check_choice("--tool-call-parser", self.tool_call_parser, (AUTO, *FORMATS))
        _check_choice("--reasoning-parser", self.reasoning_parser, (AUTO, *THINKING))
        if not _ROOT_PATH.fullmatch(self.root_path):
            raise ConfigError(
                "--root-path is a path like /llm, with a / in front and none behind, "
                f"got {self.root_path!r}"
            )
        for origin in self.cors_origin:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "--cors-origin is * or an origin like https://example.org, without a path, got "
                    f"{origin!r}"
                )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        self._check_keys()
        object.__setattr__(self, "kv_events", self._read_kv_events())

    def _read_kv_events(self) -> KVEventsConfig | None:
        if self.kv_events_config is None:
            return None
        events = KVEventsConfig.from_json(self.kv_events_config)
        return events if events.enabled else None

    def _check_keys(self) -> None:
        _check_keys("api_key", self.api_key)
        _check_keys("admin_api_key", self.admin_api_key)
        if set(self.api_key) & set(self.admin_api_key):
            raise ConfigError("a key is given as --api-key and as --admin-api-key: use another")
        if self.isolate_by_key and not self.api_key:
            raise ConfigError("--isolate-by-key needs --api-key: without keys there is one client")
        if self.max_queued_requests_per_key is not None and not self.api_key:
            raise ConfigError("--max-queued-requests-per-key needs --api-key")


def _check_keys(name: str, keys: object) -> None:
    if not isinstance(keys, tuple):
        raise ConfigError(f"{name} is a tuple of keys, got {type(keys).__name__}")
    for place, key in enumerate(keys, 1):
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            flag = "--" + name.replace("_", "-")
            raise ConfigError(
                f"{flag} number {place} is empty or holds characters that a header cannot "
                "carry: use printable ASCII without spaces"
            )


def _check_count(name: str, value: object) -> None:
    wrong = isinstance(value, bool) or not isinstance(value, int) or value < 1
    if value is not None and wrong:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} is an integer of at least 1, got {value!r}")


def _check_choice(flag: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{flag} is one of {known}, got {value!r}")


def _check_seconds(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(float(str(value))) or float(str(value)) < 0:
        flag = "--" + name.replace("_", "-")
        raise ConfigError(f"{flag} is a number of seconds, 0 for no limit, got {value!r}")
