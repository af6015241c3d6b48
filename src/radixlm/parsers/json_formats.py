"""Calls as plain JSON, for models that were taught no format of their own."""

from __future__ import annotations

from radixlm.parsers.steps import Steps
from radixlm.parsers.tool_calls import CallParser

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


HERMES_BEGIN = "<tool_call>"
END = "</tool_call>"


class HermesParser(CallParser):
    """`<tool_call>{"name": "f", "arguments": {}}</tool_call>`, any number, with text around.

    Source: https://github.com/NousResearch/Hermes-Function-Calling
    """

    def _run(self) -> Steps[None]:
        while self._may_call and (yield from self._until(HERMES_BEGIN)):
            yield from self._skip_spaces()
            if (yield from self._call()):
                yield from self._closed_by(END)
        yield from self._rest()


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


MISTRAL_BEGIN = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"


class MistralParser(CallParser):
    """`[TOOL_CALLS] [{"name": "f", "arguments": {}}, …]`, or, since tokenizer version 11,
    `[TOOL_CALLS]f[ARGS]{}` once for each call.

    Source: https://docs.mistral.ai/guides/tokenization/
    """

    def _run(self) -> Steps[None]:
        while self._may_call and (yield from self._until(MISTRAL_BEGIN)):
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
