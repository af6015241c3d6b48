"""Floor 1: which slots hold which tokens. No torch; usable on its own.

RadixTree is the plain data structure, SlotAllocator the free list, RadixCache the two together
behind one door, with a Lease for each user.
"""

from radixlm.cache.allocator import SlotAllocator
from radixlm.cache.cache import Lease, RadixCache, Usage
from radixlm.cache.eviction import EvictionPolicy, LeastRecentlyUsed
from radixlm.cache.node import Inserted, Match, TreeNode
from radixlm.cache.tree import RadixTree

__all__ = [
    "EvictionPolicy",
    "Inserted",
    "Lease",
    "LeastRecentlyUsed",
    "Match",
    "RadixCache",
    "RadixTree",
    "SlotAllocator",
    "TreeNode",
    "Usage",
]
