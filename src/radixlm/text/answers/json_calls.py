"""Calls as plain JSON, for models that were taught no format of their own."""

from __future__ import annotations

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.steps import Steps

_FENCE = "```"
_FENCE_OF_JSON = "```json"


class JsonParser(CallParser):
    """The answer begins with `{"name": "f", "arguments": {}}`, or several one below the other.

    They may be a list, or stand in a fence, as models like to write it.
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        fenced = (yield from self._skip(_FENCE_OF_JSON)) or (yield from self._skip(_FENCE))
        yield from self._skip_spaces()
        if (yield from self._skip("[")):
            called = yield from self._calls(",")
            if called:
                yield from self._closed_by("]")
        else:
            called = yield from self._lines()
        if called and fenced:
            yield from self._closed_by(_FENCE)
        yield from self._rest()

    def _lines(self) -> Steps[bool]:
        """Read one call below the other; False when the last one was none."""
        while (yield from self._call()):
            yield from self._skip_spaces()
            if not self._may_call or (yield from self._peek()) != "{":
                return True
        return False
