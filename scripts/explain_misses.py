"""Ten prompts that share, diverge, were evicted, or carry another salt; what the cache says.

python scripts/explain_misses.py
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from radixlm.core.reports import MissReport
from radixlm.core.request import Namespace

SYSTEM = list(range(100, 150))
EXAMPLES = list(range(200, 230))


def serve(
    cache: RadixCache,
    prompt: Sequence[int],
    *,
    salt: str = "",
    max_match: int | None = None,
) -> MissReport:
    """Acquire, "compute", commit, release; the report is frozen when the lease is acquired."""
    lease = cache.acquire(prompt, Namespace(cache_salt=salt), max_match=max_match)
    lease.extend(len(prompt) - lease.cached)
    lease.commit(len(prompt))
    lease.release()
    return lease.why()


def main() -> None:
    clock = VirtualClock()
    cache = RadixCache(capacity=160, clock=clock)
    paged = RadixCache(capacity=160, page_size=16, clock=clock)
    table = Table(title="why() of ten prompts, one after the other (pool of 160 tokens)")
    for name in ("prompt", "why"):
        table.add_column(name)

    def add(name: str, report: MissReport) -> None:
        clock.advance(4.0)
        table.add_row(name, str(report))

    add("the very first", serve(cache, [*SYSTEM, 1, 2, 3]))
    add("the same system prompt, another question", serve(cache, [*SYSTEM, 7, 8, 9]))
    add("exactly the same again", serve(cache, [*SYSTEM, 7, 8, 9]))
    add("the chat goes on", serve(cache, [*SYSTEM, 7, 8, 9, 10, 11, 12]))
    add("a date in the system prompt", serve(cache, [*SYSTEM[:18], 5, *SYSTEM[19:], 7, 8, 9]))
    add("another salt", serve(cache, [*SYSTEM, 7, 8, 9], salt="tenant b"))
    add("with prompt log-probabilities", serve(cache, [*SYSTEM, 7, 8, 9], max_match=0))
    serve(cache, list(range(300, 430)))
    clock.advance(36.0)
    add("after a long prompt took the room", serve(cache, [*SYSTEM, 1, 2, 3]))
    serve(paged, [*SYSTEM, 7, 8, 9])
    add("pages of 16: less than a page is left", serve(paged, SYSTEM))
    add("pages of 16: diverges within a page", serve(paged, [*SYSTEM[:40], *EXAMPLES]))
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
