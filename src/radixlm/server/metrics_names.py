"""The names that other servers give to the metrics of this one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

PREFIX: Final = "radixlm:"
_LINE = re.compile(
    rf"^(?P<head># (?:HELP|TYPE) )?{PREFIX}(?P<name>\w+?)"
    r"(?P<part>(?:_total|_bucket|_count|_sum)?(?:_created)?)(?=[ {]).*\n",
    re.MULTILINE,
)
# vLLM's of the same meaning; what it has beyond these is counted otherwise here, or not at all.
VLLM: Final[Mapping[str, tuple[str, ...]]] = {
    "num_running_reqs": ("num_requests_running",),
    "num_queue_reqs": ("num_requests_waiting",),
    "token_usage": ("kv_cache_usage_perc",),
    "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "cached_tokens": ("prompt_tokens_cached", "prefix_cache_hits"),
    "generation_tokens": ("generation_tokens",),
    "num_retractions": ("num_preemptions",),
    "time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "inter_token_latency_seconds": ("inter_token_latency_seconds",),
    "queue_time_seconds": ("request_queue_time_seconds",),
    "e2e_request_latency_seconds": ("e2e_request_latency_seconds",),
}


def as_sglang(text: str) -> str:
    """All of them: the names are SGLang's already, but for their prefix."""
    return _LINE.sub(lambda line: _renamed(line, f"sglang:{line['name']}"), text)


def as_vllm(text: str) -> str:
    """Those that it has."""
    lines: dict[str, list[str]] = {}
    for line, name in _with_vllm_names(text):
        lines.setdefault(name, []).append(_renamed(line, f"vllm:{name}"))
    return "".join(line for family in lines.values() for line in family)


def _with_vllm_names(text: str) -> Iterator[tuple[re.Match[str], str]]:
    for line in _LINE.finditer(text):
        for name in VLLM.get(line["name"], ()):
            yield line, name


def _renamed(line: re.Match[str], name: str) -> str:
    return f"{line['head'] or ''}{name}{line[0][line.end('name') - line.start() :]}"
