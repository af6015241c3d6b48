"""Floor 1: which slots hold which tokens. No torch; usable on its own.

RadixTree is the plain data structure, SlotAllocator the free list, RadixCache the two together,
with a Lease for each request that uses it.
"""

from radixlm.cache.cache import RadixCache as RadixCache
from radixlm.cache.lease import Lease as Lease
from radixlm.cache.pins import Pin as Pin
from radixlm.cache.policies.named import NAMES as NAMES
from radixlm.cache.policies.named import POLICIES as POLICIES
from radixlm.cache.policies.named import make_policy as make_policy
from radixlm.cache.radix.allocator import SlotAllocator as SlotAllocator
from radixlm.cache.radix.conservation import Usage as Usage
from radixlm.cache.radix.eviction import EvictionPolicy as EvictionPolicy
from radixlm.cache.radix.node import Match as Match
from radixlm.cache.radix.node import TreeNode as TreeNode
from radixlm.cache.radix.tree import RadixTree as RadixTree
