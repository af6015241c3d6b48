"""Floor 3: where the bytes of keys and values lie."""

from radixlm.memory.kv_pool import KVPool, bytes_per_token
from radixlm.memory.req_to_token import ReqToTokenPool

__all__ = ["KVPool", "ReqToTokenPool", "bytes_per_token"]
