"""Reports of replicas get lost, come twice, late, in any order, and replicas and the router start
again: once all that is sent arrives, the router knows what is resident, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import example, given, settings
from hypothesis import strategies as st

from radixlm.cache import RadixCache
from radixlm.core.clock import VirtualClock
from radixlm.core.keys import as_key
from radixlm.core.reports import TreeQuery
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.routing import Report, ReportBuffer, RouterActor
from radixlm.routing.replica_tree import below
from radixlm.routing.router_actor import LOST_SECONDS
from tests.tree_pictures import resident_prefixes, take_changes, watched

NAMES = ("a", "b")
NAMESPACES = [Namespace(), Namespace(cache_salt="a")]
# Lost reports, one whole to ask for the tree, one with it, two until what was computed is settled.
_ROUNDS = 6
Prefix = tuple[Namespace, tuple[int, ...]]


class Replica:
    """A process with a real cache, its viewer and its buffer. sent: reports under way."""

    def __init__(self, name: str, page_size: int) -> None:
        self.name, self._page_size = name, page_size
        self.sent: list[Report] = []
        self.start()

    def start(self) -> None:
        """Another process: its cache is empty. What the one before it sent may still come."""
        self.cache = RadixCache(16 * self._page_size, self._page_size, ghost_budget=8)
        self.buffer = ReportBuffer(
            Report(self.name, self.cache.capacity, self.cache.largest_request)
        )
        self._leases: list = []
        self.show_whole()

    def show_whole(self) -> None:
        self._picture = watched(self.cache.tree, TreeQuery())
        self._picture.develop(10**6)
        self.buffer.shown(self._picture.snapshot())

    def show(self) -> None:
        changes = take_changes(self.cache.tree)
        if changes is not None:
            self.buffer.shown(self._picture.update(changes))

    def run(self, request: GenerateRequest) -> None:
        self.buffer.arrived(request)
        lease = self.cache.acquire(request.key, request.namespace)
        room = lease.extend(request.key.size - lease.length) is not None
        if room:
            lease.commit(lease.length)
            self.buffer.began(request)
        self._leases.append((lease, request, 4 if room else None))
        if len(self._leases) > 2:
            self.end()

    def end(self) -> None:
        if self._leases:
            lease, request, tokens = self._leases.pop(0)
            lease.release()
            self.buffer.ended(request, tokens)

    def end_all(self) -> None:
        while self._leases:
            self.end()

    def resident(self) -> set[Prefix]:
        """The truth."""
        return resident_prefixes(self.cache.tree)


class World:
    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self.clock = VirtualClock()
        self.actor = RouterActor(self.clock)
        self.replicas = [Replica(name, page_size) for name in NAMES]
        self._requests = 0

    def ask(self, namespace: Namespace, key: list[int], *, arrives: bool) -> None:
        """A request is routed, as far as anybody is known, and runs there."""
        self._requests += 1
        tokens = as_key([token for token in key for _ in range(self._page_size)])
        request = GenerateRequest(
            str(self._requests), tokens, SamplingParams(), namespace=namespace
        )
        known = [each.replica for each in self.actor.replicas()]
        if known:
            choice = self.actor.choose(request.request_id, namespace, tokens, 4, known)
            if arrives:
                self.replicas[NAMES.index(choice.replica)].run(request)

    def report(self, replica: Replica, *, whole: bool) -> None:
        replica.sent.append(replica.buffer.take_whole() if whole else replica.buffer.take())

    def deliver(self, replica: Replica, which: int, *, again: bool) -> None:
        """Any of those that are on their way; its answer is heard."""
        if not replica.sent:
            return
        which %= len(replica.sent)
        report = replica.sent[which] if again else replica.sent.pop(which)
        if not self.actor.report(report):
            replica.buffer.begin_again()
            replica.show_whole()

    def settle(self) -> None:
        """All that is under way ends, and what is sent arrives, once and in order."""
        for replica in self.replicas:
            replica.sent.clear()
            replica.end_all()
        for _ in range(_ROUNDS):
            self.clock.advance(LOST_SECONDS / 2)
            for replica in self.replicas:
                replica.show()
                self.report(replica, whole=True)
                self.deliver(replica, 0, again=False)

    def held(self, replica: int) -> set[Prefix]:
        """What the router takes it that a replica holds."""
        found = set()
        for namespace, prefix, holders in _prefixes(self.actor):
            if holders >> replica & 1:
                found.add((namespace, prefix))
        return found

    def number(self, name: str) -> int:
        """Of a replica, in the router's tree: they come and are numbered in order."""
        return list(self.actor.router.names).index(name)


