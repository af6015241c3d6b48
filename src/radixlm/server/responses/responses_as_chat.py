"""Tools in namespaces: to the model each is one function, to the client a name in its namespace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.body import checked, named
from radixlm.server.pipeline.names import renamed, unsealed
from radixlm.server.pipeline.protocol import ChatBody, TokenFields
from radixlm.server.responses.responses_body import (
    LOGPROBS,
    AllowedTools,
    AnyItem,
    AnyTool,
    ChosenTool,
    ContentPart,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    MessageItem,
    NamespaceTool,
    ReasoningItem,
    ResponseBody,
)


class Member(NamedTuple):
    """A tool, and where it stands in the request. description: with its namespace's, told once."""

    tool: FunctionTool
    path: str
    description: str | None
    namespace: str | None = None

    @property
    def name(self) -> str:
        """As the model knows it."""
        return flat_name(self.namespace, self.tool.name)


def flat_name(namespace: str | None, name: str) -> str:
    """What the model calls it, as vLLM has it."""
    return name if namespace is None else f"{namespace}__{name}"


def members_of(tools: Sequence[AnyTool] | None) -> list[Member]:
    """All tools that can be called, in their order."""
    return list(_members(tools or ()))


def callers_names(tools: Sequence[AnyTool] | None) -> Mapping[str, Member]:
    """Those in namespaces, by what the model calls them."""
    return {member.name: member for member in members_of(tools) if member.namespace is not None}


def _members(tools: Sequence[AnyTool]) -> Iterator[Member]:
    for place, tool in enumerate(tools):
        path = f"tools[{place}]"
        if not isinstance(tool, NamespaceTool):
            yield Member(tool, path, tool.description)
            continue
        told = tool.description
        for inner, function in enumerate(tool.tools):
            texts = [text for text in (told, function.description) if text]
            yield Member(function, f"{path}.tools[{inner}]", "\n\n".join(texts) or None, tool.name)
            told = None


Json = dict[str, Any]

_NAMES = {
    r"messages\b.*": "input",
    r"prompt\b": "input",
    r"max(_completion)?_tokens": "max_output_tokens",
    r"response_format\.json_schema": "text.format",
    r"response_format": "text.format",
    r"tool_choice\.allowed_tools\.tools(\[\d+\])\.function": r"tool_choice.tools\1",
    r"tool_choice\.(function|allowed_tools)": "tool_choice",
}
_TEXT_PARTS = ("input_text", "output_text")


def in_own_words(error: InvalidRequestError, body: ResponseBody) -> InvalidRequestError:
    """An error about the chat, told of the response's fields."""
    paths = {
        rf"tools\[{place}\](\.function)?": member.path
        for place, member in enumerate(members_of(body.tools))
    }
    return renamed(error, {**_NAMES, **paths})


def chat_of(body: ResponseBody, earlier: Sequence[AnyItem]) -> ChatBody:
    """The chat that a response continues. Raises InvalidRequestError that names the field.

    earlier: the items of the turns before. How long the answer may be is left open.
    """
    fields = {
        "model": body.model,
        "messages": _messages(body, earlier),
        **{name: getattr(body, name) for name in TokenFields.model_fields},
        "logprobs": True if body.includes(LOGPROBS) else None,
        "top_logprobs": body.top_logprobs,
        "tools": [_tool(member) for member in members_of(body.tools)] or None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort if body.reasoning is not None else None,
        "cache_salt": body.cache_salt,
        "extra_key": body.extra_key,
        "priority": body.priority,
        "cache_report": body.cache_report,
    }
    try:
        return checked(ChatBody, named(fields))
    except InvalidRequestError as error:
        raise in_own_words(error, body) from None


def items_of(body: ResponseBody) -> list[AnyItem]:
    """`input` as items."""
    if isinstance(body.input, str):
        return [MessageItem(role="user", content=body.input)]
    return list(body.input or ())


def _messages(body: ResponseBody, earlier: Sequence[AnyItem]) -> list[Json]:
    thread = _Thread()
    if body.instructions is not None:
        thread.messages.append({"role": "system", "content": body.instructions})
    for item in earlier:
        thread.add(item, "previous_response_id")
    for place, item in enumerate(items_of(body)):
        thread.add(item, f"input[{place}]")
    if not thread.messages:
        raise InvalidRequestError("input is empty", param="input")
    return thread.messages


