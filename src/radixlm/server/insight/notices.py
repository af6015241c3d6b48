"""Notices of what is changed of requests, each once in the log."""

from __future__ import annotations

import logging
import threading
from typing import Final

_logger = logging.getLogger("radixlm.server")

# Clients choose the names of fields.
MAX_NOTICES: Final = 256


class Notices:
    """Logs each text when it first comes, up to MAX_NOTICES of them. From any thread."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._lock = threading.Lock()

    def once(self, text: str) -> None:
        """Log a text that was not logged before."""
        with self._lock:
            if text in self._said or len(self._said) >= MAX_NOTICES:
                return
            self._said.add(text)
        _logger.info("%s", text)
