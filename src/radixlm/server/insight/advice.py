"""Advice from the tokens that prompts of the last minutes had to compute again, by cause and
place.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final

from typing_extensions import TypedDict

from radixlm.core.clock import Clock
from radixlm.core.errors import counted
from radixlm.core.misses import POOL_SCALES, MissReport
from radixlm.engine import EngineStats
from radixlm.observe.causes import Cause, Finding, cause_of

WINDOW_SECONDS: Final = 900.0
WINDOW_REQUESTS: Final = 10_000
# How many misses of a group are looked at, and of all groups: in a second, and at once after a time
# without.
_LOOKED_AT = 3
_LOOKS_A_SECOND = 5.0
_LOOKS_AT_ONCE = 20
_LISTED = 20
_NO_ADVICE = frozenset({Cause.NOTHING_MISSED, Cause.HELD_BACK})
_SAMPLE_SECONDS = 15.0
_MILLION = 1e6
# Of the hit rate: less than that is worth no change.
_POINT = 0.01
_THOUSAND = 10_000
# Of a place: the share that counts as full, and from which on states are worth a line.
_FULL, _MOSTLY = 0.9, 0.3


class AdviceEntry(TypedDict):
    """Misses of one cause at one place. token: the first place, where they differ.

    tokens: computed for it. share: of all prompt tokens that were computed in the window.
    """

    text: str
    cause: Cause
    message_index: int | None
    role: str | None
    token: int | None
    requests: int
    tokens: int
    share: float
    example: str | None


class PoolSize(TypedDict):
    """hit_rate: what it would be with `scale` times the pool, of `tokens` tokens."""

    scale: float
    tokens: int
    hit_rate: float


class Advice(TypedDict):
    """window_seconds, requests: what it is made of. hit_rate: of these requests.

    capacity: predicted for all requests of the window, of all keys; empty before the first
    request. pays: which other pool, policy or tier that speaks for, in words.
    """

    window_seconds: float
    requests: int
    prompt_tokens: int
    computed_tokens: int
    hit_rate: float
    advice: list[AdviceEntry]
    capacity: list[PoolSize]
    pays: list[str]


@dataclass(slots=True, eq=False)
class _Group:
    """Misses that are alike before anybody has looked at their text.

    cause: None where only the text tells it. found: the last one that was looked at. example: its
    text, if it may be shown.
    """

    key: Hashable
    tenant: str
    cause: Cause | None
    position: int
    looks: int = 0
    found: Finding | None = None
    example: str | None = None
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Entry:
    """prompt, cached: tokens. cost: those that its cause made to be computed."""

    at: float
    group: _Group
    prompt: int
    cached: int
    cost: int


class MissWindow:
    """The misses of the last 15 minutes, of the last 10,000 requests at most.

    To add one costs a look-up; a text is only looked at for the first misses of a group: those of
    one tenant with the same tokens in front of the same place.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._entries: deque[_Entry] = deque()
        self._groups: dict[Hashable, _Group] = {}
        # When, and what the engine had counted then.
        self._samples = deque([(clock.now(), EngineStats())])
        self._next_look = float("-inf")

    def add(
        self, tenant: str, miss: MissReport, find: Callable[[], Finding], *, shows_text: bool
    ) -> None:
        """Take a request's miss. find: looks at its text."""
        now = self._clock.now()
        self._forget(now)
        cause = cause_of(miss)
        position = miss.position if cause is None else 0
        key = (tenant, cause, position, miss.shared)
        group = self._groups.setdefault(key, _Group(key, tenant, cause, position))
        group.entries += 1
        evicted = cause in (Cause.EVICTED, Cause.WINDOW_EVICTED, Cause.NO_STATE)
        cost = miss.evicted if evicted else miss.prompt_tokens - miss.cached
        self._entries.append(_Entry(now, group, miss.prompt_tokens, miss.cached, cost))
        if cause is None and group.looks < _LOOKED_AT and now >= self._next_look:
            earliest = now - _LOOKS_AT_ONCE / _LOOKS_A_SECOND
            self._next_look = max(self._next_look, earliest) + 1 / _LOOKS_A_SECOND
            group.looks += 1
            group.found = find()
            if shows_text and group.found.difference is not None:
                group.example = group.found.difference.marked

    def sample(self, stats: EngineStats) -> None:
        """Take note of what the engine has counted, now and then."""
        now = self._clock.now()
        if now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, stats))
        while len(self._samples) > 1 and self._samples[1][0] < now - WINDOW_SECONDS:
            self._samples.popleft()

    def advice(self, stats: EngineStats, tenant: str | None) -> Advice:
        """The advice for one tenant's misses, for all with None. O(requests in the window)."""
        self._forget(self._clock.now())
        entries = [e for e in self._entries if tenant is None or e.group.tenant == tenant]
        prompt = sum(entry.prompt for entry in entries)
        computed = prompt - sum(entry.cached for entry in entries)
        capacity = self._capacity(stats)
        return {
            "window_seconds": WINDOW_SECONDS,
            "requests": len(entries),
            "prompt_tokens": prompt,
            "computed_tokens": computed,
            "hit_rate": 1 - computed / prompt if prompt else 0.0,
            "advice": _listed(entries, computed),
            "capacity": capacity,
            "pays": self._paying(stats, capacity),
        }

    def _capacity(self, stats: EngineStats) -> list[PoolSize]:
        _, first = self._samples[0]
        prompt = stats.prompt_tokens - first.prompt_tokens
        if not prompt:
            return []
        pairs = zip(POOL_SCALES, stats.expected_tokens, first.expected_tokens, strict=True)
        return [
            {
                "scale": scale,
                "tokens": int(scale * stats.kv_capacity),
                "hit_rate": (expected - before) / prompt,
            }
            for scale, expected, before in pairs
        ]

    def _paying(self, stats: EngineStats, capacity: list[PoolSize]) -> list[str]:
        """The pool sizes that bring a point of the hit rate or more, and whether half the pool
        would do. Only LRU's pools are known of all sizes: it is what others are measured by. They
        know nothing of states, without which what a larger pool holds is not found.
        """
        if not capacity:
            return []
        if stats.mamba_capacity:
            return _full_of_states(stats)
        _, first = self._samples[0]
        rate = (stats.cached_tokens - first.cached_tokens) / (
            stats.prompt_tokens - first.prompt_tokens
        )
        by_scale = {size["scale"]: size for size in capacity}
        own, found, last = by_scale[1.0]["hit_rate"], list[str](), rate
        if own >= rate + _POINT:
            found.append(f"--eviction-policy lru: {_gain(own, rate)}")
        for scale, size in by_scale.items():
            if scale > 1 and size["hit_rate"] >= max(last, own) + _POINT:
                last = size["hit_rate"]
                pool = f"--kv-tokens {size['tokens']}, {scale:g} times the pool"
                found.append(f"{pool}: {_gain(last, rate)}")
        if last > rate and not stats.host_capacity and not stats.disk_capacity:
            more = max(size["tokens"] for size in capacity) - stats.kv_capacity
            found.append(
                f"--host-kv-tokens {more}, or --disk-cache: up to {_gain(last, rate)}, where "
                "reading takes less time than computing"
            )
        found += _full_of_states(stats) if last > rate else []
        half = by_scale[min(by_scale)]
        if not found and half["hit_rate"] > rate - _POINT:
            found.append(
                f"a smaller pool would do, --kv-tokens {half['tokens']}: "
                f"{_gain(half['hit_rate'], rate)}"
            )
        return found

    def _forget(self, now: float) -> None:
        entries = self._entries
        while entries and (entries[0].at < now - WINDOW_SECONDS or len(entries) >= WINDOW_REQUESTS):
            group = entries.popleft().group
            group.entries -= 1
            if not group.entries:
                del self._groups[group.key]


