"""A conversation of items as the model's template takes it.

Tools in namespaces are to the model a function each, and to the client a name in its namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.parsers.tools import Calling, ToolUse
from radixlm.server.bodies import answer_fields
from radixlm.server.bodies.cache_control import PromptCacheOptions, implicit_wish
from radixlm.server.bodies.conversation import (
    Content,
    Conversation,
    Json,
    Thread,
    new_id,
    read_arguments,
    text_part,
    unsealed,
)
from radixlm.server.http.fields import TEXT_ALONE
from radixlm.server.responses import responses_body as bodies
from radixlm.text.thinking_switch import ThinkingWish

# The request's fields, by what the pipeline and the engine call them.
NAMES: Final = {"prompt": "input", "messages": "input", "max_tokens": "max_output_tokens"}
_TEXT_PARTS = ("input_text", "output_text")
# What the ids of items begin with.
_KINDS = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def new_item_id(kind: str) -> str:
    """A fresh id for an item of this type."""
    return new_id(_KINDS[kind])


def callers_names(tools: Sequence[bodies.AnyTool] | None) -> Mapping[str, tuple[str, str]]:
    """Tools in namespaces, each as its namespace and name, by what the model calls it."""
    return {
        _flat(group.name, tool.name): (group.name, tool.name)
        for group in tools or ()
        if isinstance(group, bodies.NamespaceTool)
        for tool in group.tools
    }


def _flat(namespace: str | None, name: str) -> str:
    """The name by which the model calls a tool, as vLLM has it."""
    return name if namespace is None else f"{namespace}__{name}"


def conversation_of(
    body: bodies.ResponseBody, earlier: Sequence[bodies.AnyItem] = ()
) -> Conversation:
    """The conversation that the model reads. Raises InvalidRequestError that names the field.

    earlier: the items of the turns before, or of its conversation.
    """
    items = _Items(body.prompt_cache_options)
    if body.instructions is not None:
        items.thread.begin("system", content=body.instructions)
    before = "previous_response_id" if body.conversation is None else "conversation"
    for item in earlier:
        items.add(item, before)
    for place, item in enumerate(items_of(body)):
        items.add(item, f"input[{place}]")
    if not len(items.thread):
        raise wrong("input", "is empty")
    return Conversation(
        items.thread.messages(),
        answer_fields.tools_for_template(_specs(body.tools)),
        wishes=[*items.thread.wishes, *implicit_wish(body.prompt_cache_options)],
        thinking=ThinkingWish(effort=None if body.reasoning is None else body.reasoning.effort),
    )


def items_of(body: bodies.ResponseBody) -> list[bodies.AnyItem]:
    """`input` as items."""
    if isinstance(body.input, str):
        return [bodies.MessageItem(role="user", content=body.input)]
    return list(body.input or ())


def params_of(body: bodies.ResponseBody, defaults: Mapping[str, float]) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequestError.

    defaults: of fields that the request leaves open.
    """
    form = None if body.text is None else body.text.format
    grammar = None
    if form is not None and form.type != "text":
        schema = ANY_OBJECT if form.json_schema is None else form.json_schema
        grammar = Grammar.json_schema(schema, param="text.format")
    logprobs = (body.top_logprobs or 0) if body.includes(bodies.LOGPROBS) else None
    limit = body.max_output_tokens
    return body.sampling(defaults, max_tokens=limit, grammar=grammar, logprobs=logprobs)


def use_of(body: bodies.ResponseBody) -> ToolUse:
    """The tools that the answer may call. Raises InvalidRequestError that names the field."""
    specs, several = _specs(body.tools), body.parallel_tool_calls is not False
    match body.tool_choice:
        case bodies.ChosenTool(namespace=namespace, name=name):
            chosen = {"tool_choice.name": _flat(namespace, name)}
            return answer_fields.tool_use(specs, Calling.REQUIRED, chosen, parallel=False)
        case bodies.AllowedTools(mode=mode, tools=tools):
            chosen = {
                f"tool_choice.tools[{place}].name": _flat(tool.namespace, tool.name)
                for place, tool in enumerate(tools)
            }
            return answer_fields.tool_use(specs, Calling(mode), chosen, parallel=several)
        case choice:
            calling = None if choice is None else Calling(choice)
            return answer_fields.tool_use(specs, calling, parallel=several)


def _specs(tools: Sequence[bodies.AnyTool] | None) -> list[answer_fields.ToolSpec]:
    """All tools that can be called. The first one of a namespace has its description, too."""
    specs: list[answer_fields.ToolSpec] = []
    for place, tool in enumerate(tools or ()):
        path = f"tools[{place}]"
        if not isinstance(tool, bodies.NamespaceTool):
            specs.append(_spec(tool, path))
            continue
        for inner, function in enumerate(tool.tools):
            described = "" if inner else tool.description or ""
            specs.append(_spec(function, f"{path}.tools[{inner}]", tool.name, described))
    if len(specs) > answer_fields.MAX_TOOLS:
        text = f"tools: there are {len(specs)}, at most {answer_fields.MAX_TOOLS} are allowed"
        raise InvalidRequestError(text, param="tools")
    return specs


