"""The choice of a replica for a request: what each holds, is about to hold, and what it costs."""

from radixlm.routing.feed import FeedUpdate, Position, TreeFeed
from radixlm.routing.front_desk import FrontDesk, Reported
from radixlm.routing.prefix_map import Prefix, PrefixMap
from radixlm.routing.replica_tree import ReplicaMatches, ReplicaTree
from radixlm.routing.report_book import Report, ReportBook
from radixlm.routing.router import Offer, ReplicaChoice, Router, Why
from radixlm.routing.tree_ledger import Dropped, ResidentPrefix, TreeLedger

__all__ = [
    "Dropped",
    "FeedUpdate",
    "FrontDesk",
    "Offer",
    "Position",
    "Prefix",
    "PrefixMap",
    "ReplicaChoice",
    "ReplicaMatches",
    "ReplicaTree",
    "Report",
    "ReportBook",
    "Reported",
    "ResidentPrefix",
    "Router",
    "TreeFeed",
    "TreeLedger",
    "Why",
]
