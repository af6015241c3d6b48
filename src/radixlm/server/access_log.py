"""The access log: one structured line per request, never a word of a prompt."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from radixlm.core.wording import counted
from radixlm.server.exchange import Exchange

# In the scope of a request that the server made for itself.
UNLOGGED = "radixlm.unlogged"

_logger = logging.getLogger("radixlm.access")
_PLAIN = re.compile(r"[\w./:+-]+", re.ASCII)
_LONGEST_PATH = 200


def log_access(exchange: Exchange, seconds: float) -> None:
    """Write the line of a request that is over.

    The record's `fields` holds the same as its message; json_log writes them.
    """
    if not _logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "method": exchange.method,
        "path": exchange.path[:_LONGEST_PATH],
        "status": exchange.status,
    }
    if exchange.usage is not None:
        usage = exchange.usage.as_json()
        fields["prompt_tokens"] = usage["prompt_tokens"]
        fields["cached_tokens"] = usage["prompt_tokens_details"]["cached_tokens"]
        fields["output_tokens"] = usage["completion_tokens"]
    if exchange.traceparent is not None:
        fields["traceparent"] = exchange.traceparent
    fields["seconds"] = round(seconds, 4)
    _logger.info("%s", _in_words(fields), extra={"fields": fields})


def _in_words(fields: Mapping[str, Any]) -> str:
    status = fields["status"] or "left before an answer"
    parts = [f"{_plain(fields['method'])} {_plain(fields['path'])} {status}"]
    if "prompt_tokens" in fields:
        prompt, cached = fields["prompt_tokens"], fields["cached_tokens"]
        parts += [f"prompt {counted(prompt, 'token')}, {cached} cached"]
        parts += [f"answer {fields['output_tokens']}"]
    parts.append(f"{fields['seconds']:.3f} s, id {_plain(fields['request_id'])}")
    if "traceparent" in fields:
        parts.append(f"trace {fields['traceparent']}")
    return "; ".join(parts)


def _plain(value: object) -> str:
    """Quoted and escaped unless it is harmless: a client must not be able to forge a line."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
