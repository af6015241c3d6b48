"""Messages as clients send them, checked and made ready for the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from pydantic_core import from_json

from radixlm.core.errors import InvalidRequestError
from radixlm.observe.outline import Outline
from radixlm.parsers.style import AnswerStyle
from radixlm.server.pipeline.protocol import ChatMessage, TemplateFields
from radixlm.server.pipeline.tool_fields import ToolCallPart, tools_for_template
from radixlm.text.breakpoints import Place, with_marks
from radixlm.text.chat_template import ChatTemplate, as_plain_text, tools_as_text
from radixlm.text.tokenizer import Tokenizer

_CALLING = ("tool_calls", "reasoning_content", "reasoning")


def to_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Messages for the template. Raises InvalidRequestError that names the field.

    A result must answer a call of the last message that had any, and each only once.
    """
    made = []
    waiting: dict[str, str] = {}
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        if message.role == "tool":
            made.append(_result(message, path, waiting))
            continue
        made.append(_message(message, path))
        waiting = {call.id: call.function.name for call in message.tool_calls or ()}
    return made


def _message(message: ChatMessage, path: str) -> dict[str, Any]:
    if message.role == "function":
        raise InvalidRequestError(
            f"{path}.role 'function' is not supported; send 'tool' with a tool_call_id",
            param=f"{path}.role",
        )
    if message.tool_call_id is not None:
        raise _misplaced(path, "tool_call_id", "tool")
    if message.role != "assistant":
        _check_not_calling(message, path)
    # Templates know the older name only; it means the same.
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
    if message.name is not None:
        plain["name"] = message.name
    thoughts = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if thoughts is not None:
        plain["reasoning_content"] = thoughts
    if not message.tool_calls:
        return {**plain, "content": _content(message, path)}
    calls = [
        _call(call, f"{path}.tool_calls[{place}]") for place, call in enumerate(message.tool_calls)
    ]
    ids = [call.id for call in message.tool_calls]
    for place, name in enumerate(ids):
        if name in ids[:place]:
            where = f"{path}.tool_calls[{place}].id"
            raise InvalidRequestError(f"{where} {name!r:.80} stands twice", param=where)
    return {**plain, "content": _content(message, path), "tool_calls": calls}


def _result(message: ChatMessage, path: str, waiting: dict[str, str]) -> dict[str, Any]:
    _check_not_calling(message, path)
    where = f"{path}.tool_call_id"
    if message.tool_call_id is None:
        raise InvalidRequestError(f"{where} is missing", param=where)
    name = waiting.pop(message.tool_call_id, None)
    if name is None:
        raise InvalidRequestError(
            f"{where} {message.tool_call_id!r:.80} is no call of the assistant's message before "
            "it, or was answered already",
            param=where,
        )
    return {
        "role": "tool",
        "content": _content(message, path),
        "tool_call_id": message.tool_call_id,
        "name": message.name or name,
    }


def _call(call: ToolCallPart, path: str) -> dict[str, Any]:
    """Templates take arguments as a mapping, so that they write them their own way. Of a call that
    was cut off, that has what came whole.
    """
    where = f"{path}.function.arguments"
    try:
        arguments = _read(call.function.arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"{where} is not valid JSON: {error}", param=where) from None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(
            f"{where} must be a JSON object, got {call.function.arguments!r:.80}", param=where
        )
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def _read(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError as error:
        try:
            return from_json(arguments, allow_partial=True)
        except ValueError:
            raise error from None


def _content(message: ChatMessage, path: str) -> str | list[dict[str, str]]:
    if message.content is None:
        given, role = "content" in message.model_fields_set, message.role
        # A user who says nothing is a variable that was never filled, to OpenAI, too.
        if role == "user" or (role != "assistant" and not given):
            wrong = f'is null; say "" if the {role} says nothing' if given else "is missing"
            raise InvalidRequestError(f"{path}.content {wrong}", param=f"{path}.content")
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for place, part in enumerate(message.content):
        if part.type != "text":
            where = f"{path}.content[{place}].type"
            raise InvalidRequestError(f"{where} {part.type!r} is not supported yet", param=where)
        if part.text is None:
            where = f"{path}.content[{place}].text"
            raise InvalidRequestError(f"{where} is missing", param=where)
        texts.append({"type": "text", "text": part.text})
    return texts


def _check_not_calling(message: ChatMessage, path: str) -> None:
    for name in _CALLING:
        if getattr(message, name):
            raise _misplaced(path, name, "assistant")


def _misplaced(path: str, name: str, role: str) -> InvalidRequestError:
    where = f"{path}.{name}"
    return InvalidRequestError(f"{where} is for messages of role {role!r}", param=where)


Json = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rendering:
    """mark: for `as_plain_text`. said, tools: as templates take them.

    Raises InvalidRequestError that names the field.
    """

    messages: InitVar[Sequence[ChatMessage]]
    fields: TemplateFields
    template: ChatTemplate
    style: AnswerStyle
    tokenizer: Tokenizer
    mark: str
    said: Sequence[Json] = field(init=False)
    tools: Sequence[Json] = field(init=False)

    def __post_init__(self, messages: Sequence[ChatMessage]) -> None:
        object.__setattr__(self, "said", to_messages(messages))
        object.__setattr__(self, "tools", tools_for_template(self.fields.tools or ()))

    def render(self, marks: Mapping[Place, str]) -> str:
        """The text, with each mark at the end of its place. Raises InvalidRequestError."""
        plain, known = with_marks(self.said, self.tools, marks)
        if not self.style.calls.described:
            takes_system = self.template.takes_system
            plain, known = tools_as_text(plain, known, takes_system=takes_system), []
        continued = bool(self.fields.continue_final_message)
        return self.template.render(
            as_plain_text(plain, self.tokenizer, self.mark, continue_final_message=continued),
            tools=as_plain_text(known, self.tokenizer, self.mark) or None,
            **self.fields.template_variables(),
        )

    def outline(self, text: str) -> Outline:
        """Where the messages lie in what was rendered."""
        return Outline(text.replace(self.mark, ""), self.said, self.tools)
