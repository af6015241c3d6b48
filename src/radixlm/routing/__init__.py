"""Which replica serves a request: what each holds, is about to hold, and what it costs."""

from radixlm.routing.feed import News, Position, TreeFeed
from radixlm.routing.front_desk import FrontDesk, Reported
from radixlm.routing.prefix_map import Prefix, PrefixMap
from radixlm.routing.replica_tree import Found, ReplicaTree
from radixlm.routing.report_book import Report, ReportBook
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
    "Position",
    "Prefix",
    "PrefixMap",
    "ReplicaTree",
    "Report",
    "ReportBook",
    "Reported",
    "Router",
    "TreeFeed",
    "TreeLedger",
    "Why",
]
