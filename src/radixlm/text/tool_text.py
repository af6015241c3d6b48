"""Tools, calls and results as text, for templates that know none; and what tools lack for others.

A template may know some of the three: Granite's has tools and results, but no calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

Json = dict[str, Any]

_HEAD = """You may call functions. These are there, one a line, each with the JSON schema of its \
parameters:"""
_FOOT = """To call one, answer with nothing but a JSON object:
{"name": <the function's name>, "arguments": <an object of its parameters>}
To call several, write one such object a line. You are given the results then."""
_NO_PARAMETERS: Json = {"type": "object", "properties": {}, "required": []}


class CallText(NamedTuple):
    """How calls are written as text. write: the functions that one answer calls. asks: what tells
    the model to write them so.
    """

    write: Callable[[Sequence[Json]], str]
    asks: str


def _as_json(functions: Sequence[Mapping[str, Any]]) -> str:
    plain = ({name: function[name] for name in ("name", "arguments")} for function in functions)
    return "\n".join(json.dumps(function, ensure_ascii=False) for function in plain)


AS_JSON = CallText(_as_json, _FOOT)


def filled(tool: Json) -> Json:
    """A tool with a description, parameters, and descriptions of these, empty where it has none."""
    function = tool["function"]
    parameters = {**_NO_PARAMETERS, **(function.get("parameters") or {})}
    properties = parameters["properties"]
    parameters["properties"] = {
        name: {"description": "", **schema} if isinstance(schema, dict) else schema
        for name, schema in properties.items()
    }
    fixed = {"name": function["name"], "description": function.get("description") or ""}
    return {**tool, "function": {**fixed, **function, **fixed, "parameters": parameters}}


def described(tool: Json) -> Json:
    """A tool whose description stands in the schema of its parameters, too."""
    function = tool["function"]
    if not function.get("description"):
        return tool
    parameters = {"description": function["description"], **(function.get("parameters") or {})}
    return {**tool, "function": {**function, "parameters": parameters}}


def calls_in_text(calls: CallText, messages: Sequence[Json]) -> Iterator[Json]:
    """Messages whose calls stand at the end of their text."""
    for message in messages:
        plain = dict(message)
        functions = [entry["function"] for entry in plain.pop("tool_calls", None) or ()]
        if functions:
            texts = (plain["content"], calls.write(functions))
            plain["content"] = "\n".join(filter(None, texts))
        yield plain


def results_in_text(messages: Sequence[Json]) -> Iterator[Json]:
    """Messages with users' in place of results, one for all that follow each other: many templates
    want the roles in turn.
    """
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:
            yield {"role": "user", "content": "\n\n".join(map(_result, group))}
        else:
            yield from group


def _result(message: Json) -> str:
    return f"Result of {message.get('name') or 'the call'}:\n{message['content']}"


def tools_text(tools: Sequence[Json], asks: str) -> str:
    """A text that describes tools, in their order, so that the same ones make the same beginning.

    asks: what tells the model how to call them.
    """
    lines = (json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    return "\n".join([_HEAD, *lines, asks])
