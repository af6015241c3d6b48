"""What must hold between any two calls, walked in full. Raises InvariantError."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import singledispatch
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from radixlm.cache import RadixCache, RadixTree, SlotAllocator, TreeNode
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSlots
from radixlm.cache.places.stored_parts import StoredParts
from radixlm.cache.radix.node import NODE_WEIGHT, TOKEN_WEIGHT, page_key, path_slots
from radixlm.cache.radix.tree_stats import Reuse
from radixlm.core.errors import InvariantError
from radixlm.core.keys import Slots
from radixlm.core.moves import Place
from radixlm.scheduler import Scheduler
from radixlm.scheduler.prompt_index import PromptIndex


@singledispatch
def check(checked: object) -> None:
    """Raise InvariantError unless all that must hold of it does."""
    raise TypeError(f"{type(checked).__name__} has no invariants")


@check.register
def _(allocator: SlotAllocator) -> None:
    """The runs ascend, none is empty and none touch."""
    runs = allocator.runs()
    edges = [edge for run in runs for edge in run]
    if any(left >= right for left, right in pairwise(edges)):
        raise InvariantError(f"free runs {runs} are not maximal and ascending")
    if sum(stop - start for start, stop in runs) != allocator.free_size:
        raise InvariantError(f"free runs {runs}, books say {allocator.free_size}")


@check.register
def _(tree: RadixTree) -> None:
    nodes = list(tree.nodes())
    counts = check_nodes(nodes, tree.page_size)
    sums = Counts(
        tree.node_count,
        tree.stats.leaves,
        tree.protected_size,
        tree.evictable_size,
        tree.pinned_size,
        tree.ghosts.size,
    )
    require(counts == sums, f"the tree holds {counts}, its books say {sums}")
    size, budget = tree.ghosts.size, tree.ghosts.budget
    require(size <= budget, f"{size} ghost tokens, the budget is {budget}")
    known = all(tree.by_id.get(node.id) is node for node in nodes)
    require(known, "a node is not found by its id")
    stored = {each.place: each for each in tree.observers if isinstance(each, StoredParts)}
    for place in Place:
        check_stored(place, stored.get(place), nodes)
    counts_of = [each for each in tree.observers if isinstance(each, Reuse)]
    counted = all(_is_right(reuse, nodes) for reuse in counts_of)
    require(counted, "uses are counted of other tokens")


def _is_right(reuse: Reuse, nodes: Iterable[TreeNode]) -> bool:
    """Whether it counts what all nodes of a tree hold."""
    tokens = [0] * len(reuse.tokens)
    for node in nodes:
        if not node.lock_ref:
            tokens[bisect_right(reuse.begins, node.last_used) - 1] += len(node)
    return tokens == reuse.tokens


@check.register
def _(windows: WindowSlots) -> None:
    """No two tokens share a window slot, and those that are not free are given."""
    given = windows.of[windows.of >= 0]
    require(np.unique(given).size == given.size, "two tokens have one window slot")
    usage = windows.usage()
    require(given.size == windows.capacity - usage.free, f"{given.size} window slots of {usage}")
    require(windows.locked >= windows.pinned >= 0, "more window slots are pinned than locked")


@check.register
def _(states: StateSlots) -> None:
    """Each checkpoint has a slot of its own, at the end of a node that is resident to there."""
    usage, slots = states.usage(), set(states.at.values())
    require(len(slots) == len(states.at), "two checkpoints have one slot")
    require(slots <= set(range(states.capacity)), f"no slots: {slots}")
    require(len(slots) == usage.locked + usage.evictable, f"{len(slots)} checkpoints, {usage}")
    for node in states.at:
        resident = node.parent is not None and not node.absent
        require(resident, f"node {node.id} has a checkpoint, but not all its tokens")


@check.register
def _(cache: RadixCache) -> None:
    """The tree's invariants, the conservation law, and that each slot has exactly one owner."""
    check(cache.tree)
    check(cache.allocator)
    usage = cache.usage()
    usage.check(cache.capacity)
    private = sum(lease.private_size for lease in cache.leases)
    require(private == usage.private, f"leases hold {private}, books say {usage.private}")
    aside = sum(lease.reserve for lease in cache.leases)
    require(aside == cache.laid_aside, f"{aside} laid aside, books say {cache.laid_aside}")
    for index, component in enumerate(cache.components):
        check(component)
        its = component.usage()
        its.check(component.capacity)
        locked = np.count_nonzero(component.locks)
        require(locked == its.locked, f"{locked} slots of a component are locked, not {its}")
        holding = [lease for lease in cache.leases if index < len(lease.holds)]  # not for copies
        private = sum(lease.private_of(index) for lease in holding)
        require(private == its.private, f"leases hold {private} of a component, not {its}")
    for tier in cache.tiers:
        tier.usage().check(tier.capacity)
    ends: Counter[TreeNode] = Counter(lease.node for lease in cache.leases)
    ends.update(cache.pins.nodes())
    for node in cache.tree.nodes():
        held = ends[node] + sum(child.lock_ref for child in node.children.values())
        require(node.lock_ref == held, f"node {node.id}: {node.lock_ref} locks for {held}")
    for lease in cache.leases:
        require(lease.committed == lease.node.end, "a lease's path ends elsewhere")
        path = path_slots(lease.node, 0, lease.committed)
        require(np.array_equal(path, lease.slots[: lease.committed]), "a lease's slots differ")
    check_slots(cache.capacity, owners(cache))


