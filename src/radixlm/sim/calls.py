"""The sessions of calls that a trace is made of, and what was wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint, Hint, Namespace

# Of what was wrong, as many are kept with their lines; all are counted.
MOST_SHOWN = 20


@dataclass(frozen=True, slots=True, eq=False)
class TraceCall:
    """One request of a trace.

    prompt: (tokens,). answer: (tokens,) what it is answered with, at least one. gap: seconds after
    the end of its session's call before it; for a session's first call nothing. max_tokens: what
    the request allowed; 0 where that is not known. where: its file and line, for people.
    """

    prompt: Key
    answer: Key
    gap: float = 0.0
    namespace: Namespace = field(default_factory=Namespace)
    tenant: str = ""
    priority: int = 0
    breakpoints: tuple[Breakpoint, ...] = ()
    hint: Hint = Hint.NONE
    max_tokens: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class TraceSession:
    """Calls of which each comes after the one before has ended. A lone request is a session of one.

    at: seconds since the trace's begin when the first call comes; None as soon as a user is free.
    """

    calls: tuple[TraceCall, ...]
    at: float | None = None


class Problems:
    """The lines that were left out of a trace, and why: the first ones with their lines, all
    counted.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.shown: list[str] = []

    def add(self, where: str, kind: str, detail: str = "") -> None:
        """kind: for the count, the same for all that are alike."""
        self.counts[kind] += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(f"{where}: {kind}{': ' if detail else ''}{detail}")

    @property
    def count(self) -> int:
        return self.counts.total()
