"""What the formats have in common that write a call's arguments one by one."""

from __future__ import annotations

import json
from abc import abstractmethod

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.events import ToolArguments, ToolCallBegun, ToolCallEnded
from radixlm.text.answers.steps import Steps


class FieldParser(CallParser):
    """Makes the JSON of a call's arguments out of their names and values."""

    # Of the arguments of the call that is being read; None as long as it has not begun.
    _given: set[str] | None = None

    @abstractmethod
    def _fields(self) -> Steps[bool]:
        """Read one call by `_begin`, `_argument` and `_end`; False when it is none."""

    def _call(self, name: str | None = None) -> Steps[bool]:  # noqa: ARG002
        self._given = None
        whole = yield from self._fields()
        if self._ended and not whole:  # it waited for more, and nothing has come
            self._at = len(self._text)
        self._settle(begun=self._given is not None, whole=whole)
        return whole

    def _begin(self, name: str) -> None:
        self._given = set()
        self._events.append(ToolCallBegun(self._begun, self._new_id(), name))

    def _is_new(self, key: str) -> bool:
        """Whether it is a name, and none that was there before."""
        return bool(key) and self._given is not None and key not in self._given

    def _argument(self, key: str, value: str) -> None:
        """value: JSON, or the beginning of it, which `_more` goes on with."""
        self._more(f"{', ' if self._given else '{'}{json.dumps(key, ensure_ascii=False)}: {value}")
        self._given = {key, *(self._given or ())}

    def _more(self, delta: str) -> None:
        if delta:
            self._events.append(ToolArguments(self._begun, delta))

    def _end(self) -> bool:
        self._more("}" if self._given else "{}")
        self._events.append(ToolCallEnded(self._begun))
        return True
