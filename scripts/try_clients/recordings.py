"""What clients sent, one JSON line a request: written here, sent again by the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "server" / "recordings"
# Prompts of agents are long, and theirs: their beginning says enough.
LONGEST_TEXT = 200
_NO_ANSWER = ("tokenize", "count_tokens", "/render")
_GRAMMARS = ("grammar", "guided_grammar", "pattern", "regex")  # half of one is none
_ID_KEYS = ("id", "call_id", "item_id")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what came of it.

    headers: those that ask for something. prompt, cached: its tokens, and those of them from the
    cache, where the answer has them. ids: those in the answer, in their order, for a later request
    may name them.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any
    status: int
    ids: Sequence[str]
    prompt: int | None = None
    cached: int | None = None

    @property
    def asks(self) -> bool:
        """Whether it asks the model for something; vllm-router can do without /render."""
        return self.method == "POST" and not self.path.endswith(_NO_ANSWER)


def events_of(text: str) -> Iterator[Any]:
    """The JSON of an answer: its one value, or that of each event of a stream."""
    if not text.startswith(("data:", "event:", ":")):
        yield json.loads(text)
        return
    for line in text.splitlines():
        if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
            yield json.loads(data)


def tokens_in(answer: Sequence[Any]) -> tuple[int | None, int | None]:
    """Of the prompt, and of those from the cache: the most that any event of an answer has."""
    found: dict[str, int] = {}
    for key, count in _counts(answer):
        found[key] = max(count, found.get(key, 0))
    if (read := found.get("cache_read_input_tokens")) is not None:
        written = found.get("cache_creation_input_tokens", 0)
        return found.get("input_tokens", 0) + read + written, read
    return found.get("prompt_tokens", found.get("input_tokens")), found.get("cached_tokens")


def ids_in(answer: Sequence[Any]) -> list[str]:
    """Every id of an answer, once, in the order in which they come."""
    return list(dict.fromkeys(name for event in answer for name in _ids(event)))


def cut(value: Any) -> Any:
    """The same with long texts cut short."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, list):
        return [cut(each) for each in value]
    if isinstance(value, dict):
        return {key: each if key in _GRAMMARS else cut(each) for key, each in value.items()}
    return value


def save(name: str, exchanges: Sequence[Exchange], hidden: Mapping[str, str]) -> None:
    """Write a client's recording. hidden: what no file may hold, and what to write instead."""
    lines = []
    for exchange in exchanges:
        line = json.dumps(asdict(exchange), ensure_ascii=False)
        for secret, instead in hidden.items():
            line = line.replace(json.dumps(secret, ensure_ascii=False)[1:-1], instead)
        row = json.loads(line)
        lines.append(json.dumps({**row, "body": cut(row["body"])}, ensure_ascii=False))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def load(path: Path) -> list[Exchange]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [Exchange(**json.loads(line)) for line in lines if line]


def _counts(value: Any) -> Iterator[tuple[str, int]]:
    for key, each in _items(value):
        if isinstance(each, int) and "tokens" in key:
            yield key, each
        else:
            yield from _counts(each)


def _ids(value: Any) -> Iterator[str]:
    for key, each in _items(value):
        if key in _ID_KEYS and isinstance(each, str) and len(each) > len("call_0"):
            yield each
        else:
            yield from _ids(each)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list):
        yield from (("", each) for each in value)
