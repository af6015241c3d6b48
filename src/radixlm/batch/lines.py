"""The lines of a batch's input: what each must say, and by which key it is put in order."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from radixlm.core.errors import InvalidRequestError

# The routes that a line may name, and the fields of their bodies that hold the prompt.
ENDPOINTS = {
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input",),
    "/v1/embeddings": ("input",),
}
# What a prompt depends on beside them: templates write it in front, or nothing is shared without.
_BEFORE = (
    *("model", "lora_path", "cache_salt", "extra_key", "chat_template_kwargs", "prompt_name"),
    *("reasoning_effort", "previous_response_id", "tools", "instructions"),
)
LONGEST_ID = 512
# A key is exact up to here, and then a digest for each block: no key is long, and prefixes that
# part beyond stand together up to a block's length.
_EXACT, _BLOCK, _DIGEST = 262_144, 65_536, 8


class LineError(InvalidRequestError):
    """A line of the input that no request can be made of. number: from 1 on. code: OpenAI's."""

    def __init__(self, number: int, message: str, code: str = "invalid_json_line") -> None:
        super().__init__(f"line {number}: {message}")
        self.number, self.code = number, code


class RawLine(NamedTuple):
    """number: from 0 on, blank ones counted. offset: of its first byte in the file."""

    number: int
    offset: int
    content: bytes


def raw_lines(path: Path, longest: int) -> Iterator[RawLine]:
    """Yield the lines of a file that are not blank, one at a time in memory.

    Raises LineError for one of more than `longest` bytes, OSError.
    """
    with path.open("rb") as file:
        # Editors on Windows write this mark in front of the first line.
        offset = file.seek(len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0)
        number = 0
        while content := file.readline(longest + 1):
            if len(content) > longest and not content.endswith(b"\n"):
                raise LineError(number + 1, f"is longer than {longest} bytes")
            if not content.isspace():
                yield RawLine(number, offset, content)
            number += 1
            offset += len(content)


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch."""

    custom_id: str
    url: str
    body: dict[str, Any]

    @classmethod
    def parse(cls, number: int, content: bytes, endpoint: str | None = None) -> BatchLine:
        """Read a line. endpoint: the only url that it may have. Raises LineError."""
        value = _object(number, content)
        custom_id, url, body = value.get("custom_id"), value.get("url"), value.get("body")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
            wish = f"custom_id must be text of 1 to {LONGEST_ID} characters"
            raise LineError(number, f"{wish}, got {custom_id!r:.80}", "invalid_custom_id")
        if value.get("method", "POST") != "POST":
            raise LineError(
                number, f"method must be POST, got {value['method']!r:.80}", "invalid_method"
            )
        urls = [endpoint] if endpoint else [*ENDPOINTS]  # a list: a url may be no key of a dict
        if url not in urls:
            wish = " or ".join(urls)
            raise LineError(number, f"url must be {wish}, got {url!r:.80}", "invalid_url")
        if not isinstance(body, dict):
            raise LineError(number, f"body must be an object, got {body!r:.80}", "invalid_body")
        return cls(custom_id, url, body)

    def key(self) -> bytes:
        """Bytes that begin alike for as long as prompts do, so that sorting them is a depth-first
        order of the tree of prompts.
        """
        before = [self.url, *(self.body.get(name) for name in _BEFORE)]
        prompt = [self.body.get(name) for name in ENDPOINTS[self.url]]
        # Sorted names: in which order a client writes a message's is nothing to the prompt.
        try:
            key = json.dumps([before, prompt], sort_keys=True, separators=(",", ":")).encode()
        except RecursionError:  # the route refuses it
            return self.url.encode()
        if len(key) <= _EXACT:
            return key
        blocks = range(_EXACT, len(key), _BLOCK)
        digests = (
            blake2b(key[start : start + _BLOCK], digest_size=_DIGEST).digest() for start in blocks
        )
        return key[:_EXACT] + b"".join(digests)


def _object(number: int, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise LineError(number, f"is not valid JSON: {error!s:.200}") from None
    if not isinstance(value, dict):
        raise LineError(number, f"must be a JSON object, got {value!r:.80}")
    return value
