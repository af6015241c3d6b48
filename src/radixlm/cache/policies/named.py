"""The eviction policies by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from types import MappingProxyType

from radixlm.cache.policies.learned import LEARNED, Learned
from radixlm.cache.radix.eviction import ByKey, EvictionPolicy, last_used, pair
from radixlm.cache.radix.node import NO_SLOTS, TOKEN_BYTES, TreeNode
from radixlm.core.errors import ConfigError

POLICIES: Mapping[str, Callable[[TreeNode], int]] = MappingProxyType(
    {
        "lru": last_used,
        # Fewest hits first, among equals the one that was not used for longest.
        "lfu": lambda node: pair(node.hits, node.last_used),
        "fifo": lambda node: node.created,
        # For scans longer than the pool, where the oldest is what comes again first.
        "mru": lambda node: -node.last_used,
        "filo": lambda node: -node.created,
        # What was found at least twice is protected: all that was not goes before it.
        "slru": lambda node: pair(int(node.hits >= 2), node.last_used),
        # Lowest priority first, the highest of the requests that used it.
        "priority": lambda node: pair(node.priority, node.last_used),
    }
)

NAMES = (*POLICIES, LEARNED)


def make_policy(name: str) -> EvictionPolicy:
    """A policy by its name, one of NAMES, or as `package.module:Class`. Raises ConfigError that
    lists them.
    """
    if name in POLICIES:
        return ByKey(name, POLICIES[name])
    if name == LEARNED:
        return Learned()
    if ":" not in name:
        raise ConfigError(
            f"--eviction-policy {name!r} is not one of {', '.join(NAMES)}, "
            "nor has it the form package.module:Class"
        )
    try:
        made: EvictionPolicy = resolve_name(name)()
        probe = made.key(TreeNode(0, bytes(TOKEN_BYTES), NO_SLOTS, None))
    except Exception as error:  # it is the user's code: whatever it raises is the answer
        raise ConfigError(f"--eviction-policy {name!r} can not be made: {error}") from error
    if not isinstance(probe, int):
        raise ConfigError(f"--eviction-policy {name!r}: key(node) must give an int, got {probe!r}")
    return made
