"""Floor 2: who runs next, with how many tokens. No torch."""

from radixlm.scheduler.orders import AdmissionOrder, depth_first, make_order
from radixlm.scheduler.scheduler import Scheduler
from radixlm.scheduler.state import Counters

__all__ = [
    "AdmissionOrder",
    "Counters",
    "Scheduler",
    "depth_first",
    "make_order",
]
