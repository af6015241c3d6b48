"""Replicas report, and requests are sent where they are heard of."""

from __future__ import annotations

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.core.errors import QueueFullError
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace
from radixlm.routing import FeedUpdate, Position, Report, RouterActor
from radixlm.routing.router import Why
from radixlm.routing.router_actor import GONE_SECONDS, LOST_SECONDS, SILENT_SECONDS
from radixlm.routing.tree_mirror import ResidentPrefix

HERE = Namespace()
PROMPT = as_key(range(100))


class Scene:
    def __init__(self, *names: str) -> None:
        self.clock = VirtualClock()
        self.actor = RouterActor(self.clock)
        self.names = names
        self.speak(*names, news=[FeedUpdate(Position("epoch", 0, 0), whole=True, changes=[])])

    def speak(self, *names: str, **what) -> list[bool]:
        return [self.actor.report(Report(name, 1_000, 750, **what)) for name in names]

    def choose(self, request_id: str = "1", rank: int | None = None):
        return self.actor.choose(request_id, HERE, PROMPT, 8, self.names, "", rank)

    def requests(self) -> dict[str, int]:
        return {each.replica: each.requests for each in self.actor.replicas()}


def test_a_replica_that_is_not_known_must_report_all_it_holds():
    scene = Scene("a")
    change = FeedUpdate(
        Position("epoch", 0, 0), whole=False, changes=[ResidentPrefix(HERE, PROMPT)]
    )
    assert scene.speak("a", news=[change]) == [True]
    assert scene.choose().cached == 100
    restarted = Scene()
    assert restarted.speak("a", news=[change._replace(at=change.at.next)]) == [False]
    assert restarted.speak("a") == [False]
    whole = FeedUpdate(Position("epoch", 0, 2), whole=True, changes=[])
    assert restarted.speak("a", news=[whole]) == [True]
    assert restarted.speak("a", at=whole.at) == [True]
    assert restarted.speak("a", at=whole.at.next) == [False], "a change was lost"


def test_who_is_silent_is_not_chosen_and_then_forgotten():
    scene = Scene("a", "b")
    first = scene.choose()
    other = ({"a", "b"} - {first.replica}).pop()
    scene.clock.advance(SILENT_SECONDS + 1)
    scene.speak(other)
    healthy = {each.replica: each.healthy for each in scene.actor.replicas()}
    assert healthy == {other: True, first.replica: False}
    assert scene.choose("2").replica == other
    scene.clock.advance(GONE_SECONDS)
    scene.speak(other)
    assert set(scene.requests()) == {other}
    assert scene.choose("3").candidates == 1
    scene.clock.advance(SILENT_SECONDS + 1)
    assert scene.choose("4").replica == other, "better than nobody"


def test_only_replicas_with_the_own_tokenizer_are_chosen():
    scene = Scene("old", "new")
    scene.speak("new", tokenizer="2")
    for number in range(4):
        made = scene.actor.choose(f"{number}", HERE, PROMPT, 8, scene.names, "2")
        assert (made.replica, made.candidates) == ("new", 1)
    scene.actor.leave("new")
    with pytest.raises(QueueFullError):
        scene.actor.choose("5", HERE, PROMPT, 8, scene.names, "2")


def test_what_began_and_ended_is_taken_from_reports():
    scene = Scene("a", "b")
    name = scene.choose().replica
    assert scene.requests()[name] == 1
    scene.speak(name, began=["1"], ended=[("1", 4)])
    assert scene.requests() == {"a": 0, "b": 0}
    [there] = [each for each in scene.actor.replicas() if each.replica == name]
    assert (sum(there.chosen.values()), there.largest_request) == (1, 750)
    assert scene.choose("2").cached == 100


def test_requests_that_never_came_are_taken_back():
    scene = Scene("a", "b")
    name = scene.choose().replica
    scene.clock.advance(LOST_SECONDS - 1)
    scene.speak("a", "b", under_way=[])
    assert scene.requests()[name] == 1
    scene.clock.advance(2)
    scene.speak("a", "b", under_way=["1"])
    assert scene.requests()[name] == 1
    scene.speak("a", "b", under_way=[])
    assert scene.requests()[name] == 0


def test_a_replica_that_leaves_takes_its_requests_with_it():
    scene = Scene("a", "b")
    name = scene.choose().replica
    scene.actor.leave(name)
    scene.actor.leave(name)
    assert set(scene.requests()) == {"a", "b"} - {name}
    assert scene.speak(name) == [False]
    with pytest.raises(QueueFullError):
        scene.actor.choose("2", HERE, PROMPT, 8, ["nobody"])


def test_what_another_replica_says_of_a_request_that_went_on_counts_for_nothing():
    scene = Scene("a", "b")
    first = scene.choose().replica
    other = ({"a", "b"} - {first}).pop()
    assert scene.actor.choose("1", HERE, PROMPT, 8, [other]).replica == other
    scene.speak(first, began=["1"], ended=[("1", None)])
    assert scene.requests() == {first: 0, other: 1}


def test_offers_change_nothing():
    scene = Scene("a", "b")
    name = scene.choose().replica
    offers = {each.replica: each for each in scene.actor.offers(HERE, PROMPT)}
    assert offers[name].coming_tokens == 100
    assert offers == {each.replica: each for each in scene.actor.offers(HERE, PROMPT, ["a", "b"])}
    assert sum(scene.requests().values()) == 1


def test_requests_with_an_adapter_go_where_it_is():
    scene = Scene("old", "new", "plain")
    scene.speak("old", adapters=["fr@1"])
    scene.speak("new", adapters=["fr@1", "fr@2"])

    def chosen(adapter_id: str, among: list[str]) -> str:
        of = Namespace(adapter_id=adapter_id)
        return scene.actor.choose("1", of, PROMPT, 8, among).replica

    assert chosen("fr@2", ["old", "new", "plain"]) == "new"
    assert chosen("fr@1", ["old", "plain"]) == "old"
    assert chosen("", ["plain"]) == "plain"
    with pytest.raises(QueueFullError):
        chosen("fr@1", ["plain"])


def test_a_rank_names_a_replica_for_as_long_as_it_speaks():
    scene = Scene("b", "a", "c")
    assert [scene.choose(f"{n}", n).replica for n in range(4)] == ["a", "b", "c", "a"]
    assert scene.choose("5", 1).why is Why.ONLY
    scene.clock.advance(SILENT_SECONDS + 1)
    scene.speak("a", "c")
    assert scene.choose("6", 2).replica == "c"  # others' ranks are what they were
    assert scene.choose("7", 1).replica in ("a", "c")
