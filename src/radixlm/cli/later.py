"""What commands need only when they run, imported by name then: help must not wait for torch."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # see radixlm/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def named(place: str) -> Any:
    """What `module:name` is, imported now."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def later(place: str) -> Callable[..., Any]:
    """What is at `module:name`, to be called; imported at the first call."""

    def call(*arguments: Any, **options: Any) -> Any:
        return named(place)(*arguments, **options)

    return call
