"""Grammars of answers that call tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from radixlm.text.answers import reasoning
from radixlm.text.answers.formats import CallFormat
from radixlm.text.answers.tools import Calling, Tool, ToolUse

# Arguments are written as models saw them most, and without endless white space.
_WRITTEN = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_ANY_OBJECT: Mapping[str, object] = {"type": "object"}


def tool_grammar(
    form: CallFormat, use: ToolUse, special: Mapping[str, int], opened: bool | None
) -> str:
    """The grammar of all answers that are allowed.

    When they are required, calls are all there is, and their arguments follow the schemas. When
    they may be made, text may come instead, or around them where a marker begins them; only
    arguments of strict tools follow a schema. Else there is only text, with no call in it.

    special: the markers that are special tokens, which are no text. opened: whether the prompt
    opened the thoughts before the answer; None where there are none.
    """
    required = use.calling is Calling.REQUIRED
    writer = _Writer(form, special)
    lines = ["%llguidance {}", f"start: {writer.thoughts(opened)}answer"]
    lines.append(f"answer: {_answer(form, use)}")
    lines += writer.rules(required=required, joined=use.parallel)
    lines.append("one: " + " | ".join(f"tool_{place}" for place in range(len(use.tools))))
    for place, tool in enumerate(use.tools):
        lines.append(f"tool_{place}: {writer.call(tool, by_schema=required or tool.strict)}")
    lines.append("SPACES: /[ \\n]{0,4}/")
    lines.append("ANYTHING: /(?s:.*)/")
    lines.append(f"TEXT: {_text(form, use)}")
    return "\n".join(lines) + "\n"


def _answer(form: CallFormat, use: ToolUse) -> str:
    match use.calling:
        case Calling.NONE:
            return "TEXT"
        case Calling.AUTO:
            return "block* TEXT" if form.begin and use.parallel else "TEXT | block"
        case Calling.REQUIRED:
            again = form.again is not None and use.parallel
            return f"block ({_quoted(form.again or '')} block)*" if again else "block"


def _text(form: CallFormat, use: ToolUse) -> str:
    """All text, but what is read as calls; where a marker may come, it ends the text itself."""
    if not form.begin:
        return f"ANYTHING & ~/{form.never_begins}(?s:.*)/"
    if use.calling is Calling.AUTO:
        return "ANYTHING"
    return f"ANYTHING & ~/(?s:.*){re.escape(form.begin)}(?s:.*)/"


class _Writer:
    def __init__(self, form: CallFormat, special: Mapping[str, int]) -> None:
        self._form = form
        self._special = special

    def thoughts(self, opened: bool | None) -> str:
        """What comes before the answer, spaces included."""
        if opened is None:
            return ""
        begin = self._marker(reasoning.BEGIN)
        return f"({begin})? rest SPACES " if opened else f"({begin} rest SPACES)? "

    def rules(self, *, required: bool, joined: bool) -> list[str]:
        """What `block` is, and the heads of blocks and thoughts."""
        form = self._form
        calls = "one"
        if form.join is not None and joined:
            calls = f"one ({_quoted(form.join)} one)*"
        end = self._marker(form.end)
        body = _sequence(_quoted(form.opens), calls, _quoted(form.closes), end)
        lines = [f"block: head {body}" if form.begin else f"block: {body}"]
        if form.begin and required:
            lines.append(f"head: {self._marker(form.begin)}")
        elif form.begin:
            lines += self._up_to("head", form.begin)
        return lines + self._up_to("rest", reasoning.END)

    def call(self, tool: Tool, *, by_schema: bool) -> str:
        before, between, after = self._form.call
        schema = {**(tool.parameters if by_schema else _ANY_OBJECT), "x-guidance": _WRITTEN}
        written = f"%json {json.dumps(schema, ensure_ascii=False)}"
        if between in self._special:
            name = f"{_quoted(before + tool.name)} {self._marker(between)}"
        else:
            name = _quoted(before + tool.name + between)
        return _sequence(name, written, _quoted(after))

    def _up_to(self, rule: str, marker: str) -> list[str]:
        """Any text up to a marker, the marker included."""
        if marker in self._special:
            return [f"{rule}: ANYTHING {self._marker(marker)}"]
        return [f"{rule}[suffix={_quoted(marker)}]: ANYTHING"]

    def _marker(self, marker: str) -> str:
        token = self._special.get(marker)
        return _quoted(marker) if token is None else f"<[{token}]>"


def _sequence(*parts: str) -> str:
    return " ".join(filter(None, parts))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
