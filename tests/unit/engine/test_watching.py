"""Who looks is shown one moment, then what changes; what breaks there breaks for nobody else."""

from __future__ import annotations

import logging

import pytest

from radixlm.cache.radix import tree_stats as changes
from radixlm.cache.radix.tree_stats import Changes
from radixlm.core.clock import VirtualClock
from radixlm.core.errors import CacheError, NodeGoneError
from radixlm.core.reports import NodeView, TreeQuery, TreeSnapshot
from radixlm.engine import watching
from radixlm.engine.watching import (
    MOST_SECONDS_BETWEEN_CHANGES,
    SECONDS_BETWEEN_CHANGES,
    SECONDS_PER_ITEM,
    Journal,
    Scene,
    SceneChange,
    TreeUpdate,
    Watching,
)
from radixlm.observe.picture import Picture
from tests.engines import Bench, make_request
from tests.tree_pictures import tree_snapshot

SOON = SECONDS_BETWEEN_CHANGES + 0.01


class Watched:
    """A bench and those who look at it, by a clock that moves when told."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.bench = Bench(sink=self.journal.note)
        self.clock = VirtualClock()
        self.watching = Watching(self.bench.cache, self.bench.scheduler, self.journal, self.clock)

    def run(self, name: str, key: list[int]) -> None:
        self.bench.core.add(make_request(name, key))
        self.bench.run()

    def turn(self) -> list[TreeUpdate]:
        self.clock.advance(SOON)
        return self.watching.turn(self.bench.core.stats())


@pytest.fixture
def watched() -> Watched:
    return Watched()


def by_id(tree: TreeSnapshot) -> dict[int, NodeView]:
    return {view.id: view for view in tree.nodes}


def break_pictures(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Picture, method, fail)


def test_nobody_looks(watched):
    watched.run("r", [1, 2, 3])
    assert watched.watching.seconds_left() is None
    assert watched.turn() == []
    assert not watched.journal


def test_one_look_is_one_scene(watched):
    watched.run("r", [1, 2, 3])
    watched.watching.watch(1, TreeQuery(), follow=False)
    assert watched.watching.seconds_left() == 0
    [seen] = watched.turn()
    assert seen.ticket == 1
    assert isinstance(seen.news, Scene)
    assert seen.news.tree == tree_snapshot(watched.bench.cache.tree)
    assert watched.watching.seconds_left() is None
    assert not any(isinstance(each, Changes) for each in watched.bench.cache.tree.observers)


def test_a_scene_takes_several_turns_and_is_of_the_last(watched, monkeypatch):
    monkeypatch.setattr(watching, "NODES_PER_TURN", 2)
    for number in range(1, 6):
        watched.run(f"r{number}", [number, 2, 3])
    watched.watching.watch(1, TreeQuery(), follow=False)
    assert watched.turn() == []
    watched.run("late", [9, 9, 9])
    seen: list[TreeUpdate] = []
    while not seen:
        seen = watched.turn()
    assert isinstance(seen[0].news, Scene)
    now = tree_snapshot(watched.bench.cache.tree)
    assert seen[0].news.tree.version == now.version
    assert by_id(seen[0].news.tree) == by_id(now)


def test_changes_follow_no_oftener_than_they_should(watched):
    watched.watching.watch(1, TreeQuery(), follow=True)
    watched.turn()
    assert watched.watching.seconds_left() is None
    watched.run("r", [1, 2, 3])
    assert watched.watching.seconds_left() == pytest.approx(SECONDS_BETWEEN_CHANGES)
    assert watched.watching.turn(watched.bench.core.stats()) == []
    [seen] = watched.turn()
    assert isinstance(seen.news, SceneChange)
    assert kinds(seen.news) == ["Arrived", "Scheduled", "Finished"]
    watched.watching.stop(1)
    watched.run("unseen", [4, 5, 6])
    assert not watched.journal
    assert watched.turn() == []


def kinds(change: SceneChange) -> list[str]:
    return [type(event).__name__ for event in change.events]


def test_who_comes_to_look_hurries_nobody(watched, monkeypatch):
    monkeypatch.setattr(watching, "NODES_PER_TURN", 2)
    watched.watching.watch(1, TreeQuery(), follow=True)
    while not watched.turn():
        pass
    watched.run("before", [1, 2, 3])
    assert [seen.ticket for seen in watched.turn()] == [1]
    watched.watching.watch(2, TreeQuery(), follow=True)
    watched.run("meanwhile", [4, 5, 6])
    assert watched.watching.turn(watched.bench.core.stats()) == []
    seen: list[TreeUpdate] = []
    while not seen:
        seen = watched.watching.turn(watched.bench.core.stats())
    assert [each.ticket for each in seen] == [2]
    assert isinstance(seen[0].news, Scene)
    assert by_id(seen[0].news.tree) == by_id(tree_snapshot(watched.bench.cache.tree))
    watched.run("after", [7, 8, 9])
    assert watched.watching.turn(watched.bench.core.stats()) == []
    first, second = (seen.news for seen in watched.turn())
    assert isinstance(first, SceneChange)
    assert isinstance(second, SceneChange)
    assert kinds(first) == 2 * ["Arrived", "Scheduled", "Finished"]
    assert second.events == first.events[3:]


def test_too_many_changes_begin_every_scene_anew(watched, monkeypatch):
    monkeypatch.setattr(watching, "NODES_PER_TURN", 2)
    watched.watching.watch(1, TreeQuery(), follow=True)
    while not watched.turn():
        pass
    watched.run("before", [1, 2, 3])
    watched.turn()
    monkeypatch.setattr(changes, "MAX_CHANGES", 0)
    watched.watching.watch(2, TreeQuery(), follow=True)
    watched.run("meanwhile", [4, 5, 6])
    seen: list[TreeUpdate] = []
    while len(seen) < 2:
        seen += watched.watching.turn(watched.bench.core.stats())
    now = tree_snapshot(watched.bench.cache.tree)
    for each in seen:
        assert isinstance(each.news, Scene)
        assert by_id(each.news.tree) == by_id(now)


def test_the_more_is_told_the_later_comes_the_next(watched):
    for ticket in range(4):
        watched.watching.watch(ticket, TreeQuery(), follow=True)
        watched.turn()
    for number in range(1, 9):
        watched.run(f"r{number}", [number, 9])
    nodes = sum(len(seen.news.tree.nodes) for seen in watched.turn())
    watched.run("last", [30, 31])
    left = watched.watching.seconds_left()
    assert left == pytest.approx(SECONDS_PER_ITEM * nodes)
    assert left > SECONDS_BETWEEN_CHANGES


def test_however_much_is_told_the_next_does_not_wait_for_ever(watched, monkeypatch):
    monkeypatch.setattr(watching, "SECONDS_PER_ITEM", 60.0)
    watched.watching.watch(1, TreeQuery(), follow=True)
    watched.turn()
    watched.run("first", [1, 2, 3])
    assert watched.turn()
    watched.run("last", [4, 5, 6])
    assert watched.watching.seconds_left() == pytest.approx(MOST_SECONDS_BETWEEN_CHANGES)


def test_requests_count_as_what_is_told(watched, monkeypatch):
    monkeypatch.setattr(watching, "SECONDS_PER_ITEM", 0.03)
    watched.watching.watch(1, TreeQuery(), follow=True)
    watched.turn()
    for number in range(4):
        watched.bench.core.add(make_request(f"r{number}", [number, 1, 2]))
    watched.bench.core.step()
    [seen] = watched.turn()
    nodes, requests = len(seen.news.tree.nodes), len(seen.news.running)
    assert requests == 4
    watched.bench.run()
    assert watched.watching.seconds_left() == pytest.approx(0.03 * (nodes + requests))


def test_who_looks_at_no_node_is_told_so(watched):
    watched.watching.watch(1, TreeQuery(node=99), follow=True)
    [seen] = watched.turn()
    assert isinstance(seen.news, NodeGoneError)
    assert watched.watching.failures == 0


@pytest.mark.parametrize("method", ["develop", "snapshot", "_tops"])
def test_a_picture_that_breaks_ends_who_looks(watched, monkeypatch, caplog, method):
    break_pictures(monkeypatch, method)
    watched.watching.watch(1, TreeQuery(), follow=True)
    with caplog.at_level(logging.ERROR):
        [seen] = watched.turn()
    assert isinstance(seen.news, CacheError)
    assert "a bug" not in str(seen.news)
    assert watched.watching.failures == 1
    assert "KeyError: 'a bug'" in caplog.text
    assert watched.watching.seconds_left() is None


def test_a_change_that_breaks_ends_all_who_look_and_nothing_else(watched, monkeypatch):
    for ticket in (1, 2):
        watched.watching.watch(ticket, TreeQuery(), follow=True)
        watched.turn()
    break_pictures(monkeypatch, "update")
    watched.run("r", [1, 2, 3])
    seen = watched.turn()
    assert [each.ticket for each in seen] == [1, 2]
    assert all(isinstance(each.news, CacheError) for each in seen)
    assert watched.watching.failures == 2
    monkeypatch.undo()
    watched.watching.watch(3, TreeQuery(), follow=False)
    assert isinstance(watched.turn()[0].news, Scene)
