"""Calls written in each of our formats, as it is declared."""

from __future__ import annotations

from benchmarks.template_calls import Turn
from radixlm.parsers.call_format import Written
from radixlm.parsers.formats import FORMATS
from radixlm.parsers.harmony import CHANNEL, END, MESSAGE, START

_THINKS = "<think>\n"


def write(name: str, turn: Turn) -> tuple[str, str] | None:
    """A prompt's end, and a turn after it in the format of this name; None where it has no way."""
    known = FORMATS[name]
    if len(turn.calls) > 1 and known.join is None and known.again is None:
        return None
    calls = known.write([Written(*call) for call in turn.calls])
    if known.channels:
        thoughts = f"{CHANNEL}analysis{MESSAGE}{turn.reasoning}{END}{START}assistant"
        return f"{START}assistant", thoughts * bool(turn.reasoning) + calls
    if turn.reasoning:
        return _THINKS, f"{turn.reasoning}\n</think>\n\n{calls}"
    return ("", calls)
