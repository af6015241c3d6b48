"""How log lines are written; and notices of what is changed of requests, each once in the log."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import Final

from radixlm.server.config.server_config import LogFormat


def log_to_stderr(log_format: LogFormat) -> None:
    """Log this process's lines to stderr, from INFO on."""
    handler = logging.StreamHandler()
    plain = logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
    handler.setFormatter(JsonFormatter() if log_format == "json" else plain)
    logging.basicConfig(handlers=[handler])
    logging.getLogger("radixlm").setLevel(logging.INFO)


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (UTC), level, logger, and the message or its fields."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        line |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


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
