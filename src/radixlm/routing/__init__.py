"""The choice of a replica for a request: what each holds, is about to hold, and what it costs."""

from radixlm.routing.feed import FeedUpdate, Position, TreeFeed
from radixlm.routing.prefix_map import Prefix, PrefixMap
from radixlm.routing.replica_tree import ReplicaMatches, ReplicaTree
from radixlm.routing.report_buffer import Report, ReportBuffer
from radixlm.routing.router import Offer, ReplicaChoice, Router, Why
from radixlm.routing.router_actor import ReplicaStatus, RouterActor
from radixlm.routing.tree_mirror import Dropped, ResidentPrefix, TreeMirror

__all__ = [
    "Dropped",
    "FeedUpdate",
    "Offer",
    "Position",
    "Prefix",
    "PrefixMap",
    "ReplicaChoice",
    "ReplicaMatches",
    "ReplicaStatus",
    "ReplicaTree",
    "Report",
    "ReportBuffer",
    "ResidentPrefix",
    "Router",
    "RouterActor",
    "TreeFeed",
    "TreeMirror",
    "Why",
]
