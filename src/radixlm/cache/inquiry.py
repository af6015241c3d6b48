"""Why a prompt would miss, asked without running it."""

from __future__ import annotations

from collections.abc import Hashable

from radixlm.cache.cache import RadixCache
from radixlm.cache.endings import Ending
from radixlm.core.keys import Key
from radixlm.core.misses import Explained, MissReason, MissReport


def explained(
    cache: RadixCache, key: Key, namespace: Hashable = None, *, everywhere: bool = False
) -> Explained:
    """What `acquire(key, namespace).why()` would say now; leaves no trace.

    everywhere: for operators, look into the other namespaces, too.
    """
    holders = cache.holders(key) if everywhere else {}
    if not cache.enabled:
        return Explained(MissReport(key.size, 0, MissReason.DISABLED, 0), holders)
    match = cache.match(key, namespace)
    known = cache.known(key, match)
    ending = Ending(match, known, key, key.size, key.size - 1, cache.page_size)
    return Explained(ending.report(cache.now()), holders)
