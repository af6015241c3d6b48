"""A conversation of blocks as a chat: the same template, tokenizer and parsers answer it."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.server.anthropic.messages_blocks import (
    AnyBlock,
    Block,
    DocumentBlock,
    RedactedThinkingBlock,
    SearchResultBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from radixlm.server.anthropic.messages_body import MessagesBody, PromptBody, ToolChoice
from radixlm.server.anthropic.messages_edits import At
from radixlm.server.http.body import checked, named
from radixlm.server.pipeline.cache_control import Wish
from radixlm.server.pipeline.names import renamed, unsealed
from radixlm.server.pipeline.protocol import ChatBody
from radixlm.text.breakpoints import Place

Json = dict[str, Any]

_NAMES = {
    r"messages\b.*": "messages",
    r"prompt\b": "messages",
    r"stop\b": "stop_sequences",
    r"response_format": "output_config.format",
    r"tools(\[\d+\])\.function\.parameters": r"tools\1.input_schema",
    r"tools(\[\d+\])\.function": r"tools\1",
    r"tool_choice\.function": "tool_choice",
}
# In Anthropic's words, and in OpenAI's.
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def in_own_words(error: InvalidRequestError) -> InvalidRequestError:
    """An error about the chat, told of the message's fields."""
    return renamed(error, _NAMES)


class Conversation(NamedTuple):
    """A chat, and what its cache_control marks ask to be kept of it.

    edited: the messages that edits of the context changed.
    """

    chat: ChatBody
    wishes: Sequence[Wish]
    edited: frozenset[int] = frozenset()


def chat_of(body: PromptBody, edited: Collection[At] = ()) -> Conversation:
    """The chat that is to be answered. Raises InvalidRequestError that names the field.

    How long the answer may be is left open. edited: the blocks that an edit changed.
    """
    thread = _thread(body, edited)
    messages = thread.messages
    fields: Json = {
        "model": body.model,
        "messages": messages,
        "continue_final_message": True if messages[-1]["role"] == "assistant" else None,
        "tools": [tool.in_chat for tool in body.tools or ()] or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": _parallel(body.tool_choice),
        "response_format": _response_format(body),
        "reasoning_effort": body.output_config.effort if body.output_config is not None else None,
        "chat_template_kwargs": _variables(body) or None,
    }
    if isinstance(body, MessagesBody):
        fields |= {
            "stop": body.stop_sequences or None,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
            "cache_salt": body.cache_salt,
            "extra_key": body.extra_key,
            "priority": body.priority,
            "cache_report": body.cache_report,
        }
    try:
        chat = checked(ChatBody, named(fields))
    except InvalidRequestError as error:
        raise in_own_words(error) from None
    return Conversation(chat, _wishes(body, thread), frozenset(thread.edited))


def _wishes(body: PromptBody, thread: _Thread) -> list[Wish]:
    tools = [
        Wish(Place("tool", place), tool.cache_control.seconds)
        for place, tool in enumerate(body.tools or ())
        if tool.cache_control is not None
    ]
    wishes = tools + thread.wishes
    if body.cache_control is not None and thread.last is not None:
        wishes.append(Wish(thread.last, body.cache_control.seconds))
    return wishes


def _thread(body: PromptBody, edited: Collection[At]) -> _Thread:
    thread = _Thread({f"messages[{message}].content[{place}]" for message, place in edited})
    if body.system:
        thread.add("system", body.system, "system")
    for place, message in enumerate(body.messages):
        thread.add(message.role, message.content, f"messages[{place}].content")
    for made in thread.messages:
        if "content" in made or "tool_calls" not in made:
            made["content"] = _joined(made.get("content", ""))
    return thread


