"""Floor 1: which slots hold which tokens. No torch; usable on its own.

RadixTree is the plain data structure, SlotAllocator the free list, RadixCache the two together,
with a Lease for each request that uses it.
"""

from radixlm.cache.allocator import SlotAllocator
from radixlm.cache.cache import RadixCache, Usage
from radixlm.cache.eviction import POLICIES, EvictionPolicy, LeastRecentlyUsed, make_policy
from radixlm.cache.lease import Lease
from radixlm.cache.node import Inserted, Match, TreeNode
from radixlm.cache.pins import Pin
from radixlm.cache.tree import RadixTree

__all__ = [
    "POLICIES",
    "EvictionPolicy",
    "Inserted",
    "Lease",
    "LeastRecentlyUsed",
    "Match",
    "Pin",
    "RadixCache",
    "RadixTree",
    "SlotAllocator",
    "TreeNode",
    "Usage",
    "make_policy",
]