def owners(cache: RadixCache) -> Iterator[tuple[str, Slots]]:
    """Every slot, with a name for its owner. O(capacity)."""
    for start, stop in cache.allocator.runs():
        yield "the free list", np.arange(start, stop, dtype=np.int32)
    for lease in cache.leases:
        yield "a lease", lease.private_slots()
    for node in cache.tree.nodes():
        yield f"node {node.id}", node.slots


@check.register
def _(index: PromptIndex) -> None:
    """The tree is sound and holds these prompts only."""
    check(index.tree)
    ends = {state: node for node, states in index.ends.items() for state in states}
    require(ends == index.places, "a prompt ends elsewhere")
    require(bool(len(index)) or not index.tree.node_count, "nodes of no prompt are left")


@check.register
def _(scheduler: Scheduler) -> None:
    """What is under way, and nothing else, is in all books; all that are followed compute."""
    room = scheduler.waiting_room
    check(room.index)
    following = [state for state in scheduler.waiting if state.follows is not None]
    led = all(state.follows in room.followers for state in following)
    require(led, "a request follows one that does not know it")
    require(all(leader.computing for leader in room.followers), "one that ended is followed")
    tenants = {state.request.tenant for state in (*scheduler.running, *scheduler.waiting)}
    count = len(scheduler.fairness)
    require(count == len(tenants), f"{count} tenants, not {tenants}")


class Counts(NamedTuple):
    """What a tree holds: nodes, those without children, and tokens."""

    nodes: int
    leaves: int
    locked: int
    evictable: int
    pinned: int
    ghosts: int


def require(holds: bool, what: str) -> None:
    """Raise InvariantError unless `holds`."""
    if not holds:
        raise InvariantError(what)


def check_nodes(nodes: Iterable[TreeNode], page_size: int) -> Counts:
    """Check every node of a tree against its neighbours and count what they hold.

        root                 no tokens; in use, or it has children
         └─ node             whole pages; its key in the parent is its first page
             ├─ node         lock_ref == held + the sum of its children's
             │   └─ ghost    nothing below a token that is not resident is resident or locked
             └─ leaf         unlocked, nothing resident below: it is in the eviction order

    A node's first `resident` tokens have slots. No node is used later than its parent.
    """
    count = leaves = locked = evictable = pinned = ghosts = 0
    for node in nodes:
        count += 1
        leaves += not node.children
        _check_place(node, page_size)
        _check_children(node, page_size)
        ghosts += node.ghosts
        if node.lock_ref:
            locked += node.resident
        else:
            evictable += node.resident
        if node.pins:
            pinned += node.resident
        queued = node.queued_key is not None
        waits = not node.lock_ref and not node.live and node.resident > 0
        require(queued or not waits, f"unlocked leaf {node.id} is in no eviction order")
    return Counts(count, leaves, locked, evictable, pinned, ghosts)


def _check_place(node: TreeNode, page_size: int) -> None:
    name = f"node {node.id}"
    require(node.slots.size == node.resident, f"{name}: {node.resident} resident, not its slots")
    require(node.resident <= len(node), f"{name}: {len(node)} tokens, {node.resident} resident")
    for length in (len(node), node.resident):
        require(length % page_size == 0, f"{name}: torn page")
    require(node.lock_ref >= node.pins >= 0, f"{name}: lock_ref {node.lock_ref}, {node.pins} pins")
    require(not node.lock_ref or not node.absent, f"{name} is locked but not resident")
    if node.parent is None:
        require(node.is_root and not node.edge, f"{name} has no parent")
        require(bool(node.lock_ref or node.children), f"{name}: an empty root was kept")
        return
    require(len(node) > 0, f"{name} is empty")
    require(node.end == node.parent.end + len(node), f"{name}: end {node.end}")
    require(node.namespace == node.parent.namespace, f"{name} is in {node.namespace!r}")
    require(node.last_used <= node.parent.last_used, f"{name} is younger than its parent")
    require(
        node.priority <= node.parent.priority or node.parent.is_root,
        f"{name} has more priority than its parent",
    )


