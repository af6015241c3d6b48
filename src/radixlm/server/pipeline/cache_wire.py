"""The JSON types of reports about the cache."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from radixlm.core.misses import MissReason
from radixlm.observe.causes import Cause


class CachedTokens(TypedDict):
    """By where they were: device is the KV pool."""

    device: int


class Divergence(TypedDict):
    """token: the first of the prompt's that differs. message_index, role: of a chat's messages.

    context: both continuations in one line, the differing part as [cached|requested]. cached,
    requested: that part. Control characters are escaped. They are null where the text may be
    another key's: see docs/explain.md. retokenized: the texts agree, and only the tokens differ.
    """

    token: int
    message_index: int | None
    role: str | None
    retokenized: bool
    context: str | None
    cached: str | None
    requested: str | None


class CacheReport(TypedDict):
    """index: of the prompt, where there are several. advice: what to do, null for nothing.

    reason: why no more was cached, as the cache knows it; cause: what that comes from. text: the
    same in a sentence. evicted_tokens, evicted_seconds_ago, hits: of what is, or was, there.
    """

    index: int
    prompt_tokens: int
    cached_tokens: CachedTokens
    computed_tokens: int
    reason: MissReason
    cause: Cause
    text: str
    advice: str | None
    divergence: NotRequired[Divergence]
    evicted_tokens: NotRequired[int]
    evicted_seconds_ago: NotRequired[float]
    hits: NotRequired[int]


class CacheReported(TypedDict, total=False):
    """It is there with cache_report; a list where there are several prompts."""

    cache_report: CacheReport | list[CacheReport]


class CachedDetails(TypedDict):
    """As SGLang has it; there is no cache in the host's memory yet."""

    device: int
    host: int


class SglExt(TypedDict):
    cached_tokens_details: CachedDetails


class CacheTold(CacheReported, total=False):
    """sglext: with return_cached_tokens_details."""

    sglext: SglExt


class Held(TypedDict):
    """How many of a prompt's first tokens are cached in a namespace."""

    adapter_id: str
    cache_salt: str
    extra_key: str
    tokens: int


class Explanation(TypedDict):
    """reports: one for each prompt. longer_elsewhere: with across_namespaces, for each prompt the
    other namespaces that hold more of it, the one that holds most first.
    """

    reports: list[CacheReport]
    longer_elsewhere: NotRequired[list[list[Held]]]


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
    request.
    """

    window_seconds: float
    requests: int
    prompt_tokens: int
    computed_tokens: int
    hit_rate: float
    advice: list[AdviceEntry]
    capacity: list[PoolSize]