def _prefixes(actor: RouterActor) -> Iterator[tuple[Namespace, tuple[int, ...], int]]:
    for namespace, root in actor.router.tree.roots.items():
        paths: dict[object, tuple[int, ...]] = {root: ()}
        for branch in below(root):
            if branch.parent is not None:
                above = paths[branch.parent]
                paths[branch] = above + tuple(memoryview(branch.edge).cast("i").tolist())
                assert not branch.coming, "nothing is under way"
                for end in range(len(above) + 1, branch.end + 1):
                    yield namespace, paths[branch][:end], branch.holders


_KEYS = st.lists(st.integers(0, 1), min_size=1, max_size=12)
_WHO = st.integers(0, len(NAMES) - 1)
_ASKS = st.tuples(st.just("ask"), st.sampled_from(NAMESPACES), _KEYS, st.booleans())
_REPORTS = st.tuples(st.just("report"), _WHO, st.booleans())
_DELIVERIES = st.tuples(st.sampled_from(["deliver", "double"]), _WHO, st.integers(0, 9))
_LOSSES = st.tuples(st.just("lose"), _WHO, st.integers(0, 9))
_OTHERS = st.tuples(st.sampled_from(["end", "show", "show", "flush", "scene", "start"]), _WHO)
_STEPS = st.lists(
    _ASKS
    | _ASKS
    | _REPORTS
    | _REPORTS
    | _DELIVERIES
    | _DELIVERIES
    | _LOSSES
    | _OTHERS
    | st.tuples(st.sampled_from(["restart", "wait"])),
    max_size=60,
)


_A_WHOLE_TREE_IS_LOST = [
    ("ask", Namespace(), [0, 1], True),
    ("end", 0),
    ("show", 0),
    *[("report", 0, True), ("deliver", 0, 0)] * 3,
    ("flush", 0),
    ("scene", 0),
    ("report", 0, False),
]


@settings(max_examples=300, deadline=None)
@example(1, _A_WHOLE_TREE_IS_LOST)
@given(st.sampled_from([1, 1, 2]), _STEPS)
def test_the_router_ends_with_the_truth(page_size, steps) -> None:
    world = World(page_size)
    world.settle()
    for step in steps:
        _take(world, step)
    world.settle()
    for number, replica in enumerate(world.replicas):
        assert world.held(world.number(replica.name)) == replica.resident(), number
    assert all((each.requests, each.queue) == (0, 0.0) for each in world.actor.replicas())


def _take(world: World, step) -> None:
    match step:
        case ("ask", namespace, key, arrives):
            world.ask(namespace, key, arrives=arrives)
        case ("report", who, whole):
            world.report(world.replicas[who], whole=whole)
        case ("deliver" | "double" as how, who, which):
            world.deliver(world.replicas[who], which, again=how == "double")
        case ("lose", who, which) if sent := world.replicas[who].sent:
            sent.pop(which % len(sent))
        case ("end", who):
            world.replicas[who].end()
        case ("show", who):
            world.replicas[who].show()
        case ("flush", who):
            world.replicas[who].end_all()
            world.replicas[who].cache.flush()
        case ("scene", who):
            world.replicas[who].show_whole()
        case ("start", who):
            world.replicas[who].start()
        case ("restart",):
            world.actor = RouterActor(world.clock)
        case ("wait",):
            world.clock.advance(LOST_SECONDS)
