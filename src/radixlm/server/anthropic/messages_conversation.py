"""A conversation of blocks as the model's template takes it.

Tools that Anthropic defined come without a schema: its models were taught them, others need one.
Source: https://docs.claude.com/en/docs/agents-and-tools/tool-use.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.core.grammar import Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.parsers.tools import Calling, ToolUse
from radixlm.server.anthropic import messages_blocks as blocks
from radixlm.server.anthropic import messages_body as bodies
from radixlm.server.bodies.answer_fields import ToolSpec, tool_use, tools_for_template
from radixlm.server.bodies.cache_control import Wish
from radixlm.server.bodies.conversation import (
    Content,
    Conversation,
    Json,
    Thread,
    text_part,
    unsealed,
)
from radixlm.server.http.body import named
from radixlm.text.breakpoints import PrefixEnd
from radixlm.text.thinking_switch import ThinkingWish

# The request's fields, by what the pipeline and the engine call them.
NAMES: Final = {"prompt": "messages", "stop": "stop_sequences"}
_CALLING = {"auto": Calling.AUTO, "any": Calling.REQUIRED, "none": Calling.NONE}
_THINKS = {"enabled": True, "disabled": False, "adaptive": None}
_COMMANDS = ("view", "create", "str_replace", "insert")
_TEXT: Json = {"type": "string"}
_LINE: Json = {"type": "integer"}
_BASH: Json = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run."},
        "restart": {"type": "boolean", "description": "Restart the shell; needs no command."},
    },
}


def conversation_of(body: bodies.PromptBody, changed: Collection[blocks.At] = ()) -> Conversation:
    """The conversation that the model reads. Raises InvalidRequestError that names the field.

    What is to be kept is what cache_control marks. changed: the blocks that an edit changed.
    """
    turns = _Turns({f"messages[{message}].content[{place}]" for message, place in changed})
    if body.system:
        turns.add("system", body.system, "system")
    for place, message in enumerate(body.messages):
        turns.add(message.role, message.content, f"messages[{place}].content")
    wishes = [
        Wish(PrefixEnd("tool", place), tool.cache_control.seconds)
        for place, tool in enumerate(body.tools or ())
        if tool.cache_control is not None
    ]
    wishes += turns.thread.wishes
    if body.cache_control is not None and turns.last is not None:
        wishes.append(Wish(turns.last, body.cache_control.seconds))
    return Conversation(
        turns.thread.messages(),
        tools_for_template(_specs(body.tools)),
        {"continue_final_message": turns.thread.last["role"] == "assistant"},
        wishes,
        turns.edited,
        thinking=_thinking(body),
    )


def _thinking(body: bodies.PromptBody) -> ThinkingWish:
    effort = None if body.output_config is None else body.output_config.effort
    if body.thinking is None:
        return ThinkingWish(effort=effort)
    return ThinkingWish(_THINKS[body.thinking.type], effort, body.thinking.budget_tokens)


def params_of(body: bodies.MessagesBody, defaults: Mapping[str, float]) -> SamplingParams:
    """The engine's parameters. Raises InvalidRequestError.

    defaults: of fields that the request leaves open.
    """
    form = None if body.output_config is None else body.output_config.format
    param = "output_format" if form is None else "output_config.format"
    form, grammar = form or body.output_format, None
    if form is not None:
        grammar = Grammar.json_schema(form.json_schema, param=param)
    given = named({name: getattr(body, name) for name in ("temperature", "top_p", "top_k")})
    stop = tuple(body.stop_sequences or ())
    limit = max(body.max_tokens, 1)
    return SamplingParams(**{**defaults, **given}, max_tokens=limit, stop=stop, grammar=grammar)


def use_of(body: bodies.PromptBody) -> ToolUse:
    """The tools that the answer may call. Raises InvalidRequestError that names the field."""
    specs, choice = _specs(body.tools), body.tool_choice
    if choice is None:
        return tool_use(specs, None, parallel=True)
    if choice.name is not None:
        chosen = {"tool_choice.name": choice.name}
        return tool_use(specs, Calling.REQUIRED, chosen, parallel=False)
    return tool_use(specs, _CALLING[choice.type], parallel=not choice.disable_parallel_tool_use)


class _Turns:
    """Puts blocks together to messages. Turns of one role that follow each other are one.

    last: where the last block came to stand that may be marked. changed: paths of blocks that were
    edited; edited: the messages that they came to stand in.
    """

    def __init__(self, changed: Collection[str]) -> None:
        self.thread = Thread("of no tool_use block")
        self.edited: set[int] = set()
        self.last: PrefixEnd | None = None
        self._changed = changed

    def add(self, role: str, said: str | Sequence[blocks.AnyBlock], path: str) -> None:
        """Take the next message's content. Raises InvalidRequestError that names the field."""
        if isinstance(said, str):
            said = [blocks.TextBlock(type="text", text=said)]
        if not said:
            raise wrong(path, "is empty")
        for place, block in enumerate(said):
            where = f"{path}[{place}]"
            self._add_block(role, block, where)
            if where in self._changed:
                self.edited.add(len(self.thread) - 1)

    def _add_block(self, role: str, block: blocks.AnyBlock, path: str) -> None:
        match block:
            case blocks.TextBlock() | blocks.DocumentBlock() | blocks.SearchResultBlock():
                parts = self._turn(role).setdefault("content", [])
                parts.append(text_part(block.text))
                self._stands("part", len(parts) - 1, block)
            case blocks.ThinkingBlock() | blocks.RedactedThinkingBlock():
                _only(role, "assistant", path, block.type)
                turn = self._turn(role)
                if isinstance(block, blocks.ThinkingBlock):
                    thoughts = block.thinking or unsealed(block.signature or "") or ""
                    turn["reasoning_content"] = turn.get("reasoning_content", "") + thoughts
            case blocks.ToolUseBlock():
                _only(role, "assistant", path, block.type)
                turn = self._turn(role)
                self.thread.call(block.id, block.name, block.input, f"{path}.id")
                self._stands("call", len(turn["tool_calls"]) - 1, block)
            case blocks.ToolResultBlock():
                _only(role, "user", path, block.type)
                content = _result(block)
                self.thread.result(block.tool_use_id, content, f"{path}.tool_use_id")
                parts = block.content if isinstance(content, list) else None
                for place, part in enumerate(parts or ()):
                    if isinstance(part, blocks.ContentBlock):
                        self._stands("part", place, part)
                self._stands("part", max(len(parts or ()) - 1, 0), block)

    def _stands(self, kind: Literal["part", "call"], at: int, block: blocks.ContentBlock) -> None:
        """A block is the last of the messages so far, at this place."""
        self.last = PrefixEnd(kind, at, len(self.thread) - 1)
        if block.mark is not None:
            self.thread.keep(kind, at, block.mark.seconds)

    def _turn(self, role: str) -> Json:
        """The message of this role that is being put together."""
        last = self.thread.last
        return last if last.get("role") == role else self.thread.begin(role)


