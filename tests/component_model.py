"""A RadixCache with components and places, compared with a plain dict after each operation.

The dict knows paths (namespace and tokens) and what is there of each. The device's memories say of
each slot which path was computed into it, so that whatever is shared or copied wrongly shows.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest

from radixlm.cache import Lease, Match, Pin, RadixCache, TreeNode
from radixlm.cache.components.state_hold import StateHold
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSize
from radixlm.cache.places.stored import StoredTier
from radixlm.cache.radix.node import upward
from radixlm.core.batch import EMPTY
from radixlm.core.errors import CacheError, PinError
from radixlm.core.keys import Key
from radixlm.core.moves import MARK, Place, tokens_of
from tests.cache_model import same
from tests.invariants import check

# That a state takes.
_STATE_BLOCKS = 2
Path = tuple[object, ...]  # the namespace, then tokens


class Setup(NamedTuple):
    """states: slots of checkpoints, 0 for no such component."""

    pages: int
    page_size: int = 1
    window: WindowSize | None = None
    states: int = 0
    places: tuple[Place, ...] = ()


@dataclass(eq=False)
class Reader:
    """A lease. path: of its whole key. source: the path of the checkpoint that it locks, until it
    has a state of its own: own. start: where its window begins. marks: where it leaves checkpoints.
    """

    lease: Lease
    path: Path
    source: Path | None
    start: int
    own: bool = False
    marks: set[int] = field(default_factory=set)

    @property
    def states(self) -> int:
        """How many slots of states only it uses."""
        return self.own + len(self.marks)

    def to(self, length: int) -> Path:
        return self.path[: length + 1]

    def paths(self, start: int, stop: int) -> list[Path]:
        return [self.to(at + 1) for at in range(start, stop)]


@dataclass(eq=False)
class Pinned:
    pin: Pin
    path: Path


@dataclass(eq=False)
class Stored:
    """What a place has: the paths of blocks, those of checkpoints with their marks."""

    tier: StoredTier
    blocks: set[Path] = field(default_factory=set)


class CheckedComponents:
    """Operations as a scheduler's; `verify` compares all that can be seen with the model."""

    def __init__(self, setup: Setup) -> None:
        self.counts: Counter[str] = Counter()
        self.page, self.window = setup.page_size, setup.window
        components = [partial(StateSlots, setup.states)] if setup.states else []
        self.cache = RadixCache(
            setup.pages * self.page, self.page, windows=setup.window, components=components
        )
        self.states: StateSlots | None = None
        for component in self.cache.components:
            if isinstance(component, StateSlots):
                self.states = component
        size = 2 * self.page
        room = (14 * size, _STATE_BLOCKS) if setup.states else (6 * size, 0)
        self.places = [Stored(self.cache.add_store(place, size, *room)) for place in setup.places]
        self.readers: list[Reader] = []
        self.pins: list[Pinned] = []
        self.there: set[Path] = set()
        self.checkpoints: set[Path] = set()
        self.memory: dict[int, Path] = {}
        self.window_slot: dict[int, int] = {}
        self.window_memory: dict[int, Path] = {}
        self.state_memory: dict[int, Path | None] = {}
        self.kept: tuple[list[int], str, Match] | None = None

    # The model

    def name(self, path: Path, at: int) -> Path:
        """Of a token of a path: other paths have it only with the same page."""
        return *path[: self._up(at + 1) + 1], ("token", at)

    def names(self, path: Path, start: int, stop: int) -> set[Path]:
        return {self.name(path, at) for at in range(start, stop)}

    def whole(self, path: Path, limit: int) -> int:
        """How many tokens of a path are there."""
        limit -= limit % self.page
        return next((at for at in range(limit) if self.name(path, at) not in self.there), limit)

    def match(self, path: Path, limit: int) -> int:
        """How long a match is of which all components have what they need."""
        ends = range(self.whole(path, limit), -1, -self.page)
        return next(end for end in ends if self._is_end(path, end))

    def _is_end(self, path: Path, end: int) -> bool:
        if self.states is not None and end and path[: end + 1] not in self.checkpoints:
            return False
        seen = self.names(path, self._first_seen(end), end)
        return self.window is None or seen <= self.in_windows()

    def in_windows(self) -> set[Path]:
        """Paths of the tree's tokens with window slots; where they are, the device knows."""
        windows = self.cache.windows
        assert windows is not None
        found = set()
        for node, path in self.nodes():
            there = windows.resident(node.slots).tolist()
            found |= {self.name(path, node.start + at) for at, it in enumerate(there) if it}
        return found

    def nodes(self) -> Iterator[tuple[TreeNode, Path]]:
        for node in self.cache.tree.nodes():
            above = [at.tokens().tolist() for at in upward(node)]
            yield node, (node.namespace, *(token for part in above[::-1] for token in part))

    def locked(self) -> set[Path]:
        held = [(each.path, each.lease.committed) for each in self.readers]
        held += [(each.path, each.pin.tokens) for each in self.pins]
        return set().union(*(self.names(path, 0, length) for path, length in held))

    def locked_checkpoints(self) -> set[Path]:
        held = {reader.source for reader in self.readers} | {each.path for each in self.pins}
        return {path for path in held if path is not None} if self.states is not None else set()

    def locked_windows(self) -> set[Path]:
        ranges = [(each.path, each.start, each.lease.committed) for each in self.readers]
        ranges += [(p.path, self._first_seen(p.pin.tokens), p.pin.tokens) for p in self.pins]
        return set().union(*(self.names(*each) for each in ranges))

    # Operations

    def acquire(self, tokens: list[int], namespace: str, *, remember: bool = False) -> None:
        key, match = np.array(tokens, dtype=np.int32), None
        if self.kept is not None:
            tokens, namespace, match = self.kept
            key, self.kept = np.array(tokens, dtype=np.int32), None
        elif remember:  # what it finds now may be stale when it is used
            self.kept = tokens, namespace, self.cache.match(key, namespace)
            return
        path = (namespace, *tokens)
        length = self.match(path, len(tokens) - 1)
        whole = self.whole(path, len(tokens) - 1)
        lease = self.cache.acquire(key, namespace, match=match)
        same("cached", lease.cached, length)
        same("slots", [self.memory[slot] for slot in lease.slots.tolist()],
             [path[: at + 2] for at in range(length)])  # fmt: skip
        self.counts["cut"] += length < whole
        source = path[: length + 1] if self.states is not None and length else None
        if source is not None:
            self.counts["states found"] += 1
        self.readers.append(Reader(lease, path, source, self._first_seen(length)))

    def step(
        self,
        wanted: list[tuple[Reader, int]],
        marks: Callable[[int, int], list[int]],
        *,
        gives_way: bool,
    ) -> list[Reader]:
        """Extend some, and compute what was extended; the first one may give way in between. marks:
        where checkpoints are left between two places.
        """
        extended = []
        for reader, n_tokens in wanted:
            start = reader.lease.length
            if self.extend(reader, n_tokens):
                extended.append((reader, start))
            if gives_way and extended and len(wanted) > 1:
                gives_way = False
                self.release(extended.pop()[0])
                self.counts["gave way"] += 1
        for reader, start in extended:
            for end in marks(start, reader.lease.length):
                self.mark(reader, end)
        self._move()
        for reader, start in extended:
            self._compute(reader, start)
        return [reader for reader, _ in extended]

    def extend(self, reader: Reader, n_tokens: int) -> bool:
        lease, start = reader.lease, reader.lease.length
        wanted = self._up(start + n_tokens) - self._up(start)
        room = wanted <= self.cache.capacity - self._private() - len(self.locked())
        first_state = self.states is not None and not reader.own
        if self.states is not None and first_state:
            room &= self._room_for_state(self.states)
        if self.window is not None:
            room &= wanted <= self.window.capacity - self._private_windows() - len(
                self.locked_windows()
            )
        free = 0 if self.states is None else self.states.usage().free
        slots = lease.extend(n_tokens)
        same("room", slots is not None, room)
        if slots is None:
            self.counts["refused"] += 1
            return False
        reader.own |= first_state
        self._follow(room_for_state=first_state and not free)
        if first_state:
            reader.source = None
        return True

    def commit(self, reader: Reader, upto: int) -> None:
        start = reader.lease.committed
        reader.lease.commit(upto)
        self._move()
        self.there |= self.names(reader.path, start, reader.lease.committed)
        for end in [end for end in reader.marks if end <= reader.lease.committed]:
            reader.marks.remove(end)
            self._left(reader.to(end))

    def mark(self, reader: Reader, end: int) -> None:
        """Have the step that comes leave a checkpoint there, if there is room."""
        states, room, free = self.states, False, 0
        if states is not None:
            room, free = self._room_for_state(states), states.usage().free
        reader.lease.mark(end)
        if room:
            reader.marks.add(end)
        elif states is not None:
            self.counts["no room to leave a state"] += 1
        self._follow(room_for_state=room and not free)

    def checkpoint(self, reader: Reader) -> None:
        """Of one that goes on no more."""
        lease = reader.lease
        if lease.length != lease.committed:
            with pytest.raises(CacheError, match="tokens have slots"):
                lease.checkpoint()
            return
        lease.checkpoint()
        path = reader.to(lease.length)
        if self.states is not None and reader.own and path not in self.checkpoints:
            self._left(path)
            reader.own = False

    def _left(self, path: Path) -> None:
        self.counts["states left"] += path not in self.checkpoints
        self.checkpoints.add(path)

    def _room_for_state(self, states: StateSlots) -> bool:
        taken = sum(each.states for each in self.readers) + len(self.locked_checkpoints())
        return taken < states.capacity

    def pass_by(self, reader: Reader) -> None:
        reader.lease.pass_by(reader.lease.length)
        if self.window is not None:
            spare = self.window.spare
            stop = self._first_seen(max(reader.lease.length - spare, 0))
            if stop - reader.start >= max(spare, 1):
                reader.start = stop

    def release(self, reader: Reader) -> None:
        reader.lease.release()
        self.readers.remove(reader)

    def pin(self, tokens: list[int], namespace: str) -> None:
        path = (namespace, *tokens)
        length = self.match(path, len(tokens))
        try:
            pin = self.cache.pin(np.array(tokens, dtype=np.int32), namespace)
        except PinError:
            self.counts["pins refused"] += 1
            return
        same("pinned", pin.tokens, length)
        self.pins.append(Pinned(pin, path[: length + 1]))

    def unpin(self, pinned: Pinned) -> None:
        self.cache.unpin(pinned.pin.id)
        self.pins.remove(pinned)

    def discard(self, tokens: list[int], namespace: str, keep: int) -> None:
        self.cache.discard(np.array(tokens, dtype=np.int32), namespace, keep)
        self._follow()

    def flush(self) -> None:
        self.cache.flush()
        self._follow()
        same("left after a flush", self.there, self.locked())

    def store(self, stored: Stored, n_tokens: int) -> None:
        """Write what a place wants next, as Saving does."""
        tier = stored.tier
        for blocks in tier.queue.take("through", n_tokens):
            size = blocks.tokens.size - blocks.start
            end = tokens_of(blocks.tokens)
            if self.states is not None and end < blocks.tokens.size:
                node, known = self.cache.tree.place(blocks.tokens[:end], blocks.namespace)
                assert node is not None
                path = (blocks.namespace, *blocks.tokens[:end].tolist())
                written = known, self.state_memory[self.states.at[node]]
                same("the state that is written", written, (end, path))
                self.counts["states stored"] += 1
            held = tier.lock(blocks.tokens[:end], blocks.namespace, blocks.start)
            if tier.reserve(size):
                end = blocks.tokens.size
                tier.stored(blocks.tokens, blocks.namespace, blocks.start, end, reserved=size)
                stored.blocks.update(self._blocks(stored, *blocks))
                self.counts["stored"] += size
            tier.unlock(held)
            self._take_dropped()

    def drop(self, stored: Stored, tokens: list[int], namespace: str) -> None:
        """A block of a key is found to be damaged."""
        stored.tier.gone(np.array(tokens, dtype=np.int32), namespace, 0)
        self._take_dropped()

    def restore(self, stored: Stored, tokens: list[int], namespace: str) -> None:
        """Read a checkpoint, as Restoring does."""
        key, states = np.array(tokens, dtype=np.int32), self.states
        upto = stored.tier.restorable(key, namespace)
        if states is None or not upto:
            return
        path, known = (namespace, *tokens[:upto]), key[:upto]
        start = min(self.cache.tree.match_prefix(known, namespace).length, upto - 1)
        start -= start % stored.tier.block_tokens
        full = not states.usage().free
        lease = self.cache.hold_read(known, namespace, start, 0)
        if lease is None:
            return
        self._follow(room_for_state=full)
        slots = lease.extend(upto - start)
        self._follow()
        if slots is not None:
            self.memory |= {slot: path[: start + at + 2] for at, slot in enumerate(slots.tolist())}
            [hold] = lease.holds
            assert isinstance(hold, StateHold)
            assert hold.slot is not None
            self.state_memory[hold.slot] = path
            lease.commit(upto)
            self.there |= self.names(path, start, upto)
            lease.checkpoint()
            self.checkpoints.add(path)
            self.counts["states read"] += 1
        lease.release(used=False)

    # Comparisons

    def verify(self) -> None:
        check(self.cache)
        self._follow()
        there, locked = {}, self.locked()
        for node, path in self.nodes():
            for at, slot in enumerate(node.slots.tolist()):
                there[self.name(path, node.start + at)] = slot
                same("keys and values", self.memory[slot], path[: node.start + at + 2])
        same("resident", set(there), self.there)
        usage, private = self.cache.usage(), self._private()
        free = self.cache.capacity - private - len(there)
        same("usage", usage, (free, private, len(locked), len(there) - len(locked)))
        if self.states is not None:
            self._verify_states(self.states)
        if self.window is not None:
            self._verify_windows(there)
        self._take_dropped()
        for stored in self.places:
            read = [reader.path for reader in self.readers]
            for path in {*(each for each in stored.blocks if MARK not in each), *read}:
                key = np.array(path[1:], dtype=np.int32)
                ends = [end for end in range(len(path)) if path[: end + 1] in stored.blocks]
                length = stored.tier.length_of(key, path[0])
                same("stored", length, max(ends, default=0))
                if self.states is not None:
                    ends = [
                        end for end in range(1, len(path)) if self._is_stored(stored, path, end)
                    ]
                    length = stored.tier.restorable(key, path[0])
                    same("stored with a state", length, max(ends, default=0))

    def _is_stored(self, stored: Stored, path: Path, end: int) -> bool:
        """Whether a checkpoint is, of these tokens."""
        key = stored.tier.sizes.path(np.array(path[1 : end + 1], dtype=np.int32))
        return (path[0], *key.tolist()) in stored.blocks

    def _verify_states(self, states: StateSlots) -> None:
        found = {path: states.at[node] for node, path in self.nodes() if node in states.at}
        same("checkpoints", (set(found), len(states.at)), (self.checkpoints, len(found)))
        same("states", {path: self.state_memory[slot] for path, slot in found.items()},
             {path: path for path in found})  # fmt: skip
        locked, private = self.locked_checkpoints(), sum(each.states for each in self.readers)
        free = states.capacity - private - len(found)
        same(
            "usage of states",
            states.usage(),
            (free, private, len(locked), len(found) - len(locked)),
        )
        for reader in self.readers:
            hold = reader.lease.holds[-1]
            assert isinstance(hold, StateHold)
            same("a state of its own", hold.slot is not None, reader.own)
            if hold.slot is not None:
                same("its state", self.state_memory[hold.slot], reader.to(reader.lease.length))
            copies = {end: self.state_memory[slot] for end, (slot, _) in hold.marks.items()}
            same("copies of its state", copies, {end: reader.to(end) for end in reader.marks})

    def _verify_windows(self, there: dict[Path, int]) -> None:
        windows, locked = self.cache.windows, self.locked_windows()
        assert windows is not None
        cached, private = self.in_windows(), self._private_windows()
        same("locked windows are there", locked - cached, set())
        for name in cached:
            same("in windows", self._in_window(there[name]), self.memory[there[name]])
        free = windows.capacity - private - len(cached)
        usage = free, private, len(locked), len(cached) - len(locked)
        same("usage of windows", windows.usage(), usage)
        for reader in self.readers:
            length = reader.lease.length
            first = self._first_seen(length)
            seen = [self._in_window(slot) for slot in reader.lease.slots.tolist()[first:]]
            same("what it sees", seen, reader.paths(first, length))

    def _follow(self, *, room_for_state: bool = False) -> None:
        """What went was free to go: ends of paths, and one checkpoint for a state."""
        there = set().union(
            *(self.names(path, node.start, node.end - node.absent) for node, path in self.nodes())
        )
        same("nothing appears", there - self.there, set())
        same("locked ones stay", self.locked() - there, set())
        self.there = there
        if self.states is None:
            return
        now = {path for node, path in self.nodes() if node in self.states.at}
        gone = {path for path in self.checkpoints if self.name(path, len(path) - 2) not in there}
        same("checkpoints of what is gone", gone & now, set())
        self.checkpoints -= gone
        room_for_state &= not gone  # of which it may have had its room
        self.counts["states with their tokens"] += len(gone)
        locked = self.locked_checkpoints()
        lost = self.checkpoints - now
        if room_for_state or lost:
            same("those that go", (len(lost), lost & locked, room_for_state), (1, set(), True))
            self.checkpoints -= lost
            self.counts["states evicted"] += 1

    def _take_dropped(self) -> None:
        for stored in self.places:
            for dropped in stored.tier.take_dropped():
                end = dropped.start + stored.tier.block_tokens
                first = (dropped.namespace, *dropped.tokens[:end].tolist())
                stored.blocks = {each for each in stored.blocks if each[: len(first)] != first}
                self.counts["dropped"] += 1

    def _blocks(self, stored: Stored, namespace: object, key: Key, start: int) -> set[Path]:
        ends = range(start + stored.tier.block_tokens, key.size + 1, stored.tier.block_tokens)
        return {(namespace, *key[:end].tolist()) for end in ends}

    def _compute(self, reader: Reader, start: int) -> None:
        slots = reader.lease.slots.tolist()[start:]
        for at, slot in enumerate(slots):
            self.memory[slot] = reader.to(start + at + 1)
            if self.window is not None:
                self.window_memory[self.window_slot[slot]] = reader.to(start + at + 1)
        if self.states is not None:
            hold = reader.lease.holds[-1]
            assert isinstance(hold, StateHold)
            assert hold.slot is not None
            before = self.state_memory[hold.slot]
            same("the state it goes on from", before, reader.to(start) if start else None)
            self.state_memory[hold.slot] = reader.to(start + len(slots))
            for end, copy in hold.row_fields()["checkpoints"]:
                self.state_memory[copy] = reader.to(end)

    def _move(self) -> None:
        """What the device does before a step."""
        for component in self.cache.components:
            for kind, moves in component.take_moves().items():
                sources, slots = (each.tolist() for each in moves)
                if kind == "windows":
                    self.window_slot |= dict(zip(sources, slots, strict=True))
                    continue
                there = [None if at == EMPTY else self.state_memory[at] for at in sources]
                self.state_memory |= dict(zip(slots, there, strict=True))

    def _in_window(self, slot: int) -> Path:
        return self.window_memory[self.window_slot[slot]]

    def _private(self) -> int:
        return sum(self._up(each.lease.length) - each.lease.committed for each in self.readers)

    def _private_windows(self) -> int:
        return sum(
            self._up(each.lease.length) - max(each.lease.committed, each.start)
            for each in self.readers
        )

    def _first_seen(self, position: int) -> int:
        if self.window is None:
            return position
        first = max(0, position - self.window.window + 1)
        return first - first % self.page

    def _up(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page) * self.page


