"""Floor 2: who runs next, with how many tokens. No torch."""

from radixlm.scheduler.draft_policy import DraftPolicy as DraftPolicy
from radixlm.scheduler.drafting import Drafting as Drafting
from radixlm.scheduler.queue import depth_first as depth_first
from radixlm.scheduler.queue import make_order as make_order
from radixlm.scheduler.scheduler import Scheduler as Scheduler
from radixlm.scheduler.state import Counters as Counters
from radixlm.scheduler.waiting import WaitingRoom as WaitingRoom
