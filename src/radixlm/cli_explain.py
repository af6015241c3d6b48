"""`radixlm explain`: where two requests part, and what would keep the prefix that they share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import click

from radixlm.core.errors import ConfigError
from radixlm.core.keys import Key, as_key, common_prefix
from radixlm.core.misses import MissReason, MissReport
from radixlm.text.answers.style import AnswerStyle
from radixlm.text.chat_template import ChatTemplate, as_plain_text, require_template
from radixlm.text.folder import resolve_folder
from radixlm.text.misses import Cause, find
from radixlm.text.outline import Outline
from radixlm.text.tokenizer import Tokenizer, new_mark
from radixlm.text.tool_prompt import told_in_text

# What a prompt is written in on routes that are not read here, and which they are.
_ELSEWHERE = {"system": "/v1/messages", "instructions": "/v1/responses", "input": "/v1/responses"}
_TEMPLATE_FIELDS = ("add_generation_prompt", "continue_final_message")


class _Prompt(NamedTuple):
    key: Key
    outline: Outline | None


@click.command("explain")
@click.argument("first", metavar="A.json", type=click.Path(exists=True, dir_okay=False))
@click.argument("second", metavar="B.json", type=click.Path(exists=True, dir_okay=False))
@click.option("--model", help="The model's folder; without it, the embedded demo model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(first: str, second: str, model: str | None, as_json: bool) -> None:
    """Compare two request bodies, of /v1/chat/completions, /v1/completions or /generate.

    Tells up to where the second one's prompt would come from the cache after the first one's: the
    message, the token and the text, and what to do. Only the tokenizer and the chat template are
    loaded; no server is asked.
    """
    folder = resolve_folder(model)
    tokenizer, template = Tokenizer.load(folder), ChatTemplate.load(folder)
    ours, theirs = (_prompt(Path(name), tokenizer, template) for name in (first, second))
    told = _compared(tokenizer, ours.key, theirs)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
        return
    click.echo(f"{told['shared_tokens']} of {told['prompt_tokens']} tokens are shared.")
    for name in ("where", "what", "context", "advice"):
        if told[name]:
            click.echo(f"{name:8} {told[name]}")


def _compared(tokenizer: Tokenizer, ours: Key, theirs: _Prompt) -> dict[str, Any]:
    same = common_prefix(ours, theirs.key)
    told: dict[str, Any] = {"shared_tokens": same, "prompt_tokens": int(theirs.key.size)}
    if same == min(ours.size, theirs.key.size):
        what = "one prompt begins with the other" if ours.size != theirs.key.size else "the same"
        return told | dict.fromkeys(("cause", "where", "context", "advice")) | {"what": what}
    miss = MissReport(
        int(theirs.key.size),
        same,
        MissReason.DIVERGED,
        same,
        shared=ours[:same].tobytes(),
        cached_next=ours[same:].tobytes(),
        requested_next=theirs.key[same:].tobytes(),
    )
    found = find(tokenizer, miss, theirs.key, theirs.outline)
    return told | {
        "cause": Cause(found.cause).value,
        "where": found.place,
        "what": found.what,
        "context": None if found.difference is None else found.difference.marked,
        "advice": found.fix or None,
    }


def _prompt(path: Path, tokenizer: Tokenizer, template: ChatTemplate | None) -> _Prompt:
    """The prompt of a request's file. Raises ConfigError for one that holds none."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    given = body if isinstance(body, dict) else {}
    for name, route in _ELSEWHERE.items():
        if name in given:
            raise ConfigError(
                f"{path} has `{name}`: bodies of {route} are not read; "
                "write it as a chat, with what it says as messages"
            )
    if isinstance(given.get("messages"), list):
        try:
            return _chat(given, tokenizer, require_template(template))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path} is no body of /v1/chat/completions: {type(error).__name__}: {error}"
            ) from None
    for name in ("prompt", "text", "input_ids"):
        match given.get(name):
            case str(text) if text:
                special = bool(given.get("add_special_tokens", True))
                return _Prompt(tokenizer.encode(text, add_special_tokens=special), None)
            case [int(), *_] as ids:
                return _Prompt(as_key(ids), None)
    raise ConfigError(f"{path} holds no messages, and no one prompt, text or input_ids")


def _chat(body: dict[str, Any], tokenizer: Tokenizer, template: ChatTemplate) -> _Prompt:
    """As the server reads a chat; what the server would refuse is not looked for."""
    mark, tools = new_mark(), body.get("tools") or []
    messages = [_message(message) for message in body["messages"]]
    known: list[dict[str, Any]] = tools
    plain = messages
    if not AnswerStyle.of(template.tool_source).calls.described:
        plain, known = told_in_text(messages, tools, takes_system=template.takes_system), []
    continued = bool(body.get("continue_final_message"))
    text = template.render(
        as_plain_text(plain, tokenizer, mark, continue_final_message=continued),
        tools=as_plain_text(known, tokenizer, mark) or None,
        **(body.get("chat_template_kwargs") or {}),
        **{name: body[name] for name in _TEMPLATE_FIELDS if body.get(name) is not None},
    )
    special = bool(body.get("add_special_tokens"))
    key = tokenizer.encode(text, add_special_tokens=special, break_mark=mark)
    return _Prompt(key, Outline(text.replace(mark, ""), messages, tools))


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """With the arguments of calls as mappings, as templates take them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _arguments(call["function"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {"content": "", **message, **({"tool_calls": calls} if calls else {})}


def _arguments(function: dict[str, Any]) -> Any:
    given = function.get("arguments") or "{}"
    return json.loads(given) if isinstance(given, str) else given
