"""What `why()` prints, for ten prompts that share, diverge, were evicted, or carry another salt.

python -m tests.unit.cache.test_ten_prompts     # prints the table
"""

from __future__ import annotations

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from tests.invariants import check

SYSTEM = list(range(100, 140))
ELEVEN = " ".join(map(str, SYSTEM[21:32]))
DOCUMENT = list(range(500, 540))

# name, tokens, salt, the most that may be matched, what is printed
PROMPTS: list[tuple[str, list[int], str | None, int | None, str]] = [
    ("the same again", [*SYSTEM, 1, 2, 3], None, None,
     "42 of 43 tokens cached; the last token is always computed"),
    ("it goes on", [*SYSTEM, 1, 2, 3, 4, 5], None, None,
     "43 of 45 tokens cached; nothing known goes on at token 43"),
    ("another question", [*SYSTEM, 1, 9, 9], None, None,
     "41 of 43 tokens cached; diverged at token 41: cached [2 3 …], requested [9 …]"),
    ("an edited system prompt", [*SYSTEM[:20], 7, *SYSTEM[21:]], None, None,
     (f"20 of 40 tokens cached; diverged at token 20: cached [120 {ELEVEN} …], "
      f"requested [7 {ELEVEN} …]")),
    ("never seen", [900, 901, 902], None, None,
     "0 of 3 tokens cached; nothing known goes on at token 0"),
    ("half of it was evicted", [*DOCUMENT, 8], None, None,
     "33 of 41 tokens cached; 7 from token 33 on were evicted 40.0 s ago, after 1 hit"),
    ("it was evicted", [300, 301, 302, 303, 9], None, None,
     "0 of 5 tokens cached; 4 from token 0 on were evicted 40.0 s ago, after 0 hits"),
    ("another salt", [*SYSTEM, 1, 2, 3], "tenant-b", None,
     "0 of 43 tokens cached; nothing known goes on at token 0"),
    ("its own salt", [700, 701, 702, 5], "tenant-a", None,
     "3 of 4 tokens cached; the last token is always computed"),
    ("prompt log-probabilities", [*SYSTEM, 1, 2, 3], None, 0,
     "0 of 43 tokens cached; no more was wanted from the cache"),
]  # fmt: skip


def filled() -> RadixCache:
    """A pool of 90 in which 11 tokens had to go, 40 seconds ago."""
    clock = VirtualClock()
    cache = RadixCache(90, clock=clock)
    serve(cache, [300, 301, 302, 303])
    serve(cache, DOCUMENT)
    cache.acquire([*DOCUMENT, 8]).release()
    serve(cache, [*SYSTEM, 1, 2, 3])
    serve(cache, [700, 701, 702], "tenant-a")
    pressure = cache.acquire(list(range(10, 21)))
    pressure.extend(11)
    pressure.release()
    clock.advance(40)
    return cache


def serve(cache: RadixCache, tokens: list[int], salt: str | None = None) -> None:
    lease = cache.acquire(tokens, salt)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()


def told() -> list[tuple[str, str]]:
    """(name, what is printed) for each."""
    cache = filled()
    rows = []
    for name, tokens, salt, most, _ in PROMPTS:
        lease = cache.acquire(tokens, salt, max_match=most)
        rows.append((name, str(lease.why())))
        lease.release()
    check(cache)
    return rows


def test_ten_prompts() -> None:
    assert told() == [(name, printed) for name, *_, printed in PROMPTS]


if __name__ == "__main__":
    for name, printed in told():
        print(f"{name:<26} {printed}")
