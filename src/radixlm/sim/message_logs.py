"""Logs of requests in text: messages as OpenAI's API has them, or prompts; made into calls as the
server would: rendered by the model's chat template, tokenized.

    a session a line   {"messages": [...], "tools": [...]}     each assistant's message ends a call
    a call a line      {"input": text, "output": text}         a file is one session
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from radixlm.core.errors import ModelError
from radixlm.core.keys import Key
from radixlm.parsers.style import AnswerStyle
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.trace_files import BadLineError, objects, text_of
from radixlm.text.chat_template import ChatTemplate, require_template
from radixlm.text.model_folder import resolve_model
from radixlm.text.tokenizer import Tokenizer

Json = Mapping[str, Any]
# What a stranger's log makes of our readers: wrong types, half characters, depth.
_UNREADABLE = (ModelError, KeyError, TypeError, AttributeError, ValueError, RecursionError)


class MessageTokenizer:
    """Makes text into tokens, for one model. Raises ModelError."""

    def __init__(self, model: str | None) -> None:
        folder = resolve_model(model)
        self._tokenizer = Tokenizer.load(folder)
        self._template = ChatTemplate.load(folder)
        self._style = AnswerStyle() if self._template is None else AnswerStyle.found(self._template)

    def calls(self, messages: Sequence[Json], tools: Sequence[Json], where: str) -> list[TraceCall]:
        """Each assistant's message is the answer to all before it. Raises BadLineError."""
        made = []
        text, tokens = "", self._tokenizer.encode("", add_special_tokens=False)
        try:
            for place, message in enumerate(messages):
                if message["role"] != "assistant" or not place:
                    continue
                text, tokens = self._go_on(text, tokens, messages[:place], tools, opens=True)
                prompt = tokens
                text, tokens = self._go_on(text, tokens, messages[: place + 1], tools, opens=False)
                answer = tokens[prompt.size :]
                if answer.size:
                    made.append(TraceCall(prompt, answer, where=where))
        except BadLineError:
            raise
        except _UNREADABLE as error:
            raise BadLineError("messages can not be rendered", str(error)[:120]) from None
        if not made:
            raise BadLineError("no message is an answer")
        return made

    def call(self, prompt: str, answer: str, where: str) -> TraceCall:
        """Raises BadLineError for an empty prompt or answer."""
        try:
            key = self._tokenizer.encode(prompt)
            answered = self._tokenizer.encode_after(answer)
        except _UNREADABLE as error:
            raise BadLineError("input or output has no tokens", str(error)[:120]) from None
        if not key.size or not answered.size:
            raise BadLineError("input or output is empty")
        return TraceCall(key, answered, where=where)

    def _go_on(
        self,
        text: str,
        tokens: Key,
        messages: Sequence[Json],
        tools: Sequence[Json],
        *,
        opens: bool,
    ) -> tuple[str, Key]:
        """The text of these messages and its tokens: those of what came before are kept, as the
        server remembers the tokens of its answers.
        """
        template = require_template(self._template)
        said = [_read_arguments(message) for message in messages]
        longer = template.render_chat(
            *(said, tools),
            described=self._style.calls.described,
            calls=self._style.call_text,
            add_generation_prompt=opens,
        )
        if not longer.startswith(text):
            return longer, self._tokenizer.encode(longer, add_special_tokens=False)
        last = int(tokens[-1]) if tokens.size else None
        more = self._tokenizer.encode_after(longer[len(text) :], last=last)
        return longer, np.concatenate((tokens, more))


class MessageLog:
    """A file of either kind. think: seconds between an answer and the session's next call."""

    scale = 1

    def __init__(
        self, path: Path, problems: Problems, reader: MessageTokenizer, *, think: float
    ) -> None:
        self._path = path
        self._problems = problems
        self._reader = reader
        self._think = think

    def __iter__(self) -> Iterator[TraceSession]:
        texts: list[TraceCall] = []
        for where, fields in objects(self._path, self._problems):
            try:
                if "messages" not in fields:
                    prompt, answer = text_of(fields, "input"), text_of(fields, "output")
                    texts.append(self._reader.call(prompt, answer, where))
                    continue
                tools = fields.get("tools") or ()
                calls = self._reader.calls(fields["messages"], tools, where)
            except BadLineError as error:
                self._problems.add(where, error.kind, error.detail)
                continue
            yield self._session(calls)
        if texts:
            yield self._session(texts)

    def _session(self, calls: Sequence[TraceCall]) -> TraceSession:
        first, *others = calls
        return TraceSession((first, *(replace(call, gap=self._think) for call in others)))


def _read_arguments(message: Json) -> dict[str, Any]:
    """The message with a content, and with its calls' arguments as templates take them."""
    made = {**message, "content": message.get("content") or ""}
    calls = []
    for call in made.pop("tool_calls", None) or ():
        function = dict(call["function"])
        if isinstance(function["arguments"], str):
            try:
                function["arguments"] = json.loads(function["arguments"] or "{}")
            except ValueError as error:
                raise BadLineError("arguments are no JSON", str(error)) from None
        calls.append({**call, "function": function})
    return {**made, "tool_calls": calls} if calls else made
