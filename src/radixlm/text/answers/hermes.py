"""Calls as Hermes and Qwen write them."""

from __future__ import annotations

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.steps import Steps

BEGIN = "<tool_call>"
END = "</tool_call>"


class HermesParser(CallParser):
    """`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, any number, with text around.

    Source: https://github.com/NousResearch/Hermes-Function-Calling
    """

    def _run(self) -> Steps[None]:
        while self._may_call and (yield from self._until(BEGIN)):
            yield from self._skip_spaces()
            if (yield from self._call()):
                yield from self._closed_by(END)
        yield from self._rest()
