"""How log lines are written."""

from __future__ import annotations

import json
import logging
import time

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