class _Thread:
    """Puts blocks together to messages. Turns of one role that follow each other are one.

    wishes: what is to be kept. last: where the last block came to stand that may be marked.
    changed: paths of blocks that were edited; edited: the messages that they came to stand in.
    """

    def __init__(self, changed: Collection[str]) -> None:
        self.edited: set[int] = set()
        self._changed = changed
        self.messages: list[Json] = []
        self.wishes: list[Wish] = []
        self.last: Place | None = None
        self._calls: set[str] = set()

    def add(self, role: str, blocks: str | Sequence[AnyBlock], path: str) -> None:
        """Take the next message's content. Raises InvalidRequestError that names the field."""
        if isinstance(blocks, str):
            blocks = [TextBlock(type="text", text=blocks)]
        if not blocks:
            raise InvalidRequestError(f"{path} is empty", param=path)
        for place, block in enumerate(blocks):
            where = f"{path}[{place}]"
            self._add_block(role, block, where)
            if where in self._changed:
                self.edited.add(len(self.messages) - 1)

    def _add_block(self, role: str, block: AnyBlock, path: str) -> None:
        match block:
            case TextBlock() | DocumentBlock() | SearchResultBlock():
                part = {"type": "text", "text": block.text}
                parts = self._turn(role).setdefault("content", [])
                parts.append(part)
                self._stands("part", len(parts) - 1, block)
            case ThinkingBlock():
                self._only(role, "assistant", path, block.type)
                turn = self._turn(role)
                before = turn.get("reasoning_content", "")
                turn["reasoning_content"] = before + _thoughts(block)
            case RedactedThinkingBlock():
                self._only(role, "assistant", path, block.type)
                self._turn(role)
            case ToolUseBlock():
                self._only(role, "assistant", path, block.type)
                self._calls.add(block.id)
                arguments = json.dumps(block.input, ensure_ascii=False)
                call = {"name": block.name, "arguments": arguments}
                entry = {"id": block.id, "type": "function", "function": call}
                calls = self._turn(role).setdefault("tool_calls", [])
                calls.append(entry)
                self._stands("call", len(calls) - 1, block)
            case ToolResultBlock():
                self._only(role, "user", path, block.type)
                self._add_result(block, path)

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        if block.tool_use_id not in self._calls:
            raise InvalidRequestError(
                f"{path}.tool_use_id {block.tool_use_id!r:.80} is of no tool_use block before it",
                param=f"{path}.tool_use_id",
            )
        content: str | list[Json] = (
            block.content
            if isinstance(block.content, str)
            else [{"type": "text", "text": part.text} for part in block.content or ()]
        )
        if block.is_error:  # a chat has no other place to say so
            content = f"Error: {_plain(content)}"
        message = {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}
        self.messages.append(message)
        parts = block.content if isinstance(content, list) and block.content else [block]
        for place, part in enumerate(parts):
            if isinstance(part, Block) and part is not block:
                self._stands("part", place, part)
        self._stands("part", len(parts) - 1, block)

    def _stands(self, kind: Literal["part", "call"], at: int, block: Block) -> None:
        """A block is the last of the messages so far, at this place."""
        self.last = Place(kind, at, len(self.messages) - 1)
        if block.mark is not None:
            self.wishes.append(Wish(self.last, block.mark.seconds))

    def _turn(self, role: str) -> Json:
        """The message of this role that is being put together."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role})
        return self.messages[-1]

    @staticmethod
    def _only(role: str, wanted: str, path: str, kind: str) -> None:
        if role != wanted:
            raise InvalidRequestError(
                f"{path}: a {kind} block is for messages of role {wanted!r}", param=f"{path}.type"
            )


def _thoughts(block: ThinkingBlock) -> str:
    if block.thinking or block.signature is None:
        return block.thinking
    return unsealed(block.signature) or ""


def _joined(content: str | list[Json]) -> str | list[Json]:
    """A single text as it is, and none as an empty one."""
    if isinstance(content, list) and len(content) == 1:
        return str(content[0]["text"])
    return content or ""


def _plain(content: str | list[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content)


def _tool_choice(choice: ToolChoice | None) -> str | Json | None:
    if choice is None:
        return None
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _parallel(choice: ToolChoice | None) -> bool | None:
    if choice is None or choice.disable_parallel_tool_use is None:
        return None
    return not choice.disable_parallel_tool_use


def _response_format(body: PromptBody) -> Json | None:
    form = body.output_config.format if body.output_config is not None else None
    if form is None:
        return None
    schema = {"name": "answer", "schema": form.json_schema, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _variables(body: PromptBody) -> Json:
    if body.thinking is None or body.thinking.type == "adaptive":
        return {}
    return {"enable_thinking": body.thinking.type == "enabled"}
