"""The settings of the HTTP side: one frozen dataclass, one field per flag; and those of
--kv-events-config, JSON as vLLM and SGLang take it.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, NotRequired, get_args

from typing_extensions import TypedDict

from radixlm.core.errors import ConfigError
from radixlm.core.flags import (
    SECONDS,
    Rule,
    check_flags,
    expand_homes,
    flag,
    integer,
    number,
    one_of,
    written,
)
from radixlm.core.reports import MAX_WAITING
from radixlm.parsers.formats import AUTO, FORMATS
from radixlm.parsers.thoughts import THOUGHTS

LogFormat = Literal["text", "json"]
MetricsNames = Literal["radixlm", "sglang", "both", "vllm"]
SamplingDefaults = Literal["model", "openai"]

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 30000
_LAST_PORT = 65535
_COUNT = integer(1)
_KEY = written(
    "[!-~]+",
    "is empty or holds characters that a header cannot carry: use printable ASCII without spaces",
)
_ORIGIN = written(
    r"\*|https?://[^/\s]+", "is * or an origin like https://example.org, without a path"
)
_COLLECTOR = written(r"https?://[^/\s]+(/\S*)?", "is a URL like http://127.0.0.1:4318")
_ROOT_PATH = written(
    r"(/[\w.~%!$&'()*+,;=:@-]+)*", "is a path like /llm, with a / in front and none behind"
)
_PORT = Rule(
    f"is a number from 0 to {_LAST_PORT}",
    lambda port: type(port) is int and 0 <= port <= _LAST_PORT,
)
_LIFETIME = number(math.ulp(0), math.inf, "is more than 0 seconds")
FLAG = "--kv-events-config"
DEFAULT_BLOCK_SIZE = 16
_WILDCARDS = ("*", "0.0.0.0", "[::]")  # noqa: S104
_ENDPOINT = re.compile(r"tcp://(?P<host>[^:/\s]+|\[[^\]\s]+\]):(?P<port>[0-9]{1,5})|ipc://\S+")


def _is_endpoint(value: object) -> bool:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) and value.isprintable() else None
    return found is not None and 0 < int(found["port"] or 1) <= _LAST_PORT


_SWITCH = Rule("is true or false", lambda value: isinstance(value, bool))
_TEXT = Rule("is printable text", lambda value: isinstance(value, str) and value.isprintable())
_PLACE = Rule("is like tcp://*:5557 or ipc://PATH", _is_endpoint)
_ZMQ_COUNT = integer(1, 1_000_000_000)  # its own counts have 31 bits


class KVEventSource(TypedDict):
    """An address where KV events are heard; a host of `*` is this server's own."""

    publisher: Literal["zmq"]
    endpoint_host: str
    endpoint_port_base: int
    topic: str
    block_size: int
    dp_size: int
    replay_endpoint_port_base: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """The addresses where events are published, and how much is kept of them. Raises ConfigError.

    enable_kv_cache_events: vLLM's switch; SGLang has none, `publisher` alone is enough.
    bind: None binds wildcards and ipc, and connects to all else.
    replay_endpoint: where missed batches are asked for. buffer_steps: batches kept for that.
    hwm: batches that may wait for one slow subscriber; beyond it loses them.
    max_queue_size: changes of the cache that may wait to be published.
    block_size: tokens of a block; None: 16, or a page where that is more.
    """

    enable_kv_cache_events: bool | None = flag(None, rule=_SWITCH)
    publisher: str | None = flag(None, rule=one_of(("null", "zmq")))
    endpoint: str = flag("tcp://*:5557", rule=_PLACE)
    bind: bool | None = flag(None, rule=_SWITCH)
    replay_endpoint: str | None = flag(None, rule=_PLACE)
    buffer_steps: int = flag(10_000, rule=_ZMQ_COUNT)
    hwm: int = flag(100_000, rule=_ZMQ_COUNT)
    max_queue_size: int = flag(MAX_WAITING, rule=_ZMQ_COUNT)
    topic: str = flag("", rule=_TEXT)
    block_size: int | None = flag(None, rule=_ZMQ_COUNT)

    def __post_init__(self) -> None:
        check_flags(self, lambda name: f"{FLAG}: {name}")
        if self.enable_kv_cache_events is None and self.publisher is None:
            raise ConfigError(
                f'{FLAG} turns nothing on: give "publisher": "zmq" or '
                '"enable_kv_cache_events": true'
            )

    @classmethod
    def from_json(cls, text: str) -> KVEventsConfig:
        """Read the flag's value. Raises ConfigError."""
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{FLAG} is no JSON: {error}, got {text!r:.200}") from None
        if not isinstance(given, dict):
            raise ConfigError(f"{FLAG} is a JSON object, got {text!r:.200}")
        known = [item.name for item in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"{FLAG} has no {name!r:.80}; known are {', '.join(known)}")
        return cls(**given)

    @property
    def enabled(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events is not False and self.publisher != "null"

    @property
    def binds(self) -> bool:
        """Whether subscribers come to `endpoint`, or are found there."""
        if self.bind is not None:
            return self.bind
        found = _ENDPOINT.fullmatch(self.endpoint)
        return found is not None and found["host"] in (None, *_WILDCARDS)

    def block_size_for(self, page_size: int) -> int:
        """Tokens of a block in a cache of such pages."""
        return self.block_size or max(DEFAULT_BLOCK_SIZE, page_size)

    def described(self, page_size: int) -> KVEventSource | None:
        """How SGLang's router finds the events, in /server_info; None where it can not."""
        found = _ENDPOINT.fullmatch(self.endpoint)
        if not self.enabled or not found or found["host"] is None:
            return None
        source: KVEventSource = {
            "publisher": "zmq",
            # Where it binds, that is its own: clients of SGLang's take no other for one that binds.
            "endpoint_host": "*" if self.binds else found["host"],
            "endpoint_port_base": int(found["port"]),
            "topic": self.topic,
            "block_size": self.block_size_for(page_size),
            "dp_size": 1,
        }
        replay = _ENDPOINT.fullmatch(self.replay_endpoint or "")
        if replay and replay["port"]:
            source["replay_endpoint_port_base"] = int(replay["port"])
        return source


class Libraries(NamedTuple):
    """The modules of pyzmq and msgspec."""

    zmq: Any
    zmq_asyncio: Any
    msgspec: Any


def load_libraries() -> Libraries:
    """Raises ConfigError where they are not installed."""
    try:
        return Libraries(*map(importlib.import_module, ("zmq", "zmq.asyncio", "msgspec")))
    except ImportError as error:
        raise ConfigError(
            f"{FLAG} needs pyzmq and msgspec: pip install pyzmq msgspec ({error})"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The server's settings: where to listen, whom to let in, how long to wait, what to log.

    kv_events: what kv_events_config says; None where none are published.
    Raises ConfigError that names the flag and the value; of a key, only its place.
    """

    host: str = flag(DEFAULT_HOST, "Address to listen on.", heading="Server")
    port: int = flag(DEFAULT_PORT, "Port to listen on; 0 takes a free one.", _PORT)
    uds: str | None = flag(
        None, "Unix socket to listen on, instead of --host and --port.", path=True
    )
    ollama_port: int | None = flag(
        None, "Further port to listen on; clients of Ollama look for 11434.", _PORT
    )
    root_path: str = flag("", "Path that a proxy in front takes away, as in /llm.", _ROOT_PATH)
    ssl_keyfile: str | None = flag(None, "PEM file of the private key, for HTTPS.", path=True)
    ssl_certfile: str | None = flag(
        None, "PEM file of the certificate chain, for HTTPS.", path=True
    )
    served_model_name: tuple[str, ...] = flag(
        (),
        "Names that clients may ask for; answers have the first one. Default: the model folder's "
        "name.",
        Rule("is a name", lambda value: isinstance(value, str) and value != ""),
    )
    sampling_defaults: SamplingDefaults = flag(
        "model",
        "Sampling where a request to OpenAI's routes leaves it open: as the model's "
        "generation_config.json says, or as OpenAI's API does.",
        one_of(get_args(SamplingDefaults)),
    )
    tool_call_parser: str = flag(
        AUTO,
        "How the model writes calls of tools; auto tells it from the chat template.",
        one_of((AUTO, *FORMATS)),
    )
    reasoning_parser: str = flag(
        AUTO,
        "How the model writes its thoughts before an answer; none leaves them in it, auto tells it "
        "from the chat template.",
        one_of((AUTO, *THOUGHTS)),
    )
    api_key: tuple[str, ...] = flag(
        (),
        "Key that clients must send as `Authorization: Bearer KEY`; may be given several times. "
        "Default: none is needed.",
        _KEY,
        heading="API keys",
        secret=True,
    )
    admin_api_key: tuple[str, ...] = flag(
        (),
        "Key that alone may empty the cache and abort everybody's requests; opens all else too. "
        "May be given several times. Default: everybody who may ask may do these as well.",
        _KEY,
        secret=True,
    )
    isolate_by_key: bool = flag(False, "Requests with different keys share nothing in the cache.")
    max_request_bytes: int | None = flag(
        None,
        "Longest body of a request. Default: 64 bytes for each token of the model's context, but "
        "from 4 to 32 MiB.",
        _COUNT,
        heading="Limits",
    )
    max_queued_requests_per_key: int | None = flag(
        None,
        "Requests of one API key that wait or run; more are refused. Default: no such limit.",
        _COUNT,
    )
    cors_origin: tuple[str, ...] = flag(
        (),
        "Origin whose pages may ask from a browser, as in https://example.org, or * for all; may "
        "be given several times. Default: none but this server's own page.",
        _ORIGIN,
    )
    strict_fields: bool = flag(
        False,
        "Refuse fields that are unknown, or that came with an answer, also where they ask for "
        "nothing; and answers longer than fits.",
    )
    keep_billing_header: bool = flag(
        False,
        "Leave Claude Code's line x-anthropic-billing-header, another one with each request, in "
        "the prompt.",
    )
    request_timeout: float = flag(
        0.0, "Seconds after which a request is aborted; 0 lets it take as long as it does.", SECONDS
    )
    header_timeout: float = flag(
        30.0, "Seconds that a client may take to send its headers; 0 waits for ever.", SECONDS
    )
    body_timeout: float = flag(
        60.0, "Seconds that a client may take to send its body; 0 waits for ever.", SECONDS
    )
    keep_alive_timeout: float = flag(
        75.0,
        "Seconds that a connection is kept for the next request; longer than clients and proxies "
        "keep theirs, or one of them asks on a connection that has just been ended.",
        SECONDS,
    )
    sse_keep_alive_interval: float = flag(
        15.0,
        "Seconds without a byte after which a stream sends a comment, or Anthropic's `ping`, since "
        "proxies and clients end connections that are silent; 0 sends none.",
        SECONDS,
    )
    response_store: str | None = flag(
        None,
        "File that keeps responses of /v1/responses, and conversations. Default: memory, until the "
        "end.",
        heading="Stored responses",
        path=True,
    )
    max_stored_responses: int = flag(
        10_000, "Most stored responses and conversations; the oldest make room.", _COUNT
    )
    max_stored_bytes: int = flag(
        256 * 2**20, "Most bytes of stored responses, about; the oldest make room.", _COUNT
    )
    response_ttl: float = flag(
        30 * 86_400.0, "Seconds for which a response is stored at most.", _LIFETIME
    )
    file_storage_path: str | None = flag(
        None,
        "Folder that keeps the files of /v1/files and the batches made of them, which go on after "
        "a restart. Default: a temporary one, until the end.",
        heading="Batches",
        path=True,
    )
    max_file_bytes: int = flag(16 * 2**30, "Most bytes of a file that is uploaded.", _COUNT)
    max_files_bytes: int = flag(
        64 * 2**30, "Most bytes of all files, those that batches write too.", _COUNT
    )
    kv_events_config: str | None = flag(
        None,
        "JSON as vLLM and SGLang take it: what enters and leaves the cache is published over ZMQ, "
        "for routers. Default: it is not.",
        heading="Routers",
    )
    metrics_names: MetricsNames = flag(
        "radixlm",
        "Prefix of the names in /metrics, for dashboards: this server's own; SGLang's; each metric "
        "under both; or its own, and vLLM's names too where it has the same metric.",
        one_of(get_args(MetricsNames)),
    )
    open_metrics: bool = flag(False, "/metrics needs no --api-key.")
    record_trace: str | None = flag(
        None,
        "File to which ended requests are added, as token ids without text, for `radixlm sim`.",
        heading="Traces",
        path=True,
    )
    record_trace_hashed: bool = flag(
        False, "Record ids that only say how far prompts begin alike, not what they say."
    )
    record_trace_mb: float = flag(
        1_000.0, "Most megabytes (10^6 bytes) of --record-trace.", number(0.001, 1e9)
    )
    otlp_endpoint: str | None = flag(
        None,
        "Where spans of requests are sent, by OpenTelemetry over HTTP, as in "
        "http://127.0.0.1:4318. Default: nowhere.",
        _COLLECTOR,
    )
    disable_access_log: bool = flag(False, "Do not log a line for each request.", heading="Logs")
    log_health: bool = flag(False, "Log requests for /health that find all well, too.")
    log_format: LogFormat = flag("text", "How log lines are written.", one_of(get_args(LogFormat)))
    kv_events: KVEventsConfig | None = field(init=False, repr=False, compare=False)

    def first_name(self, default: str) -> str:
        """The model's name in answers: the first one given, or else the default."""
        return self.served_model_name[0] if self.served_model_name else default

    def __post_init__(self) -> None:
        expand_homes(self)
        check_flags(self)
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile needs --ssl-certfile")
        if set(self.api_key) & set(self.admin_api_key):
            raise ConfigError("a key is given as --api-key and as --admin-api-key: use another")
        if self.isolate_by_key and not self.api_key:
            raise ConfigError("--isolate-by-key needs --api-key: without keys there is one client")
        if self.max_queued_requests_per_key is not None and not self.api_key:
            raise ConfigError("--max-queued-requests-per-key needs --api-key")
        if len(set(self.served_model_name)) < len(self.served_model_name):
            raise ConfigError("--served-model-name names the model twice by one name")
        given = self.kv_events_config
        events = None if given is None else KVEventsConfig.from_json(given)
        object.__setattr__(self, "kv_events", events if events and events.enabled else None)
