"""Whoever looks, whenever they come: a scene and the changes after it are the tree, and each event
is told once to each, or is part of its scene.
"""

from __future__ import annotations

import random

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.core.reports import Event, NodeView, TreeQuery
from radixlm.engine import watching
from radixlm.engine import watching as journal
from radixlm.engine.watching import (
    SECONDS_BETWEEN_CHANGES,
    Journal,
    Scene,
    SceneChange,
    Watching,
)
from tests.engines import Bench, make_request
from tests.tree_pictures import tree_snapshot


class Watcher:
    """What one who looks knows by what it was told."""

    def __init__(self) -> None:
        self.views: dict[int, NodeView] | None = None
        self.happened: list[Event] = []
        self.lost = self.since = 0
        self.told_at = -1.0

    def take(self, sight: object, now: float, n_events: int) -> None:
        if isinstance(sight, Scene):
            assert self.views is None, "a second scene"
            self.views, self.since = {view.id: view for view in sight.tree.nodes}, n_events
            return
        assert isinstance(sight, SceneChange)
        assert self.views is not None, "a change before the scene"
        assert now >= self.told_at + SECONDS_BETWEEN_CHANGES, "told too soon"
        self.told_at = now
        self.happened += sight.events
        self.lost += sight.lost
        if sight.tree is not None:
            for name in sight.tree.removed:
                del self.views[name]
            self.views |= {view.id: view for view in sight.tree.nodes}


class World:
    """Requests that run, and those who look, by a clock that moves when told."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.noted: list[Event] = []
        self._journal = Journal()
        self.bench = Bench(sink=self._note)
        self.clock = VirtualClock()
        self.clock.advance(1)
        self.watching = Watching(self.bench.cache, self.bench.scheduler, self._journal, self.clock)
        self.watchers: dict[int, Watcher] = {}
        self._names = 0

    def _note(self, event: Event) -> None:
        if isinstance(event, Event):
            self.noted.append(event)
        self._journal.note(event)

    def step(self) -> None:
        draw = self.draw
        if draw.random() < 0.4:
            key = [draw.randrange(3) for _ in range(draw.randint(1, 9))]
            self.bench.core.add(make_request(self._name(), key, max_tokens=draw.randint(1, 4)))
        if self.bench.core.has_work:
            self.bench.core.step()
        if draw.random() < 0.1 and len(self.watchers) < 5:
            ticket = int(self._name())
            self.watchers[ticket] = Watcher()
            self.watching.watch(ticket, TreeQuery(), follow=True)
        if draw.random() < 0.02 and self.watchers:
            ticket = draw.choice(list(self.watchers))
            del self.watchers[ticket]
            self.watching.stop(ticket)
        self.clock.advance(draw.choice([0.001, 0.01, 0.05]))
        self.turn()

    def turn(self) -> None:
        for seen in self.watching.turn(self.bench.core.stats()):
            watcher = self.watchers[seen.ticket]
            watcher.take(seen.news, self.clock.now(), len(self.noted))

    def _name(self) -> str:
        self._names += 1
        return str(self._names)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [3, 2_000])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_lost_or_told_twice(monkeypatch, seed: int, kept: int) -> None:
    monkeypatch.setattr(watching, "NODES_PER_TURN", 5)
    monkeypatch.setattr(journal, "MAX_EVENTS", kept)
    world = World(seed)
    for _ in range(300):
        world.step()
    world.bench.run()
    while (left := world.watching.seconds_left()) is not None:
        world.clock.advance(left + 0.001)
        world.turn()
    now = {view.id: view for view in tree_snapshot(world.bench.cache.tree).nodes}
    assert world.watchers
    for watcher in world.watchers.values():
        assert watcher.views == now
        seen = world.noted[watcher.since :]
        assert len(watcher.happened) + watcher.lost == len(seen)
        if kept == 2_000:
            assert watcher.happened == seen
