"""Floor 3: attention over the KV pool, planned once per step."""

from radixlm.attention.backend import Attend, Backend, make_backend
from radixlm.attention.cpu_backend import CpuBackend
from radixlm.attention.plan import AttentionPlan, RowSpan, SharedRead, Sharing, make_plan
from radixlm.attention.torch_backend import TorchBackend

__all__ = [
    "Attend",
    "AttentionPlan",
    "Backend",
    "CpuBackend",
    "RowSpan",
    "SharedRead",
    "Sharing",
    "TorchBackend",
    "make_backend",
    "make_plan",
]