class ComponentStress:
    """Random operations, always the same for the same seed."""

    def __init__(self, seed: int, setup: Setup) -> None:
        self.checked = CheckedComponents(setup)
        self._random = random.Random(seed)
        self._keys: list[list[int]] = [[0, 0, 0]]
        self._longest = setup.pages * setup.page_size // 2

    def run(self, operations: int) -> Counter[str]:
        for _ in range(operations):
            self._step()
            self.checked.verify()
        self._close()
        return self.checked.counts

    def _step(self) -> None:
        draw, checked = self._random, self.checked
        reader = draw.choice(checked.readers) if checked.readers else None
        match draw.choices(range(10), (36, 80, 8, 3, 3, 2, 1, 6, 1, 12))[0]:
            case 0 if len(checked.readers) < 4:
                checked.acquire(self._key(), draw.choice("aab"), remember=draw.random() < 0.3)
            case 1:
                self._compute(draw.sample(checked.readers, draw.randint(0, len(checked.readers))))
            case 2 if reader is not None:
                checked.release(reader)
            case 3:
                checked.pin(draw.choice(self._keys[-9:]), draw.choice("ab"))
            case 4 if checked.pins:
                checked.unpin(draw.choice(checked.pins))
            case 5:
                key = draw.choice(self._keys)
                checked.discard(key, draw.choice("ab"), draw.randrange(len(key)))
            case 6 if draw.random() < 0.3:
                checked.flush()
            case 7 if checked.places:
                checked.store(draw.choice(checked.places), draw.choice((4, 16)) * checked.page)
            case 8 if checked.places:
                key = draw.choice(self._keys[-9:])
                checked.drop(draw.choice(checked.places), key, draw.choice("ab"))
            case 9 if checked.places:
                key = draw.choice(self._keys[-9:])
                checked.restore(draw.choice(checked.places), key, draw.choice("ab"))

    def _compute(self, readers: list[Reader]) -> None:
        draw, checked, page = self._random, self.checked, self.checked.page
        wanted = []
        for reader in readers:
            left = reader.lease.key.size - reader.lease.length
            if left:
                wanted.append((reader, min(left, draw.choice((1, page, 4 * page)))))
            else:
                checked.commit(reader, reader.lease.length)
                checked.checkpoint(reader)
                checked.release(reader)
        for reader in checked.step(wanted, self._marks, gives_way=draw.random() < 0.2):
            if reader.marks or draw.random() < 0.7:
                checked.commit(reader, reader.lease.length)
            checked.pass_by(reader)

    def _marks(self, start: int, stop: int) -> list[int]:
        ends = [end for end in range(start + 1, stop + 1) if end % self.checked.page == 0]
        return sorted(self._random.sample(ends, min(len(ends), self._random.choice((0, 0, 1, 2)))))

    def _key(self) -> list[int]:
        draw = self._random
        old = draw.choice(self._keys[-6:])
        key = old[: draw.randint(0, len(old))] + draw.choices(range(2), k=draw.randint(1, 9))
        self._keys.append(key[: self._longest])
        return self._keys[-1]

    def _close(self) -> None:
        """Let everything go: nothing may be left behind."""
        checked = self.checked
        while checked.readers:
            checked.release(checked.readers[-1])
        while checked.pins:
            checked.unpin(checked.pins[-1])
        checked.flush()
        checked.verify()
        for component in checked.cache.components:
            same("left", component.usage(), (component.capacity, 0, 0, 0))


def setups() -> Iterator[Setup]:
    """Every choice of components, with no place, each one, and both; none keeps states beside
    windows.
    """
    places = ((), (Place.HOST,), (Place.DISK,), (Place.HOST, Place.DISK))
    for number, place in enumerate(places):
        for states in (0, 5):
            for window in (0, 5):
                if place and states and window:
                    continue
                page = 1 + number % 2
                size = _size(window, page) if window else None
                yield Setup(48, page, size, states, place)


def _size(window: int, page: int) -> WindowSize:
    size = WindowSize(window, 0, 4 * page)
    capacity = size.least(page) + size.span(page)
    return WindowSize(window, capacity - capacity % page, size.step)
