"""A chat answer is the same whole and streamed, wherever it ends."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.parsers.style import AnswerStyle
from radixlm.parsers.tools import Calling, Tool, ToolUse
from radixlm.server.bodies.protocol import ChatBody
from radixlm.server.openai.chat_writer import ChatWriter
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask
from radixlm.server.pipeline.generation import Generation
from radixlm.text.detokenizer import StopScanner
from radixlm.text.tokenizer import Tokenizer
from tests import chat_templates
from tests.server_support import events_of, service_with
from tests.text_samples import byte_level

TOKENIZER = Tokenizer(byte_level(), {})
CALL = '{"name": "look", "arguments": {"at": "Bern"}}'
ANSWERS = {
    "hermes": (chat_templates.HERMES, f"So.\n<tool_call>\n{CALL}\n</tool_call>"),
    "mistral": (chat_templates.MISTRAL, f"[TOOL_CALLS] [{CALL}, {CALL}]"),
    "mistral_named": (chat_templates.MISTRAL_NAMED, '[TOOL_CALLS]look[ARGS]{"at": "Bern"}'),
    "pythonic": (chat_templates.PYTHONIC, '[look(at="Bern"), look(at="Basel")]'),
    "qwen3_coder": (
        chat_templates.QWEN_CODER,
        "<tool_call>\n<function=look>\n<parameter=at>\nBern\n</parameter>\n</function>\n</tool_call>",
    ),
    "json": ("{{ messages }}", CALL),
    "thoughts": (
        chat_templates.THINKING,
        f"<think>\nHm.\n</think>\n\n<tool_call>{CALL}</tool_call>",
    ),
}
style_of = functools.cache(AnswerStyle.of)  # it renders the template many times
BODY = ChatBody.model_validate({"messages": [{"role": "user", "content": "a"}]})


def writer_for(template: str, *, stream: bool) -> ChatWriter:
    schema = {"type": "object", "properties": {"at": {"type": "string"}}}
    use = ToolUse((Tool("look", schema),), Calling.AUTO)
    style = style_of(template)
    generation = Generation("r", [GenerateRequest("r-0", as_key([1]), SamplingParams())])
    task = ChatTask(generation, ChatPrompt("", as_key([1])), lambda: style.parser(use, ""))
    body = BODY.model_copy(update={"stream": stream})
    return ChatWriter(service_with(TOKENIZER), task, body)


def streamed(template: str, outputs: list[RequestOutput]) -> dict[str, Any]:
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in events_of(writer_for(template, stream=True), outputs):
        choice = chunk["choices"][0]
        said["content"] += choice["delta"].get("content") or ""
        said["reasoning"] += choice["delta"].get("reasoning_content", "")
        said["finish"] = choice["finish_reason"]
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                said["calls"].append([call["function"]["name"], ""])
            else:
                said["calls"][call["index"]][1] += call["function"]["arguments"]
    return said


def whole(template: str, outputs: list[RequestOutput]) -> dict[str, Any]:
    writer = writer_for(template, stream=False)
    assert not events_of(writer, outputs)
    [choice] = json.loads(writer.whole())["choices"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": [[call["name"], call["arguments"]] for call in calls],
        "finish": choice["finish_reason"],
    }


def cut(text: str, reason: FinishReason, stop: str | None = None) -> list[RequestOutput]:
    last = RequestOutput("r", finish_reason=reason, matched_stop=stop)
    return [*(RequestOutput("r", character, (1,)) for character in text), last]


@pytest.mark.parametrize("form", ANSWERS)
def test_wherever_an_answer_is_cut_off(form):
    template, script = ANSWERS[form]
    called = set()
    for end in range(len(script)):
        stop = script[end : end + 3]
        hit = StopScanner((stop,)).feed(script)
        assert hit is not None
        text = script[: hit.end - len(stop)]
        for outputs in (cut(text, FinishReason.STOP, stop), cut(text, FinishReason.LENGTH)):
            said = streamed(template, outputs)
            assert said == whole(template, outputs)
            # What is told as a call is not told again as text.
            assert not (said["calls"] and "Bern" in said["content"])
            called.add(bool(said["calls"]))
    assert called == {True, False}


@pytest.mark.parametrize("form", ANSWERS)
def test_a_stop_string_cuts_a_call_as_a_limit_does(form):
    template, script = ANSWERS[form]
    text = script[: script.index("Bern") + 2]
    stopped = whole(template, cut(text, FinishReason.STOP, "rn"))
    limited = whole(template, cut(text, FinishReason.LENGTH))
    assert {**stopped, "finish": "length"} == limited
    assert stopped["finish"] == "stop"
    assert [name for name, _ in stopped["calls"]] == ["look"]
