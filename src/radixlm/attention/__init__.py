"""Floor 3: attention over the KV pool, planned once per step."""

from radixlm.attention.interface import Attend
from radixlm.attention.plan import AttentionPlan, RowSpan, make_plan
from radixlm.attention.torch_backend import TorchAttention, group_tokens

__all__ = [
    "Attend",
    "AttentionPlan",
    "RowSpan",
    "TorchAttention",
    "group_tokens",
    "make_plan",
]
