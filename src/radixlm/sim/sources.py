"""Sources of a run's sessions, as a value that another process can open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

from radixlm.core.errors import ConfigError, reason_of
from radixlm.core.request import Hint
from radixlm.formats.private_files import open_private
from radixlm.formats.trace_lines import Recorded, header, trace_line
from radixlm.sim.calls import Problems, TraceSession
from radixlm.sim.generators import GENERATORS, Maker
from radixlm.sim.message_logs import MessageLog, MessageTokenizer
from radixlm.sim.trace_files import BLOCK_TOKENS, TraceFile, format_of

# How many sessions are made up, unless there is a limit.
GENERATED = 200
# A file is read once more for the number of its lines, for the progress bar, up to this size.
_COUNTED_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class TraceSource:
    """place: a file, a folder of files that each hold a session or more, or a generator's name.

    model: whose tokenizer and template make tokens of text. tokens_per_block: see TraceFile. limit:
    most sessions; None is all. rate: times as many a second as in the trace. think: seconds between
    an answer and its session's next call, where the trace does not say. seed: for generators.
    no_hints: as if nobody had given any.
    """

    place: str
    model: str | None = None
    tokens_per_block: int = BLOCK_TOKENS
    limit: int | None = None
    rate: float = 1.0
    think: float = 0.0
    seed: int = 0
    no_hints: bool = False

    @property
    def name(self) -> str:
        return Path(self.place).name

    def open(self, problems: Problems) -> Sessions:
        """Raises ConfigError for a place that holds no trace, ModelError."""
        opened = self._open(problems)
        return replace(opened, all=_unhinted(opened.all)) if self.no_hints else opened

    def _open(self, problems: Problems) -> Sessions:
        if self.place in GENERATORS:
            made = GENERATORS[self.place](Maker(self.place, self.seed))
            return Sessions(made, self.limit or GENERATED, self.rate)
        files = self._files()
        kind = format_of(files[0])
        if kind == "messages":
            reader = MessageTokenizer(self.model)
            logs = [MessageLog(path, problems, reader, think=self.think) for path in files]
            return Sessions(chain.from_iterable(logs), self.limit, self.rate)
        if len(files) > 1:
            raise ConfigError(f"{self.place!r} holds several traces with times; give one of them")
        size = self.tokens_per_block
        file = TraceFile(files[0], problems, mooncake=kind == "mooncake", tokens_per_block=size)
        return Sessions(file, self.limit, self.rate, file.scale)

    def count(self) -> int | None:
        """How many calls there are, where a look at the files tells."""
        files = [] if self.place in GENERATORS else self._files()
        size = sum(path.stat().st_size for path in files)
        if not files or size > _COUNTED_BYTES or format_of(files[0]) == "messages":
            return None
        lines = sum(map(_lines_of, files))
        return lines if self.limit is None else min(lines, self.limit)

    def _files(self) -> list[Path]:
        path = Path(self.place)
        files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not files or not files[0].is_file():
            names = ", ".join(GENERATORS)
            raise ConfigError(
                f"there is no trace {self.place!r}: give a file of JSON lines, a folder of such "
                f"files, or one of {names}"
            )
        return files


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of an opened source. scale: tokens that one of a prompt stands for."""

    all: Iterable[TraceSession]
    limit: int | None
    rate: float
    scale: int = 1

    def __iter__(self) -> Iterator[TraceSession]:
        for session in islice(self.all, self.limit):
            yield session if session.at is None else replace(session, at=session.at / self.rate)


def write_trace(path: Path, sessions: Iterable[TraceSession]) -> int:
    """Write them as a token-exact trace, for this user alone; how many calls there are. Raises
    ConfigError for a file that can not be written, or that others may read.
    """
    calls = 0
    try:
        file = open_private(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--write {path}: {reason_of(error)}") from None
    with file:
        file.truncate(0)
        file.write(header(hashed=False))
        for session in sessions:
            for place, call in enumerate(session.calls):
                recorded = Recorded(
                    None if place else session.at,
                    call.prompt,
                    call.answer,
                    namespace=call.namespace.cache_salt,
                    tenant=call.tenant,
                    priority=call.priority,
                    max_tokens=call.max_tokens,
                    breakpoints=call.breakpoints,
                    hint=call.hint,
                    gap=call.gap if place else None,
                )
                file.write(trace_line(recorded))
                calls += 1
    return calls


def _unhinted(sessions: Iterable[TraceSession]) -> Iterator[TraceSession]:
    for session in sessions:
        calls = tuple(replace(call, hint=Hint.NONE) for call in session.calls)
        yield replace(session, calls=calls)


def _lines_of(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(2**20), b""))
