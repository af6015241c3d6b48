"""OpenAI's messages and tools as the model's template takes them."""

from __future__ import annotations

from collections.abc import Sequence

from radixlm.core.errors import wrong
from radixlm.parsers.tools import Calling, ToolUse
from radixlm.server.bodies.answer_fields import (
    AllowedToolsPart,
    NamedToolPart,
    ToolPart,
    ToolSpec,
    tool_use,
    tools_for_template,
)
from radixlm.server.bodies.cache_control import PromptCacheOptions, Wish, implicit_wish
from radixlm.server.bodies.conversation import (
    Content,
    Conversation,
    Thread,
    read_arguments,
    text_part,
)
from radixlm.server.bodies.protocol import ChatBody, ChatMessage, TemplateFields
from radixlm.server.http.fields import TEXT_ALONE
from radixlm.text.breakpoints import PrefixEnd

_CALLING = ("tool_calls", "reasoning_content", "reasoning")


def conversation_of(
    messages: Sequence[ChatMessage],
    fields: TemplateFields,
    options: PromptCacheOptions | None = None,
    *,
    add_special_tokens: bool | None = None,
) -> Conversation:
    """Messages as OpenAI has them. Raises InvalidRequestError that names the field.

    What is to be kept is what OpenAI's fields ask for, and Anthropic's `cache_control` in a chat.
    """
    thread = Thread("no call of the assistant's message")
    for place, message in enumerate(messages):
        path = f"messages[{place}]"
        _add(thread, message, path)
        _keep(thread, message, options)
    tools = fields.tools or ()
    in_tools = [
        Wish(PrefixEnd("tool", at), mark.seconds)
        for at, tool in enumerate(tools)
        if (mark := tool.cache_control or tool.function.cache_control) is not None
    ]
    return Conversation(
        thread.messages(),
        tools_for_template(specs_of(tools)),
        fields.template_variables(),
        [*in_tools, *thread.wishes, *implicit_wish(options)],
        add_special_tokens=bool(add_special_tokens),
        thinking=fields.thinking_wish,
    )


def chat_of(body: ChatBody) -> Conversation:
    """The chat that is to be answered. Raises InvalidRequestError that names the field."""
    special = body.add_special_tokens
    options = body.prompt_cache_options
    return conversation_of(body.messages, body, options, add_special_tokens=special)


def _add(thread: Thread, message: ChatMessage, path: str) -> None:
    if message.role == "function":
        instead = "send 'tool' with a tool_call_id"
        raise wrong(f"{path}.role", f"'function' is not supported; {instead}")
    of_assistant = [name for name in _CALLING if getattr(message, name)]
    if of_assistant and message.role != "assistant":
        raise wrong(f"{path}.{of_assistant[0]}", "is for messages of role 'assistant'")
    where = f"{path}.tool_call_id"
    if message.role == "tool":
        if message.tool_call_id is None:
            raise wrong(where, "is missing")
        thread.result(message.tool_call_id, _content(message, path), where, message.name)
        return
    if message.tool_call_id is not None:
        raise wrong(where, "is for messages of role 'tool'")
    # Templates know the older name only; it means the same.
    role = "system" if message.role == "developer" else message.role
    made = thread.begin(role, content=_content(message, path))
    if message.name is not None:
        made["name"] = message.name
    thoughts = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if thoughts is not None:
        made["reasoning_content"] = thoughts
    for place, call in enumerate(message.tool_calls or ()):
        inside = f"{path}.tool_calls[{place}]"
        arguments = read_arguments(call.function.arguments, f"{inside}.function.arguments")
        thread.call(call.id, call.function.name, arguments, f"{inside}.id")


def _keep(thread: Thread, message: ChatMessage, options: PromptCacheOptions | None) -> None:
    parts = message.content if isinstance(message.content, list) else []
    for at, part in enumerate(parts):
        if (mark := part.prompt_cache_breakpoint) is not None:
            thread.keep("part", at, mark.seconds(options))
        elif part.cache_control is not None:
            thread.keep("part", at, part.cache_control.seconds)
    if message.cache_control is not None and message.content:
        thread.keep("part", max(len(parts) - 1, 0), message.cache_control.seconds)


def _content(message: ChatMessage, path: str) -> Content:
    if message.content is None:
        given, role = "content" in message.model_fields_set, message.role
        # A user who says nothing is a variable that was never filled, to OpenAI, too.
        if role == "user" or (role != "assistant" and not given):
            text = f'is null; say "" if the {role} says nothing' if given else "is missing"
            raise wrong(f"{path}.content", text)
        return ""
    if isinstance(message.content, str):
        return message.content
    texts = []
    for place, part in enumerate(message.content):
        where = f"{path}.content[{place}]"
        if part.type != "text":
            raise wrong(f"{where}.type", f"{part.type!r:.80} is not supported: {TEXT_ALONE}")
        if part.text is None:
            raise wrong(f"{where}.text", "is missing")
        texts.append(text_part(part.text))
    return texts


def use_of(body: ChatBody) -> ToolUse:
    """The tools that the answer may call. Raises InvalidRequestError that names the field."""
    specs, several = specs_of(body.tools), body.parallel_tool_calls is not False
    match body.tool_choice:
        case NamedToolPart(function=function):
            chosen = {"tool_choice.function.name": function.name}
            return tool_use(specs, Calling.REQUIRED, chosen, parallel=False)
        case AllowedToolsPart(allowed_tools=allowed):
            chosen = {
                f"tool_choice.allowed_tools.tools[{place}].function.name": part.function.name
                for place, part in enumerate(allowed.tools)
            }
            return tool_use(specs, Calling(allowed.mode), chosen, parallel=several)
        case choice:
            calling = None if choice is None else Calling(choice)
            return tool_use(specs, calling, parallel=several)


def specs_of(tools: Sequence[ToolPart] | None) -> list[ToolSpec]:
    """The tools of a request's field `tools`."""
    return [
        ToolSpec(
            *(tool.function.name, tool.function.description),
            *(tool.function.parameters, tool.function.strict),
            *(f"tools[{place}]", f"tools[{place}].function"),
        )
        for place, tool in enumerate(tools or ())
    ]
