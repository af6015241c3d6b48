"""Calls as Llama 3 writes them."""

from __future__ import annotations

from radixlm.text.answers.calls import CallParser
from radixlm.text.answers.steps import Steps

TAG = "<|python_tag|>"
SEPARATOR = ";"


class LlamaParser(CallParser):
    """The answer begins with `{"name": "f", "parameters": {}}`, or has it after <|python_tag|>.

    Further calls follow after a semicolon.
    Source: https://www.llama.com/docs/model-cards-and-prompt-formats/llama3_1/
    """

    def _run(self) -> Steps[None]:
        yield from self._skip_spaces()
        if (yield from self._peek()) == "{":
            yield from self._calls(SEPARATOR)
        while self._may_call and (yield from self._until(TAG)):
            yield from self._calls(SEPARATOR)
        yield from self._rest()
