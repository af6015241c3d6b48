"""The choice of a replica for a request: what each holds, is about to hold, and what it costs."""

from radixlm.routing.feed import FeedUpdate as FeedUpdate
from radixlm.routing.feed import Position as Position
from radixlm.routing.feed import TreeFeed as TreeFeed
from radixlm.routing.prefix_map import Prefix as Prefix
from radixlm.routing.prefix_map import PrefixMap as PrefixMap
from radixlm.routing.report_buffer import Report as Report
from radixlm.routing.report_buffer import ReportBuffer as ReportBuffer
from radixlm.routing.router import Offer as Offer
from radixlm.routing.router import ReplicaChoice as ReplicaChoice
from radixlm.routing.router import Router as Router
from radixlm.routing.router import Why as Why
from radixlm.routing.router_actor import ReplicaStatus as ReplicaStatus
from radixlm.routing.router_actor import RouterActor as RouterActor
