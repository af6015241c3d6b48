"""The adapters that requests may have, by name, and those that are in use."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from radixlm.core.errors import ConfigError, InvalidRequestError, wrong
from radixlm.core.futures import settle
from radixlm.core.request import GenerateRequest
from radixlm.formats.files import given_path

# Each takes memory for as long as it is loaded.
MOST_ADAPTERS = 256
_NAME = re.compile(r"\w[\w.:/@+-]{0,199}", re.ASCII)


class NamedPath(NamedTuple):
    """An adapter of --lora-paths."""

    name: str
    path: str

    @classmethod
    def of(cls, text: str) -> NamedPath:
        """NAME=PATH, or a path, whose folder's name it takes. Raises ConfigError for what is none.

        >>> NamedPath.of("fr=adapters/french"), NamedPath.of("adapters/french/").name
        (NamedPath(name='fr', path='adapters/french'), 'french')
        """
        name, equals, path = text.partition("=")
        return cls(name, path) if equals else cls(given_path(text).resolve().name, text)


class Shelf(Protocol):
    """Keeps adapters' weights for the runner. read: an adapter's id and its weights, from a folder;
    may take long. put, drop: quick.
    """

    def read(self, name: str, folder: Path, /) -> tuple[str, Any]: ...
    def put(self, adapter_id: str, weights: Any, /) -> None: ...
    def drop(self, adapter_id: str, /) -> None: ...


class Adapter(NamedTuple):
    """adapter_id: in the namespaces of its requests; another one for other weights."""

    path: str
    adapter_id: str


class AdapterNames:
    """The names of adapters that requests may have."""

    def __init__(self, named: Mapping[str, Adapter] = MappingProxyType({})) -> None:
        self.named = named

    def id_of(self, name: str) -> str:
        """The id that requests with an adapter have in their namespace. Raises
        InvalidRequestError.
        """
        if (found := self.named.get(name)) is not None:
            return found.adapter_id
        known = ", ".join(map(repr, self.named)) or "none is"
        text = f"names an adapter that is not loaded, {name!r:.80}; loaded: {known}"
        raise wrong("lora_path", text)


class AdapterRead(NamedTuple):
    """An adapter that was read, and that requests may not have yet."""

    name: str
    adapter: Adapter
    weights: Any


@dataclass(slots=True, eq=False)
class _Life:
    """An adapter from its loading to the end of the last request with it. over: set when it is
    unloaded, done at that end.
    """

    adapter_id: str
    requests: int = 0
    over: Future[None] | None = None


class Adapters(AdapterNames):
    """Every method may be called from any thread.

    An adapter that is unloaded has no name at once, so that no request can begin with it; its
    weights go when the last one that has it ends, whether that is waited for or not. The same
    adapter may be loaded again before: that is another life of it, with requests of its own.
    """

    def __init__(self, shelf: Shelf) -> None:
        super().__init__()
        self._shelf: Shelf = shelf
        self._lock = threading.RLock()
        # Those that are loaded, by id; of each request under way; how many of an id go on.
        self._lives: dict[str, _Life] = {}
        self._used: dict[str, _Life] = {}
        self._going: Counter[str] = Counter()

    def load(self, name: str, path: str) -> None:
        """Read and put. Raises what they raise."""
        self.put(self.read(name, path))

    def read(self, name: str, path: str) -> AdapterRead:
        """Blocks, while others may do the same. Raises InvalidRequestError for a name that can not
        be or is taken, ConfigError and ModelError for what can not be loaded.
        """
        if not _NAME.fullmatch(name):
            text = f"begins with a letter or digit and has no spaces, got {name!r:.80}"
            raise wrong("lora_name", text)
        self._check_new(name)
        adapter_id, weights = self._shelf.read(name, given_path(path))
        return AdapterRead(name, Adapter(path, adapter_id), weights)

    def put(self, found: AdapterRead) -> None:
        """Requests may have it from now on. Raises InvalidRequestError for a name that is taken."""
        name, adapter, weights = found
        with self._lock:
            self._check_new(name)
            self._shelf.put(adapter.adapter_id, weights)
            self._lives[adapter.adapter_id] = _Life(adapter.adapter_id)
            # Replaced as a whole: it is read without the lock.
            self.named = MappingProxyType({**self.named, name: adapter})

    def unload(self, name: str) -> Future[None]:
        """Done when the last request that has it now has ended. Cancelling that ends the wait, and
        nothing else. Raises InvalidRequestError.
        """
        with self._lock:
            adapter_id = self.id_of(name)
            rest = {other: its for other, its in self.named.items() if other != name}
            self.named = MappingProxyType(rest)
            life = self._lives.pop(adapter_id)
            life.over = over = Future[None]()
            self._going[adapter_id] += 1
            self._end_if_over(life)
            return over

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
                if adapter_id not in self._lives:
                    name = adapter_id.rpartition("@")[0]
                    text = f"the adapter {name!r:.80} is not loaded any more"
                    raise InvalidRequestError(text, param="lora_path")
            for request_id, adapter_id in having.items():
                life = self._used[request_id] = self._lives[adapter_id]
                life.requests += 1

    def end(self, request_id: str) -> None:
        """O(1): the engine's thread calls it."""
        if request_id in self._used:
            with self._lock:
                life = self._used.pop(request_id)
                life.requests -= 1
                self._end_if_over(life)

    def close(self) -> None:
        """The engine is gone: so may be the model, which the shelf holds."""
        self._shelf = NoShelf()

    def _end_if_over(self, life: _Life) -> None:
        if life.over is None or life.requests:
            return
        name = life.adapter_id
        self._going -= Counter([name])  # drops what is 0
        if name not in self._lives and name not in self._going:
            self._shelf.drop(name)
        settle(life.over, None)

    def _check_new(self, name: str) -> None:
        if name in self.named:
            raise wrong("lora_name", f"{name!r} is loaded already; unload that one first")
        if len(self.named) >= MOST_ADAPTERS:
            raise wrong("lora_name", f"{name!r}: {MOST_ADAPTERS} adapters are loaded already")


class NoShelf:
    """A shelf of a runner that knows no adapters."""

    def read(self, name: str, _folder: Path) -> tuple[str, None]:
        raise ConfigError(f"this engine has no adapters, so that {name!r:.80} can not be loaded")

    def put(self, _adapter_id: str, _weights: None) -> None: ...
    def drop(self, _adapter_id: str) -> None: ...
