"""Traces in files of JSON lines, read as a stream: line by line, bounded, however long they are.

Mooncake     {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}
token-exact  {"timestamp": ms, "token_ids": [...], "output_ids": [...]}, see docs/simulator.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeGuard

import numpy as np

from radixlm.core.errors import ConfigError
from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint, Hint, Namespace
from radixlm.formats.trace_lines import HEADER
from radixlm.sim.calls import Problems, TraceCall, TraceSession

Format = Literal["mooncake", "tokens", "messages"]
# What one line may hold, and how far a recorded request may stand behind later ones: a server
# writes requests when they end.
MOST_LINE_BYTES = 64 * 2**20
LOOK_AHEAD = 4_096
LOOK_AHEAD_TOKENS = 32 * 2**20
MOST_TOKENS = 16 * 2**20
BLOCK_TOKENS = 512
# Of times, since 1970 or the trace's begin: beyond, a clock of floats does not move by a step.
MOST_MS = 10**15
# The field by which a format is known.
_MARKS: Mapping[str, Format] = {
    "hash_ids": "mooncake",
    "token_ids": "tokens",
    HEADER: "tokens",
    "messages": "messages",
    "input": "messages",
}
# Answers are not in Mooncake's traces: each request gets a token of its own, above all blocks'.
_ANSWERS = 2**30
_MOST_ID = 2**31 - 1


class BadLineError(ValueError):
    """An error in a line, which is left out. kind: the same for all that are alike; detail: what
    this one has.
    """

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail


class TraceFile:
    """A file of requests with times. tokens_per_block: of Mooncake's blocks of 512 tokens as many
    are simulated. With less than all of them an answer is one token, as of a server that computes
    prompts for others.

    Bad lines are left out: `problems` says which, and why. scale: tokens that a simulated one of a
    prompt stands for.
    """

    def __init__(
        self,
        path: Path,
        problems: Problems,
        *,
        mooncake: bool,
        tokens_per_block: int = BLOCK_TOKENS,
    ) -> None:
        self.path = path
        self.problems = problems
        self.scale = BLOCK_TOKENS // tokens_per_block if mooncake else 1
        self._tokens_per_block = tokens_per_block
        self._reads_mooncake = mooncake

    def __iter__(self) -> Iterator[TraceSession]:
        begin, last = None, 0.0
        for session in self._mooncake() if self._reads_mooncake else _in_order(self._exact()):
            if session.at is None:
                yield session
                continue
            begin = session.at if begin is None else begin
            at = session.at - begin
            if at < last:
                back = f"{last - at:g} s before the line before it"
                self.problems.add(session.calls[0].where, "its time goes back", back)
                continue
            last = at
            yield replace(session, at=at)

    def _mooncake(self) -> Iterator[TraceSession]:
        for number, (where, fields) in enumerate(objects(self.path, self.problems)):
            try:
                at = _seconds(fields, "timestamp")
                prompt, out = self._blocks(fields)
                answer = np.full(out, _ANSWERS + number % _ANSWERS, dtype=np.int32)
                yield TraceSession((TraceCall(prompt, answer, where=where),), at)
            except BadLineError as error:
                self.problems.add(where, error.kind, error.detail)

    def _blocks(self, fields: Mapping[str, Any]) -> tuple[Key, int]:
        """A prompt of which each block has tokens of its own, and the answer's length."""
        size = self._tokens_per_block
        length = _integer(fields, "input_length", 1, MOST_TOKENS)
        out = _integer(fields, "output_length", 1, MOST_TOKENS)
        ids = _ids(fields, "hash_ids", _ANSWERS // size)
        if ids.size != -(-length // BLOCK_TOKENS):
            raise BadLineError(
                "hash_ids and input_length differ", f"{ids.size} blocks for {length} tokens"
            )
        tokens = (ids[:, None] * size + np.arange(size)).ravel().astype(np.int32)
        if size < BLOCK_TOKENS:
            return tokens, 1
        return tokens[:length], out

    def _exact(self) -> Iterator[TraceSession]:
        """The calls of lines that each have a time, or go on a while after the end of the one
        before.
        """
        at, calls = None, list[TraceCall]()
        for where, fields in objects(self.path, self.problems):
            goes_on = "gap" in fields
            if calls and not goes_on:
                yield TraceSession(tuple(calls), at)
                calls = []
            if HEADER in fields:
                continue
            try:
                if goes_on and not calls:
                    raise BadLineError("it goes on from a line that was left out")
                if not goes_on:
                    at = _seconds(fields, "timestamp") if "timestamp" in fields else None
                calls.append(exact_call(fields, where))
            except BadLineError as error:
                self.problems.add(where, error.kind, error.detail)
        if calls:
            yield TraceSession(tuple(calls), at)


def _in_order(sessions: Iterable[TraceSession]) -> Iterator[TraceSession]:
    """Put calls in order of time, as far as one can look ahead; those without any as they come."""
    ahead: list[tuple[float, int, TraceSession]] = []
    tokens = 0
    for number, session in enumerate(sessions):
        if session.at is None:
            yield session
            continue
        heappush(ahead, (session.at, number, session))
        tokens += _size(session)
        while len(ahead) > LOOK_AHEAD or tokens > LOOK_AHEAD_TOKENS:
            *_, first = heappop(ahead)
            tokens -= _size(first)
            yield first
    while ahead:
        yield heappop(ahead)[-1]


def _size(session: TraceSession) -> int:
    return sum(call.prompt.size for call in session.calls)


def objects(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place and what it holds; lines that hold no object are problems."""
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            where = f"{path.name}:{number}"
            if not line.strip():
                continue
            try:
                yield where, _object(line)
            except BadLineError as error:
                problems.add(where, error.kind, error.detail)


def format_of(path: Path) -> Format:
    """The format of a trace, by the first line that shows it. Raises ConfigError."""
    try:
        for _, fields in objects(path, Problems()):
            for mark, name in _MARKS.items():
                if mark in fields:
                    return name
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    raise ConfigError(
        f"{path} is no trace: no line has hash_ids (Mooncake's), token_ids (this server's), "
        "messages or input (logs of requests)"
    )


def exact_call(fields: Mapping[str, Any], where: str) -> TraceCall:
    """A request of the token-exact format. Raises BadLineError."""
    prompt = _ids(fields, "token_ids", _MOST_ID)
    if "output_ids" in fields:
        answer = _ids(fields, "output_ids", _MOST_ID)
    else:
        length = _integer(fields, "output_length", 1, MOST_TOKENS)
        answer = np.full(length, _MOST_ID, dtype=np.int64)
    return TraceCall(
        prompt.astype(np.int32),
        answer.astype(np.int32),
        gap=max(_seconds(fields, "gap", 0), 0.0),
        namespace=Namespace(cache_salt=text_of(fields, "namespace", "")),
        tenant=text_of(fields, "tenant", ""),
        priority=_integer(fields, "priority", -_MOST_ID, _MOST_ID, 0),
        breakpoints=_breakpoints(fields, prompt.size),
        hint=_hint(fields),
        max_tokens=_integer(fields, "max_tokens", 0, MOST_TOKENS, 0),
        where=where,
    )


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Each line; of one that is too long only its beginning, which is no JSON."""
    while line := file.readline(MOST_LINE_BYTES):
        yield line
        while len(line) == MOST_LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(MOST_LINE_BYTES)


def _object(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        kind = "the line is torn" if not line.endswith(b"\n") else "the line is no JSON"
        raise BadLineError(kind, str(error)[:80]) from None
    if not isinstance(fields, dict):
        raise BadLineError("the line is no JSON object", f"a {type(fields).__name__}")
    return fields


def _seconds(fields: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Seconds of milliseconds."""
    value = fields.get(name, default)
    if not _is_number(value) or not -MOST_MS <= value <= MOST_MS:
        raise BadLineError(f"{name} is no number up to {MOST_MS:,}", f"{value!r:.40}")
    return float(value) / 1_000


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integer(
    fields: Mapping[str, Any], name: str, low: int, high: int, default: int | None = None
) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise BadLineError(f"{name} is not from {low:,} to {high:,}", f"{value!r:.40}")
    return value


def text_of(fields: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """A field that is text. Raises BadLineError."""
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise BadLineError(f"{name} is no text", f"{value!r:.40}")
    return value


def _ids(fields: Mapping[str, Any], name: str, most: int) -> Any:
    """(n,) int64, from 0 to `most`; at least one."""
    value = fields.get(name)
    if not isinstance(value, list) or not value:
        raise BadLineError(f"{name} is no list of ids", f"{value!r:.40}")
    if len(value) > MOST_TOKENS:
        raise BadLineError(f"{name} has more than {MOST_TOKENS:,} ids", f"{len(value):,}")
    # Before NumPy sees them: it would give each the room of the longest text among them.
    if set(map(type, value)) != {int} or min(value) < 0 or max(value) > most:
        odd = next(each for each in value if type(each) is not int or not 0 <= each <= most)
        raise BadLineError(f"{name} are no integers up to {most:,}", f"{odd!r:.40}")
    return np.array(value, dtype=np.int64)


def _hint(fields: Mapping[str, Any]) -> Hint:
    """hints.next: one of Hint."""
    hints = fields.get("hints", {})
    given = hints.get("next", Hint.NONE) if isinstance(hints, dict) else None
    if given not in list(Hint):
        raise BadLineError(f"next is not one of {', '.join(Hint)}", f"{given!r:.40}")
    return Hint(given)


def _breakpoints(fields: Mapping[str, Any], most: int) -> tuple[Breakpoint, ...]:
    """hints.breakpoints: [[tokens, seconds], ...]."""
    hints = fields.get("hints", {})
    given = hints.get("breakpoints", []) if isinstance(hints, dict) else None
    if not isinstance(given, list):
        raise BadLineError("hints are no object of hints", f"{hints!r:.40}")
    ends = []
    for each in given:
        tokens, ttl = each if isinstance(each, list) and len(each) == 2 else (None, None)
        if (
            type(tokens) is not int
            or not _is_number(ttl)
            or not 0 < tokens <= most
            or not 0 < ttl <= MOST_MS / 1_000
        ):
            raise BadLineError("a breakpoint is no [tokens, seconds]", f"{each!r:.40}")
        ends.append(Breakpoint(tokens, float(ttl)))
    return tuple(ends)
