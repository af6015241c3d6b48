"""Tools told in plain text, for models whose chat template knows none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from radixlm.text.chat_template import Message

_HEAD = """You may call functions. These are there, one a line, each with the JSON schema of its \
parameters:"""
_FOOT = """To call one, answer with nothing but a JSON object:
{"name": <the function's name>, "arguments": <an object of its parameters>}
To call several, write one such object a line. You are given the results then."""


def told_in_text(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, takes_system: bool
) -> list[dict[str, Any]]:
    """The messages with the tools in the system's, calls as the assistant's text, and results as
    the user's.

    takes_system: whether the template takes a system message; else the tools come with the first
    one of the user's. The tools keep their order, so that the same ones make the same beginning.
    """
    told: list[dict[str, Any]] = []
    for are_results, group in groupby(messages, lambda message: message["role"] == "tool"):
        if are_results:  # one message: many templates want the roles in turn
            told.append({"role": "user", "content": "\n\n".join(map(_result, group))})
            continue
        said = [_with_calls(message) for message in group]
        if told and said[0]["role"] == "user":  # behind results
            said = _begun_with(told.pop()["content"], said, "user")
        told += said
    if not tools:
        return told
    text = "\n".join([_HEAD, *(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)])
    return _begun_with(f"{text}\n{_FOOT}", told, "system" if takes_system else "user")


def _begun_with(text: str, messages: list[dict[str, Any]], role: str) -> list[dict[str, Any]]:
    """The messages with `text` in the first one, which is `role`'s."""
    if not messages or messages[0]["role"] != role:
        return [{"role": role, "content": text}, *messages]
    first, *others = messages
    own = _text(first["content"])
    parts = (own, text) if role == "system" else (text, own)
    return [{**first, "content": "\n\n".join(parts)}, *others]


def _with_calls(message: Message) -> dict[str, Any]:
    """The message with its calls, if any, written as they are asked for."""
    plain = dict(message)
    calls = [
        json.dumps(
            {name: call["function"][name] for name in ("name", "arguments")}, ensure_ascii=False
        )
        for call in plain.pop("tool_calls", ())
    ]
    if calls:
        said = _text(message["content"])
        plain["content"] = "\n".join([said, *calls] if said else calls)
    return plain


def _result(message: Message) -> str:
    return f"Result of {message['name']}:\n{_text(message['content'])}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content)
    return str(content or "")
