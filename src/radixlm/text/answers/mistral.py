"""Calls as Mistral's models write them."""

from __future__ import annotations

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.steps import Steps

BEGIN = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class MistralParser(CallParser):
    """`[TOOL_CALLS] [{"name": "f", "arguments": {}}, …]`, or, since tokenizer version 11,
    `[TOOL_CALLS]f[ARGS]{}` once for each call.

    Source: https://docs.mistral.ai/guides/tokenization/
    """

    def _run(self) -> Steps[None]:
        while self._may_call and (yield from self._until(BEGIN)):
            yield from self._skip_spaces()
            if (yield from self._skip("[")):
                if (yield from self._calls(",")):
                    yield from self._closed_by("]")
            else:
                yield from self._named_call()
        yield from self._rest()

    def _named_call(self) -> Steps[None]:
        name = yield from self._word()
        if (yield from self._skip(CALL_ID)):
            yield from self._word()
        yield from self._skip(ARGUMENTS)
        if name in self._tools:
            yield from self._call(name)
        else:
            self._give(self._at)
