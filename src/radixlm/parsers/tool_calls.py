"""What all formats of tool calls share: how a format is described, and how its calls are read."""

from __future__ import annotations

import re
import secrets
import string
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from radixlm import parsers
from radixlm.parsers.steps import StepParser, Steps

_ALPHABET = string.ascii_letters + string.digits
_IN_NAME = re.compile(r"[\w.-]", re.ASCII)


class CallParser(StepParser):
    """Finds calls. What looks like one and is none is text; a call that has begun stays one.

    tools: the schemas of their arguments, by their names.
    new_id: makes an id for each call.
    most: at most this many calls; what comes after them is text.
    """

    def __init__(
        self,
        tools: Mapping[str, Mapping[str, Any]],
        new_id: Callable[[], str],
        *,
        most: int | None = None,
    ) -> None:
        super().__init__()
        self._tools = tools
        self._new_id = new_id
        self._most = most
        self._begun = 0
        self._after_call = False
        # Of the call that is being read: its name, once that is known, and up to where the text
        # went into its events; None before the first of them.
        self._name: str | None = None
        self._sent: int | None = None

    @property
    def _may_call(self) -> bool:
        return self._most is None or self._begun < self._most

    @abstractmethod
    def _read_call(self) -> Steps[bool]:
        """Read one call; give its arguments away with `_more`; False when it is not whole."""

    def _call(self, name: str | None = None) -> Steps[bool]:
        """Read one call from here on; False when it is none, or one that is broken off.

        name: when it is known already; then only the arguments come here.
        """
        self._name, self._sent = name, None
        whole = yield from self._read_call()
        if self._sent is None:
            self._give(self._at)
            return False
        if not whole:
            self._at = self._sent
        self._events.append(parsers.ToolCallEnded(self._begun, whole))
        self._begun += 1
        self._after_call = whole
        self._mark = self._at
        return whole

    def _more(self, delta: str) -> None:
        """Give away more of the arguments, and before that, that the call begins."""
        if self._sent is None:
            self._events.append(
                parsers.ToolCallBegun(self._begun, self._new_id(), self._name or "")
            )
        self._sent = self._at
        if delta:
            self._events.append(parsers.ToolArguments(self._begun, delta))

    def _calls(self, separator: str) -> Steps[bool]:
        """Read calls with `separator` between; False when the last one was none."""
        while True:
            yield from self._skip_spaces()
            if not (yield from self._call()):
                return False
            yield from self._skip_spaces()
            if not self._may_call or not (yield from self._skip(separator)):
                return True

    def _tagged_calls(self, begin: str, end: str) -> Steps[None]:
        """Read calls between tags, any number, with text around."""
        while self._may_call and (yield from self._until(begin)):
            yield from self._skip_spaces()
            if (yield from self._call()):
                yield from self._closed_by(end)
        yield from self._rest()

    def _word(self) -> Steps[str]:
        """Read a name; "" when none comes."""
        return self._while(_IN_NAME.match)

    def _closed_by(self, marker: str) -> Steps[None]:
        """After a call: pass over spaces, and over `marker` if it comes, or was cut off."""
        yield from self._skip_spaces()
        if not (yield from self._skip(marker)) and self._cut:
            rest = self._text[self._at :]
            self._at += len(rest) if marker.startswith(rest) else 0
        self._mark = self._at

    def _give(
        self, end: int, make: Callable[[str], parsers.AnswerEvent] = parsers.TextDelta
    ) -> None:
        if self._after_call:  # spaces that touch a call are dropped
            text = self._text[self._mark : end]
            self._mark += len(text) - len(text.lstrip())
            self._after_call = self._mark == end
        super()._give(end, make)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """How a call looks whose arguments are written one by one:

        before NAME after (FIELD (join FIELD)*)? closes

    key_before, key_after: around an argument's name, in front of its value.
    value_end: what ends a value; texts stand before it without quotes. "": all values are JSON.
    """

    before: str = ""
    after: str
    key_before: str = ""
    key_after: str
    value_end: str = ""
    join: str = ""
    closes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFormat:
    """How answers that call tools look.

    parser: reads them, and more ways of writing than the one that is described here:

        begin opens CALL (join CALL)* closes end (again begin opens CALL closes end)*

    begin, end: markers around calls; "" when the answer must begin with them, or ends with them.
    key: of the arguments, in a call that is an object with `name`. names: instead, the marker that
        stands between a call's name and its arguments. fields: instead, how these are written.
    join, again: what stands between calls, None where there is no such way.
    never_begins: a regex; without a marker, text of which the parser would read calls.
    markers: of these the ones that are special tokens must show in the text.
    id_prefix, id_length: of a call's id: the length is that of its random part.
    described: the model's own template describes the tools; else our text does.
    channels: all of an answer is messages in channels, reasoning among them: see `harmony`.
    """

    parser: type[CallParser]
    begin: str = ""
    opens: str = ""
    key: str = "arguments"
    names: str = ""
    fields: Fields | None = None
    join: str | None = None
    closes: str = ""
    end: str = ""
    again: str | None = None
    never_begins: str = ""
    markers: tuple[str, ...] = ()
    id_prefix: str = "call_"
    id_length: int = 24
    described: bool = True
    channels: bool = False

    def new_id(self) -> str:
        """A fresh id for a call."""
        letters = (secrets.choice(_ALPHABET) for _ in range(self.id_length))
        return self.id_prefix + "".join(letters)
