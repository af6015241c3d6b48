"""Calls written in each of our formats, as its description says."""

from __future__ import annotations

import json

from benchmarks.template_calls import Call, Turn
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.tool_calls import CallFormat

_THINKS = "<think>\n"


def write(name: str, turn: Turn) -> tuple[str, str] | None:
    """A prompt's end, and a turn after it in the format of this name; None where it has no way."""
    known = FORMATS[name]
    if known.channels:
        return _harmony(turn)
    if len(turn.calls) > 1 and known.join is None and known.again is None:
        return None
    calls = _calls(known, turn.calls)
    return (_THINKS, f"{turn.reasoning}\n</think>\n\n{calls}") if turn.reasoning else ("", calls)


def _calls(known: CallFormat, calls: tuple[Call, ...]) -> str:
    before, after = known.begin + known.opens, known.closes + known.end
    each = [_call(known, call) for call in calls]
    if known.join is not None:
        return before + known.join.join(each) + after
    return (known.again or "").join(f"{before}{call}{after}" for call in each)


def _call(known: CallFormat, call: Call) -> str:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    if known.names:
        return f"{call.name}{known.names}{arguments}"
    if known.fields is None:
        return f'{{"name": "{call.name}", "{known.key}": {arguments}}}'
    fields = known.fields
    written = []
    for key, value in call.arguments.items():
        as_text = isinstance(value, str) and fields.value_end
        text = f"{value}\n" if as_text else json.dumps(value, ensure_ascii=False)
        end = f"{fields.value_end}\n" if fields.value_end else ""
        text = text if as_text or not end else f"{text}\n"
        written.append(f"{fields.key_before}{key}{fields.key_after}{text}{end}")
    name = f"{fields.before}{call.name}{fields.after}"
    return name + fields.join.join(written) + fields.closes


def _harmony(turn: Turn) -> tuple[str, str] | None:
    if len(turn.calls) > 1:
        return None
    (call,) = turn.calls
    header = f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>"
    text = f"{header}{json.dumps(call.arguments, ensure_ascii=False)}<|call|>"
    if turn.reasoning:
        text = f"<|channel|>analysis<|message|>{turn.reasoning}<|end|><|start|>assistant{text}"
    return "<|start|>assistant", text
