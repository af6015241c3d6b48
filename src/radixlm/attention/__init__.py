"""Floor 3: attention over the KV pool, planned once per step."""

from radixlm.attention.interface import Attend
from radixlm.attention.plan import AttentionPlan, RowSpan, make_plan
from radixlm.attention.sharing import SharedRead, Sharing
from radixlm.attention.torch_backend import TorchAttention, group_tokens, sharing_rule

__all__ = [
    "Attend",
    "AttentionPlan",
    "RowSpan",
    "SharedRead",
    "Sharing",
    "TorchAttention",
    "group_tokens",
    "make_plan",
    "sharing_rule",
]