def _listed(entries: Iterable[_Entry], computed: int) -> list[AdviceEntry]:
    """Groups of one cause and message together: those first for which something can be done, and of
    these those that cost most.
    """
    together: dict[Hashable, list[_Entry]] = defaultdict(list)
    for entry in entries:
        cause, found = _cause(entry.group), entry.group.found
        if cause in _NO_ADVICE:
            continue
        spot = None if found is None else found.spot
        together[cause, spot and (spot.message, spot.role)].append(entry)
    made = [_entry(alike, computed) for alike in together.values()]
    made.sort(key=lambda entry: (not Cause(entry["cause"]).fix, -entry["tokens"]))
    return made[:_LISTED]


def _cause(group: _Group) -> Cause:
    if group.found is not None:
        return group.found.cause
    return group.cause or Cause.NEW_TEXT


def _entry(alike: list[_Entry], computed: int) -> AdviceEntry:
    group = max((entry.group for entry in alike), key=lambda group: group.found is not None)
    found = group.found or Finding(_cause(group), group.position)
    tokens = sum(entry.cost for entry in alike)
    share = tokens / computed if computed else 0.0
    places = {entry.group.position for entry in alike}
    diverged = group.cause is None
    example = next((e.group.example for e in alike if e.group.example), None)
    return {
        "text": _sentence(found, len(alike), tokens, share, places if diverged else set()),
        "cause": found.cause,
        "message_index": None if found.spot is None else found.spot.message,
        "role": None if found.spot is None else found.spot.role,
        "token": min(places) if diverged else None,
        "requests": len(alike),
        "tokens": tokens,
        "share": share,
        "example": example,
    }


def _sentence(found: Finding, requests: int, tokens: int, share: float, places: set[int]) -> str:
    who = counted(requests, "request")
    cost = f"{_short(tokens)} tokens computed"
    if found.cause not in (Cause.FIRST_SEEN, Cause.NEW_TEXT):
        cost += " again"
    end = f"; {found.fix}." if found.fix else "."
    if not places:
        return f"{who}: {found.what}; {cost} ({share:.0%} of all){end}"
    low, high = min(places), max(places)
    token = f"token {low}" if low == high else f"tokens {low} to {high}"
    where = token if found.spot is None else f"{found.spot}, {token}"
    verb = "diverge" if requests > 1 else "diverges"
    return f"{who} {verb} at {where}: {found.what}; {cost} ({share:.0%} of all){end}"


def _full_of_states(stats: EngineStats) -> list[str]:
    """The places that are nearly full, mostly of checkpoints of states, and what helps."""
    places = (
        ("host memory", "--host-kv-tokens", stats.host_capacity, stats.host_state_tokens),
        ("the disk cache", "--disk-cache-gb", stats.disk_capacity, stats.disk_state_tokens),
    )
    used = stats.host_tokens, stats.disk_tokens
    return [
        f"{flag}: {name} is full, checkpoints of states take {states / room:.0%} of its "
        f"{room} tokens; each takes whole blocks, so a smaller --disk-block-tokens helps, too"
        for (name, flag, room, states), tokens in zip(places, used, strict=True)
        if tokens > _FULL * room and states > _MOSTLY * room
    ]


def _gain(rate: float, now: float) -> str:
    return f"hit rate {rate:.1%} ({100 * (rate - now):+.1f} points)"


def _short(tokens: int) -> str:
    if tokens >= _MILLION:
        return f"{tokens / _MILLION:.1f} M"
    return f"{tokens // 1000} k" if tokens >= _THOUSAND else str(tokens)
