"""A miss as JSON, beside a request's usage."""

from __future__ import annotations

from collections.abc import Mapping

from radixlm.core.misses import MissReport
from radixlm.observe.causes import Cause, Finding, find
from radixlm.server.pipeline.cache_wire import CacheReport, CacheReported
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.service import Service


def reported(
    service: Service, generation: Generation, misses: Mapping[int, MissReport]
) -> CacheReported:
    """What an answer has beside its usage: nothing, unless a report was asked for.

    misses: by prompt. It takes a part of a millisecond for each.
    """
    if not generation.cache_report or not misses:
        return {}
    reports = [
        report_of(service, generation, prompt, miss) for prompt, miss in sorted(misses.items())
    ]
    return {"cache_report": reports[0] if len(generation.prompts) == 1 else reports}


def report_of(
    service: Service, generation: Generation, prompt: int, miss: MissReport
) -> CacheReport:
    """The report of one of a generation's prompts."""
    request = generation.requests[prompt * generation.n]
    shown = service.shows_cached_text(request.tenant, request.namespace)
    tokenizer, outline = service.engine.tokenizer, generation.outline
    found = find(tokenizer, miss, request.key, outline, others=not shown)
    return as_report(prompt, miss, found, shows_text=shown)


def as_report(index: int, miss: MissReport, found: Finding, *, shows_text: bool) -> CacheReport:
    """shows_text: whether what is cached may be shown to the client."""
    report: CacheReport = {
        "index": index,
        "prompt_tokens": miss.prompt_tokens,
        "cached_tokens": {"device": miss.cached},
        "computed_tokens": miss.prompt_tokens - miss.cached,
        "reason": miss.reason,
        "cause": found.cause,
        "text": _sentence(miss, found, shows_text=shows_text),
        "advice": found.fix or None,
    }
    parted = found.difference
    if parted is not None:
        spot = found.spot
        report["divergence"] = {
            "token": found.position,
            "message_index": None if spot is None else spot.message,
            "role": None if spot is None else spot.role,
            "retokenized": found.cause == "retokenized",
            "context": parted.marked if shows_text else None,
            "cached": parted.cached if shows_text else None,
            "requested": parted.requested if shows_text else None,
        }
    if miss.evicted_ago is not None:
        report["evicted_tokens"] = miss.evicted
        report["evicted_seconds_ago"] = miss.evicted_ago
    if miss.hits is not None:
        report["hits"] = miss.hits
    return report


def _sentence(miss: MissReport, found: Finding, *, shows_text: bool) -> str:
    head = f"{miss.cached} of {miss.prompt_tokens} tokens were cached"
    parted = found.difference
    if parted is not None:
        shown = f": {parted.marked}" if shows_text else ""
        return f"{head}; they diverge at {found.place}, where {found.what}{shown}"
    if miss.evicted_ago is not None:
        had_been = f"{miss.evicted} from {found.place} on had been"
        rest = "" if found.cause is Cause.EVICTED else f"; of the rest {found.what}"
        return f"{head}; {had_been}, but had to make room {miss.evicted_ago:.1f} s ago{rest}"
    if found.cause is Cause.FIRST_SEEN and miss.cached:
        return f"{head}; from {found.place} on {found.what}"
    return f"{head}; {found.what}"