class _Thread:
    """Puts items together to messages: all that an assistant does in one turn is one message."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self._calls: set[str] = set()

    def add(self, item: AnyItem, path: str) -> None:
        """Take the next item. Raises InvalidRequestError that names the field."""
        match item:
            case MessageItem(role="assistant"):
                self._say(_text(item.content, f"{path}.content", ("refusal",)))
            case MessageItem():
                content = _text(item.content, f"{path}.content")
                self.messages.append({"role": item.role, "content": content})
            case ReasoningItem():
                self._think(_thoughts(item, path))
            case FunctionCallItem():
                self._calls.add(item.call_id)
                name = flat_name(item.namespace, item.name)
                call = {"name": name, "arguments": item.arguments}
                entry = {"id": item.call_id, "type": "function", "function": call}
                self._turn().setdefault("tool_calls", []).append(entry)
            case FunctionOutputItem():
                if item.call_id not in self._calls:
                    raise InvalidRequestError(
                        f"{path}.call_id {item.call_id!r:.80} is of no function call before it",
                        param=f"{path}.call_id",
                    )
                content = _text(item.output, f"{path}.output")
                message = {"role": "tool", "tool_call_id": item.call_id, "content": content}
                self.messages.append(message)

    def _say(self, content: str | list[Json]) -> None:
        """Text may stand before and behind the calls of one turn; a message has one place for it.

        Two texts with nothing between them are two messages.
        """
        turn = self._turn()
        if "content" in turn and "tool_calls" not in turn:
            turn = self._turn(unless=("content",))
        turn["content"] = _joined(turn["content"], content) if "content" in turn else content

    def _think(self, thoughts: str) -> None:
        """Thoughts behind a call are of the same turn, whose results are still to come."""
        turn = self._turn()
        if "tool_calls" not in turn:
            turn = self._turn(unless=("content", "reasoning_content"))
        before = turn.get("reasoning_content")
        turn["reasoning_content"] = thoughts if before is None else f"{before}\n{thoughts}"

    def _turn(self, unless: Sequence[str] = ()) -> Json:
        """The assistant's message that is being put together; another one when it has any of
        these already.
        """
        last = self.messages[-1] if self.messages else {}
        if last.get("role") != "assistant" or any(name in last for name in unless):
            last = {"role": "assistant"}
            self.messages.append(last)
        return last


def _text(
    content: str | Sequence[ContentPart], path: str, more: Sequence[str] = ()
) -> str | list[Json]:
    if isinstance(content, str):
        return content
    texts = [
        _part_text(part, f"{path}[{place}]", (*_TEXT_PARTS, *more))
        for place, part in enumerate(content)
    ]
    marks = [part.prompt_cache_breakpoint for part in content]
    if len(texts) == 1 and marks[0] is None:
        return texts[0]
    return [
        {"type": "text", "text": text, "prompt_cache_breakpoint": mark and mark.model_dump()}
        for text, mark in zip(texts, marks, strict=True)
    ]


def _joined(left: str | list[Json], right: str | list[Json]) -> str | list[Json]:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    return [*_as_parts(left), *_as_parts(right)]


def _as_parts(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _part_text(part: ContentPart, path: str, kinds: Sequence[str]) -> str:
    if part.type not in kinds:
        raise InvalidRequestError(
            f"{path}.type {part.type!r:.80} is not supported here, only {' and '.join(kinds)}",
            param=f"{path}.type",
        )
    field = "refusal" if part.type == "refusal" else "text"
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise InvalidRequestError(f"{path}.{field} is missing", param=f"{path}.{field}")
    return text


def _thoughts(item: ReasoningItem, path: str) -> str:
    if item.content:
        parts, name, kind = item.content, "content", "reasoning_text"
    elif item.encrypted_content:
        text = unsealed(item.encrypted_content)
        if text is None:
            raise InvalidRequestError(
                f"{path}.encrypted_content is not of this server",
                param=f"{path}.encrypted_content",
            )
        return text
    else:
        parts, name, kind = item.summary or [], "summary", "summary_text"
    texts = [_part_text(part, f"{path}.{name}[{i}]", (kind,)) for i, part in enumerate(parts)]
    return "\n".join(texts)


def _tool(member: Member) -> Json:
    function = member.tool.model_dump(exclude_unset=True, exclude={"type"})
    told = {**function, "name": member.name, "description": member.description}
    return {"type": "function", "function": named(told)}


def _tool_choice(choice: str | ChosenTool | AllowedTools | None) -> str | Json | None:
    match choice:
        case ChosenTool():
            return {
                "type": "function",
                "function": {"name": flat_name(choice.namespace, choice.name)},
            }
        case AllowedTools():
            tools = [_tool_choice(tool) for tool in choice.tools]
            allowed = {"mode": choice.mode, "tools": tools}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case _:
            return choice


def _response_format(body: ResponseBody) -> Json | None:
    form = body.text.format if body.text is not None else None
    if form is None:
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    schema = {
        "name": form.name,
        "description": form.description,
        "schema": form.json_schema,
        "strict": form.strict,
    }
    return {"type": "json_schema", "json_schema": named(schema)}
