"""The reasons why a prompt was not found in the cache, and the sizes of pools that are
predicted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from radixlm.core.errors import counted

# How much of a cached text is shown on either side of the place where a prompt leaves it.
SHOWN_TOKENS: Final = 12
# Sizes of the pool, as multiples of its own, for which the cache predicts what it would hold.
POOL_SCALES: Final = (0.5, 1.0, 2.0, 4.0)


class MissReason(StrEnum):
    """The reason why a match ended where it did."""

    NEW = "new"  # no prompt that was ever cached continues like this
    DIVERGED = "diverged"  # something else follows there
    EVICTED = "evicted"  # it was there, but had to go
    WINDOW_EVICTED = "window_evicted"  # it is there, but not a whole window in layers with one
    NO_STATE = "no_state"  # it is there, but no state of the model after any token of it
    LAST_TOKEN = "last_token"  # noqa: S105
    # all hit but the last token, or its page: its logits are wanted
    HELD_BACK = "held_back"  # the caller wanted no more, say for prompt log-probabilities
    PAGE_FLOOR = "page_floor"  # the rest is less than a page
    BLOCK_FLOOR = "block_floor"  # all is known that is on disk, and the rest is less than a block
    DISABLED = "disabled"  # the cache is off


@dataclass(frozen=True, slots=True)
class MissReport:
    """A report of why a prompt hit as much as it did, frozen when its lease was acquired. Sizes in
    tokens.

    position: where it ends: `cached`, or with pages, for `diverged`, the very token that differs.
    shared, cached_next, requested_next: for `diverged`, the bytes of the int32 ids around it: the
        last ones before `position`, and the cached and the requested ones from there on; more than
        is shown, to compare lists whose entries changed places.
    evicted, evicted_ago: for `evicted`, how many tokens from there on had been cached, and how many
        seconds ago the first of them was evicted, None where another run of the server had them.
        hits: how often the tokens there had been found. For `window_evicted` and `no_state`, how
        many are cached from there on, but for what the reason names.
    on_host, on_disk: of these, how many could have been copied from host memory, in about
        host_seconds where that is known, and of the rest read from disk, in read_seconds.
        computed_because: why they were not.
    from_host, from_disk: of `cached`, how many were read from there for it; None where there is no
        such store.
    replica, routed_because: of several replicas, which one it was, and why.
    """

    prompt_tokens: int
    cached: int
    reason: MissReason
    position: int
    shared: bytes = b""
    cached_next: bytes = b""
    requested_next: bytes = b""
    evicted: int = 0
    evicted_ago: float | None = None
    hits: int | None = None
    on_host: int = 0
    host_seconds: float | None = None
    on_disk: int = 0
    read_seconds: float | None = None
    computed_because: str = ""
    from_host: int | None = None
    from_disk: int | None = None
    replica: str = ""
    routed_because: str = ""

    @property
    def cached_continuation(self) -> tuple[int, ...]:
        """The first cached token ids from `position` on, for `diverged`."""
        return _first(self.cached_next)

    @property
    def requested_continuation(self) -> tuple[int, ...]:
        """The first requested token ids from `position` on, for `diverged`."""
        return _first(self.requested_next)

    @property
    def stored_in_words(self) -> str:
        """Say what of the evicted tokens is in host memory or on disk, and why it was computed; ""
        for nothing.
        """
        parts = []
        for tokens, where, seconds in (
            (self.on_host, "in host memory", self.host_seconds),
            (self.on_disk, "on disk", self.read_seconds),
        ):
            if tokens:
                parts.append(f"{tokens} are {where}")
                parts += [] if seconds is None else [f"{1e3 * seconds:.1f} ms to read"]
        if parts and self.computed_because:
            parts.append(f"computed instead because {self.computed_because}")
        return ", ".join(parts)

    def _went(self) -> str:
        """Say what had become of evicted tokens."""
        went = "were never in this pool"
        if self.evicted_ago is not None:
            hits = counted(self.hits or 0, "hit")
            went = f"were evicted {self.evicted_ago:.1f} s ago, after {hits}"
        return ", ".join(filter(None, (went, self.stored_in_words)))

    def __str__(self) -> str:
        head = f"{self.cached} of {self.prompt_tokens} tokens cached"
        match self.reason:
            case MissReason.NEW:
                rest = f"nothing known goes on at token {self.position}"
            case MissReason.DIVERGED:
                rest = (
                    f"diverged at token {self.position}: cached "
                    f"{_ids(self.cached_continuation)}, requested "
                    f"{_ids(self.requested_continuation)}"
                )
            case MissReason.EVICTED:
                rest = f"{self.evicted} from token {self.position} on {self._went()}"
            case MissReason.WINDOW_EVICTED:
                rest = (
                    f"{self.evicted} from token {self.position} on are cached, but the window "
                    "before a token there was evicted"
                )
            case MissReason.NO_STATE:
                rest = (
                    f"{self.evicted} from token {self.position} on are cached, but no state is "
                    "kept that was computed from them"
                )
            case MissReason.LAST_TOKEN:
                rest = "the last token is always computed"
            case MissReason.HELD_BACK:
                rest = "no more was wanted from the cache"
            case MissReason.PAGE_FLOOR:
                rest = f"the tokens from {self.position} on fill no page"
            case MissReason.BLOCK_FLOOR:
                rest = f"the tokens from {self.position} on fill no block on disk"
            case MissReason.DISABLED:
                rest = "the cache is off"
        return f"{head}; {rest}"


@dataclass(frozen=True, slots=True)
class Explained:
    """holders: how many of the prompt's tokens each namespace holds, where that was asked."""

    report: MissReport
    holders: Mapping[Hashable, int]


def _first(ids: bytes) -> tuple[int, ...]:
    return tuple(memoryview(ids).cast("i")[:SHOWN_TOKENS])


def _ids(tokens: tuple[int, ...]) -> str:
    return "[" + " ".join(map(str, tokens)) + " …]"
