"""Grammars of answers with thoughts and calls of tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, Grammar, GrammarKind
from radixlm.parsers import reasoning
from radixlm.parsers.field_grammar import json_of, moved, quoted, rules_of_call, up_to
from radixlm.parsers.formats import CallFormat
from radixlm.parsers.tools import Calling, Tool, ToolUse

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
        blocks = f"block ({quoted(form.again or '')} block)*" if again else "block"
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
        # One literal with the first name, where text may begin alike: the longest match wins.
        leads = form.fields is not None and not form.begin
        first = "lead" if leads else f"{quoted(form.opens)} one"
        calls = first
        if form.join is not None and self._use.parallel:
            calls = f"{first} ({quoted(form.join)} one)*"
        head = "head" if form.begin else ""
        parts = (head, calls, quoted(form.closes), self._marker(form.end))
        lines = [f"block: {' '.join(filter(None, parts))}"]
        if among_text and form.begin:
            lines += self.up_to("head", form.begin)
        elif form.begin:
            lines.append(f"head: {self._marker(form.begin)}")
        lines.append("one: " + " | ".join(f"tool_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            lines += self._call(f"tool_{place}", tool)
        if leads:
            lines.append("lead: " + " | ".join(f"tool_{place}_lead" for place in range(len(tools))))
        if form.fields is not None and form.fields.value_end:
            lines.append(up_to("plain", form.fields.value_end))
        return lines

    def up_to(self, rule: str, marker: str) -> list[str]:
        """Any text up to a marker, the marker included."""
        if marker in self._special:
            return [f"{rule}: ANYTHING {self._marker(marker)}"]
        return [up_to(rule, marker)]

    def _call(self, rule: str, tool: Tool) -> list[str]:
        """The rule of a call, and those that it needs."""
        followed = tool.strict or self._use.calling is Calling.REQUIRED
        arguments = tool.parameters if followed else ANY_OBJECT
        if self._form.fields is not None:
            return rules_of_call(rule, self._form.fields, tool, arguments, lead=self._form.opens)
        return [f"{rule}: {self._written(tool, arguments)}"]

    def _written(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        key, names = self._form.key, self._form.names
        if names:
            written = json_of(arguments, lenient=not tool.strict)
            return f"{quoted(tool.name)} {self._marker(names)} {written}"
        return json_of(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    key: moved(arguments, f"#/properties/{key}"),
                },
                "required": ["name", key],
                "additionalProperties": False,
            },
            lenient=not tool.strict,
        )

    def _marker(self, marker: str) -> str:
        token = self._special.get(marker)
        return quoted(marker) if token is None else f"<[{token}]>"


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
            return json_of(schema if isinstance(schema, dict) else {})
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