def _check_children(node: TreeNode, page_size: int) -> None:
    children = node.children.values()
    for page, child in node.children.items():
        require(child.parent is node, f"node {child.id} does not know its parent {node.id}")
        fits = page == page_key(child.edge, page_size)
        require(fits, f"node {child.id} is filed under another page")
        require(not child.resident or not node.absent, f"node {child.id} outlived its parent")
    below = sum(child.lock_ref for child in children)
    fits = node.lock_ref == below + node.held
    require(fits, f"node {node.id}: {node.lock_ref} locks, {node.held} end here, {below} below it")
    pins = sum(child.pins for child in children)
    require(node.pins >= pins, f"node {node.id}: {node.pins} pins, {pins} below it")
    live = sum(1 for child in children if child.resident)
    weight = len(node) * TOKEN_WEIGHT + NODE_WEIGHT + sum(child.weight for child in children)
    require(node.weight == weight, f"node {node.id}: weight {node.weight:#x}, it has {weight:#x}")
    require(node.live == live, f"node {node.id}: {node.live} live children, it has {live}")


def check_stored(place: Place, parts: StoredParts | None, nodes: Iterable[TreeNode]) -> None:
    """Check what a place has of nodes, in blocks of B tokens, and the sums of it.

    stored to its end    only then have children stored tokens
    stored children      only then it is stored behind the last block that ends in it
    lock_ref             held + the sum of its children's, as in the pool
    leaf                 unlocked, nothing stored below: it is in the order
    checkpoint           at a node's end, counted as a stored child
    """
    blocks = locked = count = 0
    ends = {} if parts is None else parts.checkpoints
    for node, part in ends.items():
        assert parts is not None
        name = f"{place}: the checkpoint of node {node.id}"
        require(part.node is node and parts.by_id.get(part.id) is part, f"{name} is another's")
        require(part.above is parts.by_id.get(node.id), f"{name} is below another part")
        require(node.stored[place] == len(node), f"{name}: its tokens are not stored")
        require(part.lock_ref > 0 or part.queued_key is not None, f"{name}: in no order")
        taken = -(-node.end // parts.block_tokens) + parts.sizes.per_state
        taken -= node.end // parts.block_tokens
        count, blocks = count + 1, blocks + taken
        locked += taken if part.lock_ref else 0
    require(parts is None or parts.of_states == blocks, f"{blocks} blocks of states in {place}")
    for node in nodes:
        name, stored = f"{place}: node {node.id}", node.stored[place]
        live = [at for at in node.children.values() if at.stored[place]]
        require(0 <= stored <= len(node), f"{name}: {stored} of {len(node)} stored")
        require(not live or stored == len(node), f"{name}: stored children, itself not")
        if not stored:
            require(parts is None or node.id not in parts.by_id, f"{name}: a part of nothing")
            continue
        assert parts is not None
        count += 1
        part, size, end = parts.by_id[node.id], parts.block_tokens, node.start + stored
        require(part.node is node and part.place is place, f"{name} has another's part")
        own = (1 << end // size) - (1 << node.start // size)
        require(not part.windows & ~own, f"{name}: windows of blocks that are not its own")
        leaves = len(live) + (node in ends)
        require(bool(leaves) or end % size == 0, f"{name}: stored behind its last block, at {end}")
        require(part.live == leaves, f"{name}: {part.live} stored children, it has {leaves}")
        below = sum(parts.by_id[at.id].lock_ref for at in live)
        fits = part.lock_ref == part.held + below and part.held >= 0
        require(fits, f"{name}: {part.lock_ref} reads, {part.held} end here, {below} below it")
        waits = not part.lock_ref and not leaves
        require(not waits or part.queued_key is not None, f"{name}: in no order of what is stored")
        blocks += end // size - node.start // size
        locked += (end // size - node.start // size) if part.lock_ref else 0
    if parts is not None:
        found = (count, blocks, locked)
        books = (len(parts.by_id), parts.blocks, parts.locked)
        require(found == books, f"{found} parts, blocks, locked blocks; books say {books}")


def check_slots(capacity: int, owners: Iterable[tuple[str, Slots]]) -> None:
    """Check that every slot of a pool has exactly one of `owners`."""
    seen = np.zeros(capacity, dtype=np.int64)
    for name, slots in owners:
        inside = bool(slots.size == 0 or (slots.min() >= 0 and slots.max() < capacity))
        require(inside, f"{name} holds slots outside of the pool")
        np.add.at(seen, slots, 1)
        alone = bool((seen[slots] <= 1).all())
        require(alone, f"{name} holds slots that somebody else holds too")
    lost = np.flatnonzero(seen == 0)
    require(not lost.size, f"{lost.size} slots are lost, the first is {lost[:1]}")
