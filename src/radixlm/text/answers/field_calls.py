"""What the formats have in common that write a call's arguments one by one."""

from __future__ import annotations

import json
from abc import abstractmethod

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.events import ToolArguments, ToolCallBegun, ToolCallEnded
from radixlm.text.answers.steps import Steps


class FieldParser(CallParser):
    """Makes the JSON of a call's arguments out of their names and values."""

    # Of the call that is being read: its name, once that is known, the names of its arguments, and
    # up to where the text has been told as its begin.
    _name = ""
    _given: frozenset[str] = frozenset()
    _told: int | None = None

    @abstractmethod
    def _fields(self) -> Steps[bool]:
        """Read one call by `_begin`, `_argument` and `_end`; False when it is none."""

    def _call(self, name: str | None = None) -> Steps[bool]:  # noqa: ARG002
        self._name, self._given, self._told = "", frozenset(), None
        whole = yield from self._fields()
        if self._ended and not whole:  # it waited for more, and nothing has come
            self._at = len(self._text)
            if self._cut and self._name:
                self._more("")
        if not whole and self._told is not None:
            self._at = self._told
        self._settle(begun=self._told is not None, whole=whole)
        return whole

    def _begin(self, name: str) -> None:
        """It is told with the first argument: until then it may be no call."""
        self._name = name

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before."""
        return bool(key) and key not in self._given

    def _argument(self, key: str, value: str) -> None:
        """All up to `_at` is told. value: JSON, or the begin of it, which `_more` goes on with."""
        self._more(f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._given |= {key}

    def _more(self, delta: str) -> None:
        if self._told is None:
            self._events.append(ToolCallBegun(self._begun, self._new_id(), self._name))
        self._told = self._at
        if delta:
            self._events.append(ToolArguments(self._begun, delta))

    def _end(self) -> bool:
        self._more("}" if self._given else "{}")
        self._events.append(ToolCallEnded(self._begun))
        return True
