"""What only KV events need, loaded when they are switched on."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from radixlm.core.errors import ConfigError
from radixlm.server.kv_events.config import FLAG


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
