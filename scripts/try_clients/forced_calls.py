"""What a proxy changes in an agent's requests, so that a model that never learnt it calls a tool.

The server's grammars write a call wherever it is the user's turn that is answered, and a short
text once the call's result has come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST = 200
_FORMAT: Mapping[str, Any] = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": ["done"]}},
        "required": ["answer"],
        "additionalProperties": False,
    },
}
# Of these only what is named is changed: a template may write the rest.
_IN_PARTS = {"reasoning", "output_config"}
_CALLS = ("function_call", "tool_use")
_RESULTS = ("function_call_output", "tool_result")


@dataclass(slots=True)
class ForcedCalls:
    """Change requests so that each turn calls `tool` with one argument of one value.

    The model writes no thoughts before a call: it would not end them. sent: the requests with
    tools, each with its path, as the agent sent them.
    """

    tool: str
    argument: str
    value: str
    sent: list[tuple[str, Any]] = field(default_factory=list)

    def __call__(self, path: str, body: Any) -> Any:
        if not isinstance(body, dict) or not body.get("tools"):
            return body
        self.sent.append((path, body))
        answered = any(map(_is_result, _parts(_messages(body)[-1])))
        fields = _FIELDS[_route(path)](None if answered else self.tool)
        tools = [self._narrowed(tool) for tool in body["tools"]]
        merged = {
            name: {**(body.get(name) or {}), **fields[name]} for name in _IN_PARTS & {*fields}
        }
        return {**body, "temperature": 0, **fields, **merged, "tools": tools}

    def _narrowed(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """The tool with a schema that no text of the model's own can make long."""
        if "function" in tool:
            return {**tool, "function": self._narrowed(tool["function"])}
        if tool.get("name") != self.tool:
            return tool
        schema = {
            "type": "object",
            "properties": {self.argument: {"type": "string", "enum": [self.value]}},
            "required": [self.argument],
            "additionalProperties": False,
        }
        return {**tool, "input_schema" if "input_schema" in tool else "parameters": schema}


def unforced(path: str, body: Any) -> Any:
    """A request as it was sent, but for an answer of one token."""
    return {**body, _BOUNDS[_route(path)]: 1}


def calls_and_results(body: Any) -> tuple[int, int]:
    """How many calls and how many results of tools a request tells of."""
    parts = [part for message in _messages(body) for part in _parts(message)]
    calls = sum(len(part.get("tool_calls") or ()) + (part.get("type") in _CALLS) for part in parts)
    return calls, sum(map(_is_result, parts))


def _messages(body: Any) -> list[Any]:
    messages: list[Any] = body["messages"] if "messages" in body else body["input"]
    return messages


def _parts(message: Any) -> Iterator[Mapping[str, Any]]:
    """A message or item, and the blocks of its content."""
    yield message
    if isinstance(message.get("content"), list):
        yield from message["content"]


def _is_result(part: Mapping[str, Any]) -> bool:
    return part.get("role") == "tool" or part.get("type") in _RESULTS


def _chat(tool: str | None) -> Mapping[str, Any]:
    fields = {"max_tokens": _LONGEST, "reasoning_effort": "none"}
    if tool:
        return {**fields, "tool_choice": {"type": "function", "function": {"name": tool}}}
    schema = {"name": "answer", "schema": _FORMAT["schema"]}
    answer = {"type": "json_schema", "json_schema": schema}
    return {**fields, "tool_choice": "none", "response_format": answer}


def _responses(tool: str | None) -> Mapping[str, Any]:
    fields = {"max_output_tokens": _LONGEST, "reasoning": {"effort": "none"}}
    if tool:
        return {**fields, "tool_choice": {"type": "function", "name": tool}}
    return {**fields, "tool_choice": "none", "text": {"format": {**_FORMAT, "name": "answer"}}}


def _anthropic(tool: str | None) -> Mapping[str, Any]:
    # Anthropic's edit of thoughts wants them to be asked for.
    fields = {"max_tokens": _LONGEST, "thinking": {"type": "disabled"}, "context_management": None}
    if tool:
        return {**fields, "tool_choice": {"type": "tool", "name": tool}}
    return {**fields, "tool_choice": {"type": "none"}, "output_config": {"format": _FORMAT}}


def _route(path: str) -> str:
    return path.partition("?")[0].rpartition("/")[2]


_FIELDS = {"completions": _chat, "responses": _responses, "messages": _anthropic}
_BOUNDS = {
    "completions": "max_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
}
