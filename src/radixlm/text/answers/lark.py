"""Grammars of answers with thoughts and calls of tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, JSON_STYLE, Grammar, GrammarKind
from radixlm.text.answers import reasoning
from radixlm.text.answers.formats import CallFormat
from radixlm.text.answers.tools import Calling, Tool, ToolUse

_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


def answer_grammar(
    form: CallFormat,
    use: ToolUse,
    *,
    special: Mapping[str, int],
    opened: bool | None,
    wanted: Grammar | None = None,
) -> str:
    """The grammar of all answers that are allowed.

    When they are required, calls are all there is, and their arguments follow the schemas, as far
    as that can be done where they are not strict. When they may be made, text may come instead, or
    around them where a marker begins them; only arguments of strict tools follow a schema. Else
    there is only text, with no call in it.

    special: the markers that are special tokens, which are no text. opened: whether the prompt
    opened the thoughts before the answer; None where there are none. wanted: what an answer without
    calls must look like.

    Raises InvalidRequestError when that can not stand within a grammar.
    """
    writer = _Writer(form, use, special)
    lines = ["%llguidance {}", f"start: {writer.thoughts(opened)}answer"]
    lines.append(f"answer: {writer.answer(wanted is not None)}")
    if use.may_call:
        lines += writer.calls(among_text=use.calling is Calling.AUTO and wanted is None)
    lines += writer.up_to("rest", reasoning.END)
    lines.append("SPACES: /[ \\n]{0,4}/")
    lines.append("ANYTHING: /(?s:.*)/")
    lines.append(f"TEXT: {writer.text()}")
    if wanted is not None:
        lines.append(f"final: {_within(wanted)}")
    return "\n".join(lines) + "\n"


class _Writer:
    def __init__(self, form: CallFormat, use: ToolUse, special: Mapping[str, int]) -> None:
        self._form = form
        self._use = use
        self._special = special

    def thoughts(self, opened: bool | None) -> str:
        """What comes before the answer, spaces included."""
        if opened is None:
            return ""
        begin = self._marker(reasoning.BEGIN)
        return f"({begin})? rest SPACES " if opened else f"({begin} rest SPACES)? "

    def answer(self, with_final: bool) -> str:
        """Text, blocks of calls, or what there is to be instead of text."""
        text = "final" if with_final else "TEXT"
        form, use = self._form, self._use
        if not use.may_call:
            return text
        if use.calling is Calling.AUTO and form.begin and use.parallel and not with_final:
            return "block* TEXT"
        again = form.again is not None and use.parallel
        blocks = f"block ({_quoted(form.again or '')} block)*" if again else "block"
        return blocks if use.calling is Calling.REQUIRED else f"{text} | {blocks}"

    def text(self) -> str:
        """All text but what is read as calls; where these may be made, a marker ends it anyway."""
        form = self._form
        if not form.begin:
            return f"ANYTHING & ~/{form.never_begins}(?s:.*)/"
        if self._use.may_call:
            return "ANYTHING"
        return f"ANYTHING & ~/(?s:.*){re.escape(form.begin)}(?s:.*)/"

    def calls(self, *, among_text: bool) -> list[str]:
        """What `block` is, and what it holds. among_text: any text may come before it."""
        form, tools = self._form, self._use.tools
        calls = "one"
        if form.join is not None and self._use.parallel:
            calls = f"one ({_quoted(form.join)} one)*"
        head = "head" if form.begin else ""
        parts = (head, _quoted(form.opens), calls, _quoted(form.closes), self._marker(form.end))
        lines = [f"block: {' '.join(filter(None, parts))}"]
        if among_text and form.begin:
            lines += self.up_to("head", form.begin)
        elif form.begin:
            lines.append(f"head: {self._marker(form.begin)}")
        lines.append("one: " + " | ".join(f"tool_{place}" for place in range(len(tools))))
        return lines + [f"tool_{place}: {self._call(tool)}" for place, tool in enumerate(tools)]

    def up_to(self, rule: str, marker: str) -> list[str]:
        """Any text up to a marker, the marker included."""
        if marker in self._special:
            return [f"{rule}: ANYTHING {self._marker(marker)}"]
        return [f"{rule}[suffix={_quoted(marker)}]: ANYTHING"]

    def _call(self, tool: Tool) -> str:
        followed = tool.strict or self._use.calling is Calling.REQUIRED
        arguments = tool.parameters if followed else ANY_OBJECT
        key, names = self._form.key, self._form.names
        if names:
            written = _json(arguments, lenient=not tool.strict)
            return f"{_quoted(tool.name)} {self._marker(names)} {written}"
        return _json(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    key: _moved(arguments, f"#/properties/{key}"),
                },
                "required": ["name", key],
                "additionalProperties": False,
            },
            lenient=not tool.strict,
        )

    def _marker(self, marker: str) -> str:
        token = self._special.get(marker)
        return _quoted(marker) if token is None else f"<[{token}]>"


def _within(wanted: Grammar) -> str:
    """A grammar as a part of another one."""
    match wanted.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                schema = json.loads(wanted.text)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(
                    f"{wanted.param} is no JSON: {error}", param=wanted.param
                ) from None
            return _json(schema if isinstance(schema, dict) else {})
        case GrammarKind.REGEX:
            text = _SLASH.sub(lambda found: found[1] or r"\/", wanted.text)
            return "/" + text.replace("\n", r"\n") + "/"
        case GrammarKind.LARK:
            if "::=" in wanted.text:
                raise InvalidRequestError(
                    f"{wanted.param}: with tools or a model that thinks, write it in Lark",
                    param=wanted.param,
                )
            return f"%lark {{\n{wanted.text}\n}}"


def _moved(schema: Any, root: str) -> Any:
    """`schema` for a place inside another one: what it refers to in itself is at `root` now."""
    if isinstance(schema, list):
        return [_moved(entry, root) for entry in schema]
    if not isinstance(schema, Mapping):
        return schema
    moved = {name: _moved(entry, root) for name, entry in schema.items()}
    match moved.get("$ref"):
        case str(place) if place == "#" or place.startswith("#/"):
            moved["$ref"] = root + place[1:]
    return moved


def _json(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """lenient: what can not be followed of the schema is passed over."""
    options = {**JSON_STYLE, "lenient": lenient}
    return "%json " + json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
