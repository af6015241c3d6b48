"""Which adapters requests may have, by name, and which are in use."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from radixlm.core.errors import ConfigError, InvalidRequestError, wrong
from radixlm.core.request import GenerateRequest

# Each takes memory for as long as it is loaded.
MOST_ADAPTERS = 256
_NAME = re.compile(r"\w[\w.:/@+-]{0,199}", re.ASCII)


class NamedPath(NamedTuple):
    """An adapter of --lora-paths."""

    name: str
    path: str

    @classmethod
    def of(cls, text: str) -> NamedPath:
        """NAME=PATH, or a path, whose folder's name it takes.

        >>> NamedPath.of("fr=adapters/french"), NamedPath.of("adapters/french/").name
        (NamedPath(name='fr', path='adapters/french'), 'french')
        """
        name, equals, path = text.partition("=")
        return cls(name, path) if equals else cls(Path(text).expanduser().resolve().name, text)


class Shelf(Protocol):
    """Keeps adapters' weights for the runner. put: reads them, and gives the adapter's id."""

    def put(self, name: str, folder: Path, /) -> str: ...
    def drop(self, adapter_id: str, /) -> None: ...


class Adapter(NamedTuple):
    """adapter_id: in the namespaces of its requests; another one for other weights."""

    path: str
    adapter_id: str


class AdapterNames:
    """Those that requests may have."""

    def __init__(self, named: Mapping[str, Adapter] = MappingProxyType({})) -> None:
        self.named = named

    def id_of(self, name: str) -> str:
        """What requests with an adapter have in their namespace. Raises InvalidRequestError."""
        if (found := self.named.get(name)) is not None:
            return found.adapter_id
        known = ", ".join(map(repr, self.named)) or "none is"
        text = f"names an adapter that is not loaded, {name!r:.80}; loaded: {known}"
        raise wrong("lora_path", text)


class Adapters(AdapterNames):
    """Every method may be called from any thread.

    An adapter that is unloaded has no name at once, so that no request can begin with it; its
    weights go when the last one that has it ends.
    """

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self._shelf = shelf
        self._lock, self._loading = threading.RLock(), threading.Lock()
        # Of requests under way, and who waits for their ends.
        self._used: dict[str, str] = {}
        self._leaving: dict[str, Future[None]] = {}

    def load(self, name: str, path: str) -> Adapter:
        """Blocks. Raises InvalidRequestError for a name that can not be or is taken, ConfigError
        and ModelError for what can not be loaded.
        """
        if not _NAME.fullmatch(name):
            text = f"begins with a letter or digit and has no spaces, got {name!r:.80}"
            raise wrong("lora_name", text)
        with self._loading:
            if name in self.named:
                raise wrong("lora_name", f"{name!r} is loaded already; unload that one first")
            if len(self.named) >= MOST_ADAPTERS:
                raise wrong("lora_name", f"{name!r}: {MOST_ADAPTERS} adapters are loaded already")
            found = Adapter(path, self._shelf.put(name, Path(path).expanduser()))
            with self._lock:  # replaced as a whole: it is read without the lock
                self.named = MappingProxyType({**self.named, name: found})
            return found

    def unload(self, name: str) -> Future[None]:
        """Done when the last request with it has ended. Raises InvalidRequestError."""
        with self._lock:
            adapter_id = self.id_of(name)
            rest = {other: its for other, its in self.named.items() if other != name}
            self.named = MappingProxyType(rest)
            future = self._leaving.setdefault(adapter_id, Future())
            self._let_go(adapter_id)
            return future

    def begin(self, requests: Iterable[GenerateRequest]) -> None:
        """They are under way. Raises InvalidRequestError for an adapter that is not loaded."""
        having = {
            request.request_id: request.namespace.adapter_id
            for request in requests
            if request.namespace.adapter_id
        }
        if not having:
            return
        with self._lock:
            for adapter_id in having.values():
                if not self._is_named(adapter_id):
                    name = adapter_id.rpartition("@")[0]
                    text = f"the adapter {name!r:.80} is not loaded any more"
                    raise InvalidRequestError(text, param="lora_path")
            self._used |= having

    def end(self, request_id: str) -> None:
        if request_id in self._used:
            with self._lock:
                self._let_go(self._used.pop(request_id))

    def _let_go(self, adapter_id: str) -> None:
        """Of an adapter that is to go, if nothing has it any more."""
        if adapter_id not in self._leaving or adapter_id in self._used.values():
            return
        if not self._is_named(adapter_id):  # the same may have been loaded anew
            self._shelf.drop(adapter_id)
        self._leaving.pop(adapter_id).set_result(None)

    def _is_named(self, adapter_id: str) -> bool:
        return any(adapter.adapter_id == adapter_id for adapter in self.named.values())


class NoShelf:
    """Where the runner knows no adapters."""

    def put(self, name: str, _folder: Path) -> str:
        raise ConfigError(f"this engine has no adapters, so that {name!r:.80} can not be loaded")

    def drop(self, _adapter_id: str) -> None: ...
