"""--kv-events-config: JSON as vLLM and SGLang take it."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, NotRequired

from typing_extensions import TypedDict

from radixlm.core.errors import ConfigError
from radixlm.core.flags import Rule, check_flags, flag, integer, one_of
from radixlm.core.reports import MAX_WAITING

FLAG = "--kv-events-config"
DEFAULT_BLOCK_SIZE = 16
_WILDCARDS = ("*", "0.0.0.0", "[::]")  # noqa: S104
_LAST_PORT = 65535
_ENDPOINT = re.compile(r"tcp://(?P<host>[^:/\s]+|\[[^\]\s]+\]):(?P<port>[0-9]{1,5})|ipc://\S+")


def _is_endpoint(value: object) -> bool:
    found = _ENDPOINT.fullmatch(value) if isinstance(value, str) and value.isprintable() else None
    return found is not None and 0 < int(found["port"] or 1) <= _LAST_PORT


_SWITCH = Rule("is true or false", lambda value: isinstance(value, bool))
_TEXT = Rule("is printable text", lambda value: isinstance(value, str) and value.isprintable())
_PLACE = Rule("is like tcp://*:5557 or ipc://PATH", _is_endpoint)
_COUNT = integer(1, 1_000_000_000)  # ZMQ's own counts have 31 bits


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
    max_queue_size: changes of the cache that may wait to be published.
    block_size: tokens of a block; None: 16, or a page where that is more.
    """

    enable_kv_cache_events: bool | None = flag(None, rule=_SWITCH)
    publisher: str | None = flag(None, rule=one_of(("null", "zmq")))
    endpoint: str = flag("tcp://*:5557", rule=_PLACE)
    bind: bool | None = flag(None, rule=_SWITCH)
    replay_endpoint: str | None = flag(None, rule=_PLACE)
    buffer_steps: int = flag(10_000, rule=_COUNT)
    hwm: int = flag(100_000, rule=_COUNT)
    max_queue_size: int = flag(MAX_WAITING, rule=_COUNT)
    topic: str = flag("", rule=_TEXT)
    block_size: int | None = flag(None, rule=_COUNT)

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
