"""Which replica serves a request: what each holds, is about to hold, and what it costs."""

from radixlm.routing.feed import News, TreeFeed
from radixlm.routing.front_desk import FrontDesk, Report, Reported
from radixlm.routing.replica_tree import Found, ReplicaTree
from radixlm.routing.router import Choice, Offer, Router, Why
from radixlm.routing.tree_ledger import Dropped, Held, TreeLedger

__all__ = [
    "Choice",
    "Dropped",
    "Found",
    "FrontDesk",
    "Held",
    "News",
    "Offer",
    "ReplicaTree",
    "Report",
    "Reported",
    "Router",
    "TreeFeed",
    "TreeLedger",
    "Why",
]
