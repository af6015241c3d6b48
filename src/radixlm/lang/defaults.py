"""Which backend programs run on that name none."""

from __future__ import annotations

from typing import Any

from radixlm.core.errors import ConfigError
from radixlm.lang.backend import Backend
from radixlm.lang.engine_backend import AnyEngine, EngineBackend


class _Default:
    backend: Backend | None = None


_DEFAULT = _Default()


def set_default_backend(backend: Any) -> None:
    """Programs run on it from now on: an Engine, an AsyncEngine, a RuntimeEndpoint, an OpenAI.

    Raises ConfigError for anything else.
    """
    _DEFAULT.backend = as_backend(backend)


def flush_cache(backend: Any = None) -> bool:
    """Drop what the backend has cached; whether all of it went."""
    return as_backend(backend).flush_cache()


def as_backend(backend: Any) -> Backend:
    """What programs can run on; None is the default. Raises ConfigError."""
    if backend is None:
        if _DEFAULT.backend is None:
            raise ConfigError(
                "no backend: call set_default_backend(...), or give backend=, with "
                "an Engine, RuntimeEndpoint(url) or OpenAI(model)"
            )
        return _DEFAULT.backend
    if isinstance(backend, AnyEngine):
        return EngineBackend(backend)
    if hasattr(backend, "session") and hasattr(backend, "flush_cache"):
        made: Backend = backend
        return made
    raise ConfigError(f"{backend!r:.80} is no backend: give an Engine, RuntimeEndpoint or OpenAI")
