"""Regular expressions that end an answer."""

from __future__ import annotations

import re
from collections.abc import Sequence


class PatternStops:
    """Finds the first place where the text ends with what a pattern matches, whatever pieces it
    comes in. A character costs time in proportion to the text before it.

    matched: the pattern that ended it, None as long as none did.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [re.compile(pattern) for pattern in patterns]
        self._text = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """What of the piece is part of the answer.

        >>> PatternStops(["[.!]"]).feed("Yes. No.")
        'Yes.'
        """
        start = len(self._text)
        self._text += piece
        for end in range(start + 1, len(self._text) + 1) if self._patterns else ():
            for pattern in self._patterns:
                if pattern.search(self._text, 0, end):
                    self.matched = pattern.pattern
                    return self._text[start:end]
        return piece