def _only(role: str, wanted: str, path: str, kind: str) -> None:
    if role != wanted:
        raise InvalidRequestError(
            f"{path}: a {kind} block is for messages of role {wanted!r}", param=f"{path}.type"
        )


def _result(block: blocks.ToolResultBlock) -> Content:
    said = [] if block.content is None else block.content
    texts = [said] if isinstance(said, str) else [part.text for part in said]
    if block.is_error:  # a chat has no other place to say so
        return "Error: " + "\n".join(texts)
    return said if isinstance(said, str) else [text_part(each) for each in texts]


def _specs(tools: Sequence[bodies.ClientTool] | None) -> list[ToolSpec]:
    return [_spec(tool, f"tools[{place}]") for place, tool in enumerate(tools or ())]


def _spec(tool: bodies.ClientTool, path: str) -> ToolSpec:
    text: str | None
    match tool:
        case bodies.CustomTool():
            text, schema = tool.description, tool.input_schema
        case bodies.BashTool():
            text = "Run a command in a bash shell, which goes on from call to call."
            schema = _BASH
        case bodies.OldEditorTool():
            text = "View and edit text files. undo_edit takes back the last edit of the file."
            schema = _editor((*_COMMANDS, "undo_edit"))
        case bodies.EditorTool(max_characters=most):
            text, schema = "View and edit text files.", _editor(_COMMANDS)
            if most is not None:
                text += f" A view shows at most {most} characters."
    lines = [] if text is None else [text]
    for each in tool.input_examples or ():
        lines.append(f"Example input: {json.dumps(each, ensure_ascii=False)}")
    described = "\n".join(lines) if lines else None
    return ToolSpec(tool.name, described, schema, tool.strict, path, path, "input_schema")


def _editor(commands: tuple[str, ...]) -> Json:
    return {
        "type": "object",
        "properties": {
            "command": {"type": "string", "enum": list(commands)},
            "path": {"type": "string", "description": "The file, or a directory to view."},
            "file_text": {**_TEXT, "description": "create: what the file is to hold."},
            "old_str": {**_TEXT, "description": "str_replace: text that stands there once."},
            "new_str": {**_TEXT, "description": "str_replace, insert: the new text."},
            "insert_line": {**_LINE, "description": "insert: the line after which; 0: the top."},
            "view_range": {
                "type": "array",
                "items": _LINE,
                "description": "view: first and last line, from 1; -1: the end.",
            },
        },
        "required": ["command", "path"],
    }
