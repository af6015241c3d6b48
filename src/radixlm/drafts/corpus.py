"""Drafts from texts that an operator gives: `--draft-corpus`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path

import numpy as np

from radixlm.core.errors import ConfigError, reason_of
from radixlm.core.keys import Key
from radixlm.drafts.draft import Draft
from radixlm.drafts.token_log import LEAD, REACH, TokenLog

SOURCE = "corpus"
MOST_TOKENS = 4_000_000
# More than a token has of a text, so that a file is refused before all of it is tokenized.
_BYTES_A_TOKEN = 16
_PIECE = 1 << 16


class CorpusDrafts:
    """Proposes what followed on a request's last tokens in texts that all namespaces may see."""

    def __init__(self) -> None:
        self._log = TokenLog()

    @classmethod
    def load(
        cls, path: Path, encode: Callable[[str], Key], vocab_size: int, most: int = MOST_TOKENS
    ) -> CorpusDrafts:
        """Take a file's text, or those of all files in a folder, by name; hidden ones are left out.
        vocab_size: the model's. Raises ConfigError for what can not be read, for more than `most`
        tokens, and for one that the model does not have.
        """
        drafts, left = cls(), most
        for text in _texts(path, most * _BYTES_A_TOKEN):
            key = encode(text)
            left -= key.size
            if left < 0:
                raise ConfigError(f"--draft-corpus {path}: more than {most} tokens")
            if key.max(initial=0) >= vocab_size:
                raise ConfigError(
                    f"--draft-corpus {path} holds token id {key.max()}, the model's ids end at "
                    f"{vocab_size - 1}"
                )
            drafts.add(key)
        if left == most:
            raise ConfigError(f"--draft-corpus {path} has no text")
        return drafts

    @property
    def nbytes(self) -> int:
        return self._log.nbytes

    def add(self, text: Key) -> None:
        """Add a text. The log takes as much memory as it needs; `load` sees that it is bounded."""
        for start in range(0, text.size, _PIECE):
            piece = text[start : start + _PIECE]
            most = self._log.capacity_for(piece.size)
            self._log.write(text[max(start - LEAD, 0) : start], piece, most)

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """See DraftSource."""
        found = self._log.find(np.asarray(tokens[-REACH:], dtype=np.int32).tobytes())
        if not found.matched:
            return None
        return Draft(tuple(self._log.after(found.place, most)), SOURCE, found.matched)


def _texts(path: Path, most_bytes: int) -> Iterator[str]:
    """The texts at a path, as long as they have no more than `most_bytes` together."""
    left = most_bytes
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        if file is not path and any(part.startswith(".") for part in file.relative_to(path).parts):
            continue
        try:
            if file.exists() and not file.is_file():
                raise OSError("it is neither a file nor a folder")
            if (left := left - file.stat().st_size) < 0:
                raise ConfigError(f"--draft-corpus {path} is larger than {most_bytes} bytes")
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--draft-corpus {path}: {file} can not be read: {reason_of(error)}"
            ) from None
        if text:
            yield text