def _spec(
    tool: bodies.FunctionTool, path: str, namespace: str | None = None, more: str = ""
) -> answer_fields.ToolSpec:
    """more: what is said before the tool's own description."""
    name = _flat(namespace, tool.name)
    if len(name) > answer_fields.MAX_NAME:
        long = (
            f"{name!r:.80} is, with its namespace, longer than {answer_fields.MAX_NAME} characters"
        )
        raise wrong(f"{path}.name", long)
    description = tool.description
    if namespace is not None:
        description = "\n\n".join(text for text in (more, description) if text) or None
    return answer_fields.ToolSpec(name, description, tool.parameters, tool.strict, path, path)


class _Items:
    """Puts items together to messages: all that an assistant does in one turn is one message.

    options: of the breakpoints that name no lifetime.
    """

    def __init__(self, options: PromptCacheOptions | None) -> None:
        self.thread = Thread("of no function call")
        self._options = options

    def add(self, item: bodies.AnyItem, path: str) -> None:
        """Take the next item. Raises InvalidRequestError that names the field."""
        match item:
            case bodies.MessageItem(role="assistant"):
                self._say(item.content, f"{path}.content")
            case bodies.MessageItem():
                # Templates know the older name only; it means the same.
                role = "system" if item.role == "developer" else item.role
                self.thread.begin(role, content=_content(item.content, f"{path}.content"))
                self._keep(item.content)
            case bodies.ReasoningItem():
                self._think(_thoughts(item, path))
            case bodies.FunctionCallItem():
                name = _flat(item.namespace, item.name)
                arguments = read_arguments(item.arguments, f"{path}.arguments")
                self._turn()
                self.thread.call(item.call_id, name, arguments, f"{path}.call_id")
            case bodies.FunctionOutputItem():
                content = _content(item.output, f"{path}.output")
                self.thread.result(item.call_id, content, f"{path}.call_id")
                self._keep(item.output)

    def _say(self, said: str | Sequence[bodies.ContentPart], path: str) -> None:
        """Text may stand before and after the calls of one turn; a message has one place for it.

        Two texts with nothing between them are two messages.
        """
        turn = self._turn()
        if "content" in turn and "tool_calls" not in turn:
            turn = self._turn(unless=("content",))
        content, before = _content(said, path, ("refusal",)), turn.get("content")
        if before is None:
            turn["content"] = content
        elif isinstance(before, str) and isinstance(content, str):
            turn["content"] = before + content
        else:
            turn["content"] = [*_as_parts(before), *_as_parts(content)]
        self._keep(said, 0 if before is None else len(_as_parts(before)))

    def _think(self, thoughts: str) -> None:
        """Thoughts after a call are of the same turn, whose results are still to come."""
        turn = self._turn()
        if "tool_calls" not in turn:
            turn = self._turn(unless=("content", "reasoning_content"))
        before = turn.get("reasoning_content")
        turn["reasoning_content"] = thoughts if before is None else f"{before}\n{thoughts}"

    def _turn(self, unless: Sequence[str] = ()) -> Json:
        """The assistant's message that is put together; a new one where it has one of these."""
        last = self.thread.last
        if last.get("role") != "assistant" or any(name in last for name in unless):
            return self.thread.begin("assistant")
        return last

    def _keep(self, said: str | Sequence[bodies.ContentPart], first: int = 0) -> None:
        """Note that what ends with marked parts is to stay cached. first: where they begin in the
        message.
        """
        for place, part in enumerate(() if isinstance(said, str) else said, first):
            if part.prompt_cache_breakpoint is not None:
                ttl = part.prompt_cache_breakpoint.seconds(self._options)
                self.thread.keep("part", place, ttl)


def _content(
    said: str | Sequence[bodies.ContentPart], path: str, more: Sequence[str] = ()
) -> Content:
    """more: kinds of parts that may stand there besides texts."""
    if isinstance(said, str):
        return said
    kinds = (*_TEXT_PARTS, *more)
    texts = [_part_text(part, f"{path}[{place}]", kinds) for place, part in enumerate(said)]
    if len(texts) == 1 and said[0].prompt_cache_breakpoint is None:
        return texts[0]
    return [text_part(text) for text in texts]


def _as_parts(content: Content) -> list[Json]:
    return [text_part(content)] if isinstance(content, str) else content


def _part_text(part: bodies.ContentPart, path: str, kinds: Sequence[str]) -> str:
    if part.type not in kinds:
        known = " and ".join(kinds)
        why = f"is not supported here, only {known}: {TEXT_ALONE}"
        raise wrong(f"{path}.type", f"{part.type!r:.80} {why}")
    field = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, field)
    if text is None:
        raise wrong(f"{path}.{field}", "is missing")
    return text


def _thoughts(item: bodies.ReasoningItem, path: str) -> str:
    if item.content:
        parts, name, kind = item.content, "content", "reasoning_text"
    elif item.encrypted_content:
        if (text := unsealed(item.encrypted_content)) is None:
            raise wrong(f"{path}.encrypted_content", "is not of this server")
        return text
    else:
        parts, name, kind = item.summary or [], "summary", "summary_text"
    texts = [_part_text(part, f"{path}.{name}[{i}]", (kind,)) for i, part in enumerate(parts)]
    return "\n".join(texts)
