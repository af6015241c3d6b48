"""Floor 2: who runs next, with how many tokens. No torch."""

from radixlm.scheduler.limits import Limits
from radixlm.scheduler.orders import AdmissionOrder, depth_first, make_order
from radixlm.scheduler.progress import Counters, Progress, Taken
from radixlm.scheduler.scheduler import Scheduler

__all__ = [
    "AdmissionOrder",
    "Counters",
    "Limits",
    "Progress",
    "Scheduler",
    "Taken",
    "depth_first",
    "make_order",
]
