"""One call that is being read: what all its readers need, whatever it is written in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from radixlm import parsers
from radixlm.parsers.run import Cursor, Steps

LONGEST_NAME = 200
_NAME = re.compile(r"[\w.:/-]+")


@dataclass(frozen=True, slots=True)
class Offered:
    """tools: the schemas of arguments, by the names of tools that may be called.

    mends: crooked calls are read as they were meant, and unknown tools' calls are calls; else
        only what a grammar allows.
    """

    tools: Mapping[str, Mapping[str, Any]]
    mends: bool = True


class CallEvents:
    """A call's events. That it begins is said with the first of its arguments.

    known_only: it is a call only of a tool that is offered.
    sent: up to where the text went into events; None before the first.
    """

    def __init__(
        self,
        offered: Offered,
        give: Callable[[parsers.AnswerEvent], None],
        number: int,
        new_id: Callable[[], str],
        *,
        known_only: bool,
    ) -> None:
        self.name: str | None = None
        self.sent: int | None = None
        self._offered = offered
        self._give = give
        self._number = number
        self._new_id = new_id
        self._known_only = known_only or not offered.mends

    @property
    def schema(self) -> Mapping[str, Any]:
        return self._offered.tools.get(self.name or "", {})

    def needs_none(self, others: Iterable[str]) -> bool:
        """Whether it calls without arguments. others: keys beside its name, which may be these."""
        return self.name in self._offered.tools and not any(others)

    def names(self, name: str) -> bool:
        """Take `name` as the tool's, if one may be called so."""
        known = name in self._offered.tools
        may_be = len(name) <= LONGEST_NAME and _NAME.fullmatch(name)
        if known or (may_be and not self._known_only):
            self.name = name
        return self.name is not None

    def more(self, delta: str, upto: int) -> None:
        """Give away more of the arguments. upto: where the text that follows them begins."""
        if self.sent is None:
            self._give(parsers.ToolCallBegun(self._number, self._new_id(), self.name or ""))
        self.sent = upto
        if delta:
            self._give(parsers.ToolArguments(self._number, delta))

    def end(self, whole: bool) -> None:
        self._give(parsers.ToolCallEnded(self._number, whole))


class CallReader(Protocol):
    """Reads calls that are written in one way."""

    def read(self, call: CallEvents) -> Steps[bool]:
        """Read a call from the cursor on; False when it is none, or not whole."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The tags around the calls of a format, where it has any.

    ends: what may end a call that lacks its own end; begins: what begins the next one.
    """

    cursor: Cursor
    offered: Offered
    ends: tuple[str, ...]
    begins: tuple[str, ...]
