"""--kv-events-config: JSON as vLLM and SGLang take it."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict

from radixlm.core.errors import ConfigError
from radixlm.core.reports import MAX_WAITING

FLAG = "--kv-events-config"
PUBLISHERS = ("null", "zmq")
DEFAULT_BLOCK_SIZE = 16
_WILDCARDS = ("*", "0.0.0.0", "[::]")  # noqa: S104
_LAST_PORT = 65535
_MOST = 1_000_000_000  # ZMQ's own counts have 31 bits
_ENDPOINT = re.compile(r"tcp://(?P<host>[^:/\s]+|\[[^\]\s]+\]):(?P<port>[0-9]{1,5})|ipc://\S+")


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MOST


def _is_publisher(value: object) -> bool:
    return value in PUBLISHERS


def _is_endpoint(value: object) -> bool:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) and _is_text(value) else None
    return found is not None and 0 < int(found["port"] or 1) <= _LAST_PORT


_RULES: dict[Callable[[object], bool], str] = {
    _is_switch: "true or false",
    _is_text: "printable text",
    _is_count: f"an integer from 1 to {_MOST}",
    _is_publisher: f"one of {PUBLISHERS}",
    _is_endpoint: "like tcp://*:5557 or ipc://PATH",
}


def _of(rule: Callable[[object], bool], default: Any = None) -> Any:
    """A field; where its default is None, None is no breach of the rule."""
    return field(default=default, metadata={"rule": rule})


class KVEventSource(TypedDict):
    """Where KV events are heard; a host of `*` is this server's own."""

    publisher: Literal["zmq"]
    endpoint_host: str
    endpoint_port_base: int
    topic: str
    block_size: int
    dp_size: int
    replay_endpoint_port_base: NotRequired[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """Where events are published, and how much is kept of them. Raises ConfigError.

    enable_kv_cache_events: vLLM's switch; SGLang has none, `publisher` alone is enough.
    bind: None binds wildcards and ipc, and connects to all else.
    replay_endpoint: where missed batches are asked for. buffer_steps: batches kept for that.
    hwm: batches that may wait for one slow subscriber; beyond it loses them.
    max_queue_size: changes of the cache that may wait to be told.
    block_size: tokens of a block; None: 16, or a page where that is more.
    """

    enable_kv_cache_events: bool | None = _of(_is_switch)
    publisher: str | None = _of(_is_publisher)
    endpoint: str = _of(_is_endpoint, "tcp://*:5557")
    bind: bool | None = _of(_is_switch)
    replay_endpoint: str | None = _of(_is_endpoint)
    buffer_steps: int = _of(_is_count, 10_000)
    hwm: int = _of(_is_count, 100_000)
    max_queue_size: int = _of(_is_count, MAX_WAITING)
    topic: str = _of(_is_text, "")
    block_size: int | None = _of(_is_count)

    def __post_init__(self) -> None:
        for item in fields(self):
            value, rule = getattr(self, item.name), item.metadata["rule"]
            if not rule(value) and not value is item.default is None:
                raise ConfigError(f"{FLAG}: {item.name} is {_RULES[rule]}, got {value!r:.200}")
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
        told: KVEventSource = {
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
            told["replay_endpoint_port_base"] = int(replay["port"])
        return told


class Libraries(NamedTuple):
    """The modules of pyzmq and msgspec."""

    zmq: Any
    zmq_asyncio: Any
    msgspec: Any
    msgpack: Any


def load_libraries() -> Libraries:
    """Raises ConfigError where they are not installed."""
    try:
        return Libraries(
            importlib.import_module("zmq"),
            importlib.import_module("zmq.asyncio"),
            importlib.import_module("msgspec"),
            importlib.import_module("msgspec.msgpack"),
        )
    except ImportError as error:
        raise ConfigError(
            f"{FLAG} needs pyzmq and msgspec: pip install pyzmq msgspec ({error})"
        ) from None
