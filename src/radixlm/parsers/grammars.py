"""Grammars of answers with reasoning and calls of tools, in Lark as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import ANY_OBJECT, Grammar, GrammarKind
from radixlm.parsers import harmony
from radixlm.parsers.call_format import CallFormat, FieldCall, JsonCall, NamedCall
from radixlm.parsers.field_grammar import FieldRules, json_rule, moved, quoted, shared_rules
from radixlm.parsers.thoughts import Thoughts
from radixlm.parsers.tools import Calling, Tool, ToolUse

_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


def answer_grammar(
    form: CallFormat,
    use: ToolUse,
    *,
    special: Mapping[str, int],
    thoughts: Thoughts | None,
    prompt: str,
    wanted: Grammar | None = None,
    thinks: bool = True,
) -> str:
    """The grammar of all answers that are allowed.

    When calls are required, they are all there is, and their arguments follow the schemas, as far
    as that can be done where they are not strict. When calls may be made, text may come instead, or
    around them where a marker begins them; only arguments of strict tools follow a schema. Else
    there is only text, with no call in it.

    special: the markers that are special tokens, which are not text. thoughts: of the reasoning
    before the answer, which `prompt` may have opened. wanted: what an answer without calls must
    look like. thinks: reasoning may begin.

    Raises InvalidRequestError when that cannot stand within a grammar.
    """
    writer = _AnswerWriter(form, use, special, form.opened_by(prompt))
    opened = thoughts is not None and thoughts.opened_by(prompt)
    thinks = opened or (thinks and thoughts is not None and not thoughts.closed_by(prompt))
    before = "" if thoughts is None else writer.thoughts(thoughts, thinks=thinks, opened=opened)
    lines = ["%llguidance {}", f"start: {before}answer"]
    lines.append(f"answer: {writer.answer(wanted is not None)}")
    if use.may_call:
        lines += writer.calls(among_text=use.calling is Calling.AUTO and wanted is None)
    if thoughts is not None and thinks:
        lines.append(writer.up_to("rest", thoughts.end))
    lines.append("SPACES: /[ \\n]{0,4}/")
    lines.append("ANYTHING: /(?s:.*)/")
    lines.append(f"TEXT: {writer.text()}")
    if wanted is not None:
        lines.append(f"final: {_within(wanted)}")
    return "\n".join(lines) + "\n"


def channel_grammar(
    use: ToolUse, *, special: Mapping[str, int], wanted: Grammar | None = None
) -> str:
    """The same for answers in channels, see `harmony`: any thoughts, and then text, or one call."""
    writer = _AnswerWriter(harmony.HARMONY, use, special)
    channel, message, constrain, start = map(
        writer.literal, (harmony.CHANNEL, harmony.MESSAGE, harmony.CONSTRAIN, harmony.START)
    )
    text = f'{channel} "final" {message} {"ANYTHING" if wanted is None else "final"}'
    ways = [] if use.calling is Calling.REQUIRED and use.may_call else [text]
    if use.may_call:
        for tool in use.tools:
            followed = tool.strict or use.calling is Calling.REQUIRED
            written = json_rule(
                tool.parameters if followed else ANY_OBJECT, lenient=not tool.strict
            )
            to = quoted(f"commentary to=functions.{tool.name} ")
            ways.append(f'{channel} {to} {constrain} "json" {message} {written}')
    lines = [
        "%llguidance {}",
        "start: thoughts? answer",
        f'thoughts: {channel} "analysis" {message} rest {start} "assistant"',
        f"answer: {' | '.join(ways)}",
        writer.up_to("rest", harmony.END),
        "ANYTHING: /(?s:.*)/",
    ]
    if wanted is not None:
        lines.append(f"final: {_within(wanted)}")
    return "\n".join(lines) + "\n"


class _AnswerWriter(NamedTuple):
    """begun: the prompt ends with what opens calls, and text has `form.plain` before it."""

    form: CallFormat
    use: ToolUse
    special: Mapping[str, int]
    begun: bool = False

    def thoughts(self, form: Thoughts, *, thinks: bool, opened: bool) -> str:
        """The rule of what comes before the answer, spaces included. opened: by the prompt."""
        begin = self.literal(form.begin)
        answers = f"({self.literal(form.answer_begin)} SPACES)? " if form.answer_begin else ""
        if opened:
            return f"({begin})? rest SPACES {answers}" if begin else f"rest SPACES {answers}"
        return f"({begin} rest SPACES {answers})? " if thinks else answers

    def answer(self, with_final: bool) -> str:
        """Text, blocks of calls, or what is wanted instead of text."""
        form, use = self.form, self.use
        plain = f"{self.literal(form.plain)} " if self.begun else ""
        text = plain + ("final" if with_final else "TEXT")
        if not use.may_call:
            return text
        if self.begun:
            calls = "one block*" if use.parallel else "one"
            return calls if use.calling is Calling.REQUIRED else f"{text} | {calls}"
        if use.calling is Calling.AUTO and form.begin and use.parallel and not with_final:
            return "block* TEXT"
        again = form.again is not None and use.parallel
        blocks = f"block ({self.literal(form.again or '')} block)*" if again else "block"
        return blocks if use.calling is Calling.REQUIRED else f"{text} | {blocks}"

    def text(self) -> str:
        """All text that is not read as calls; where calls may be made, a marker ends it anyway."""
        form = self.form
        if not form.begin:
            return f"ANYTHING & ~/{form.never_begins}(?s:.*)/"
        if self.use.may_call:
            return "ANYTHING"
        return f"ANYTHING & ~/(?s:.*){_in_regex(form.begin.strip())}(?s:.*)/"

    def calls(self, *, among_text: bool) -> list[str]:
        """The rule `block`, and those that it needs. among_text: any text may come before it."""
        form, tools = self.form, self.use.tools
        # One literal with the first name, where text may begin alike: the longest match wins.
        leads = isinstance(form.call, FieldCall) and not form.begin
        calls = first = "lead" if leads else f"{self.literal(form.opens)} one"
        if form.join is not None and self.use.parallel:
            calls = f"{first} ({self.literal(form.join)} one)*"
        head = "head" if form.begin else ""
        parts = (head, calls, self.literal(form.closes), self.literal(form.end))
        lines = [f"block: {' '.join(filter(None, parts))}"]
        if among_text and form.begin:
            lines.append(self.up_to("head", form.begin))
        elif form.begin:
            lines.append(f"head: {self.literal(form.begin)}")
        lines.append("one: " + " | ".join(f"tool_{place}" for place in range(len(tools))))
        for place, tool in enumerate(tools):
            lines += self._call(f"tool_{place}", tool)
        if leads:
            lines.append("lead: " + " | ".join(f"tool_{place}_lead" for place in range(len(tools))))
        if isinstance(form.call, FieldCall):
            lines += shared_rules(form.call, self)
        return lines

    def up_to(self, rule: str, marker: str) -> str:
        """A rule: any text up to a marker, the marker included."""
        marker = marker.strip()
        places = [at for spelling in self.special if (at := marker.find(spelling)) >= 0]
        if places:  # what stands before a special token may be text as well
            return f"{rule}: ANYTHING {self.literal(marker[min(places) :])}"
        return f"{rule}[suffix={quoted(marker)}]: ANYTHING"

    def _call(self, rule: str, tool: Tool) -> list[str]:
        """The rule of a call, and those that it needs."""
        followed = tool.strict or self.use.calling is Calling.REQUIRED
        arguments = tool.parameters if followed else ANY_OBJECT
        match self.form.call:
            case FieldCall() as shape:
                fields = FieldRules(shape, tool, arguments, self)
                return fields.rules(rule, lead=self.form.opens)
            case NamedCall() as shape:
                written = json_rule(arguments, lenient=not tool.strict)
                before, place, behind = shape.spelled.format(name=tool.name, place="\0").partition(
                    "\0"
                )
                opening = self.literal(shape.before + before + behind + shape.after)
                if place:
                    first, last = shape.before + before, behind + shape.after
                    opening = f"{self.literal(first)} /[0-9]{{1,3}}/ {self.literal(last)}"
                return [f"{rule}: {opening} {written} {self.literal(shape.closes)}"]
            case JsonCall(name="") as shape:
                call = object_of({tool.name: moved(arguments, f"#/properties/{tool.name}")})
            case JsonCall() as shape:
                key = shape.arguments
                inner = moved(arguments, f"#/properties/{key}")
                call = object_of({shape.name: {"const": tool.name}, key: inner})
        return [f"{rule}: {json_rule(call, lenient=not tool.strict)}"]

    def literal(self, text: str) -> str:
        """A literal; its special tokens as such. Nothing for the empty text."""
        pieces = [text]
        for spelling, token in self.special.items():
            split: list[str] = []
            for piece in pieces:
                if piece.startswith("<["):
                    split.append(piece)
                    continue
                for number, part in enumerate(piece.split(spelling)):
                    split += [f"<[{token}]>"] if number else []
                    split += [part] if part else []
            pieces = split
        return " ".join(
            piece if piece.startswith("<[") else quoted(piece) for piece in pieces if piece
        )


def _in_regex(text: str) -> str:
    return re.escape(text).replace("\\\n", r"\n").replace("/", r"\/")


def object_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an object with these properties, and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


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
            return json_rule(schema if isinstance(schema, dict) else {})
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
