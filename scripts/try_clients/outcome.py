"""What came of a client's run, and the errors that it was to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table. numbers: what was measured or compared, by name."""

    client: str
    version: str
    did: str
    numbers: dict[str, float | int | str] = field(default_factory=dict)


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """The error of that kind that `call` raises. Raises AssertionError when there is none."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} came")
