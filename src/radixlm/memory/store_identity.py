"""A digest of all that keys and values depend on beside their tokens."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

# Changes with the layout of a block's bytes; that of the files is in `store_schema`.
BLOCK_LAYOUT = 1
# The fact that layers with window slots stand behind the others in a block, in as many bytes.
WINDOW_BYTES = "window_bytes"
_DIGEST_BYTES = 32

Fact = str | int | float | bool | None


@dataclass(frozen=True)
class StoreIdentity:
    """facts: all that makes keys and values what they are. name: what a user is shown beside them;
    a copy of a model in another folder may have another one.
    """

    facts: Mapping[str, Fact]
    name: str = ""

    def digest(self, block_tokens: int, block_bytes: int) -> str:
        """64 hexadecimal digits, of the version of a block's layout and of its sizes too."""
        return digest_of({**self.facts, "": [BLOCK_LAYOUT, block_tokens, block_bytes]})

    def described(self) -> str:
        return json.dumps({"model": self.name, **self.facts}, sort_keys=True)


def digest_of(value: object) -> str:
    """64 hexadecimal digits of what JSON can say."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
