"""Where requests go, and why."""

from __future__ import annotations

import pytest

from radixlm.core.errors import ConfigError, QueueFullError
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace
from radixlm.routing import FeedUpdate, Position, Router, Why
from radixlm.routing.tree_mirror import Dropped, ResidentPrefix

HERE = Namespace()


def router(*names: str, capacity: int = 10_000) -> Router:
    made = Router()
    for name in names or ("a", "b"):
        made.join(name, capacity)
        made.take(name, FeedUpdate(Position(name, 0, 0), whole=True, changes=[]))
    return made


def changed(number: int, *changes) -> FeedUpdate:
    """What replica b tells, after its whole tree."""
    return FeedUpdate(Position("b", 0, number), whole=False, changes=[*changes])


def key(*parts: range):
    return as_key([token for part in parts for token in part])


def done(made: Router, name: str, tokens: int = 1) -> None:
    made.began(name)
    made.ended(name, tokens)


def test_a_prompt_follows_its_prefix():
    made = router()
    first = made.choose("1", HERE, key(range(100)))
    done(made, "1")
    other = made.choose("2", HERE, key(range(500, 600)))
    done(made, "2")
    assert first.replica != other.replica
    again = made.choose("3", HERE, key(range(100), range(900, 910)))
    assert (again.replica, again.why) == (first.replica, Why.LONGEST_PREFIX)
    assert (again.cached, again.missing, again.coming) == (100, 10, 0)
    assert "holds 100 tokens" in str(again)


def test_a_burst_with_one_cold_prefix_goes_where_it_is_computed():
    made = router("a", "b", "c", "d")
    chosen = [
        made.choose(f"{n}", HERE, key(range(2_000), range(9_000 + n, 9_001 + n))) for n in range(64)
    ]
    assert {each.replica for each in chosen[1:6]} == {chosen[0].replica}
    assert chosen[1].why is Why.IN_FLIGHT
    assert chosen[1].coming == 2_000
    computed = sum(each.missing for each in chosen)
    assert computed <= 1.1 * (2_000 + 64)


def test_a_hot_prefix_is_spilled_when_its_queue_costs_more():
    made = router()
    prefix = range(50)
    owner = made.choose("0", HERE, key(prefix)).replica
    done(made, "0")
    for n in range(1, 40):
        made.choose(f"{n}", HERE, key(prefix, range(1_000 * n, 1_000 * n + 200)))
    loads = made.loads()
    assert {name for name, (count, _) in loads.items() if count} == {"a", "b"}
    last = made.choose("x", HERE, key(prefix, range(7, 9)))
    assert max(queue for _, queue in loads.values()) < 1.5 * sum(q for _, q in loads.values()) / 2
    assert last.replica in ("a", "b")
    assert owner in ("a", "b")


def test_prompts_that_all_hold_in_whole_are_shared_out():
    made = router("a", "b", "c", "d")
    for name in made.names:
        held = [ResidentPrefix(HERE, key(range(100)))]
        made.take(name, FeedUpdate(Position(name, 0, 0), whole=False, changes=held))
    chosen = [made.choose(f"{n}", HERE, key(range(100))) for n in range(40)]
    assert {each.missing for each in chosen} == {1}, "its last token"
    assert {count for count, _ in made.loads().values()} == {10}


def test_the_reason_names_what_the_fullest_of_many_replicas_holds():
    names = [f"r{n}" for n in range(100)]
    made = router(*names)
    made.take(
        "r99",
        FeedUpdate(
            Position("r99", 0, 0), whole=False, changes=[ResidentPrefix(HERE, key(range(50)))]
        ),
    )
    made.choose("1", HERE, key(range(500, 9_500)), among=["r99"])
    spilled = made.choose("2", HERE, key(range(60)))
    assert (spilled.why, spilled.cached) == (Why.SPILLED, 0)
    assert (spilled.best_cached, spilled.best_queue) == (50, 9_000)
    assert spilled.candidates == 100


def test_namespaces_do_not_share():
    made = router()
    made.choose("1", HERE, key(range(100)))
    done(made, "1")
    other = made.choose("2", Namespace(cache_salt="x"), key(range(100)))
    assert (other.cached, other.why) == (0, Why.LEAST_LOADED)


def test_what_replicas_say_is_known():
    made = router()
    assert made.take("b", changed(0, ResidentPrefix(HERE, key(range(40)))))
    assert made.choose("1", HERE, key(range(60))).replica == "b"
    made.ended("1")
    assert made.take("b", changed(1, Dropped(HERE, key(range(40)), 0)))
    assert made.choose("2", HERE, key(range(60))).cached == 0


def test_gaps_are_seen_and_what_is_said_twice_is_taken_once():
    made = router()
    held = changed(0, ResidentPrefix(HERE, key(range(40))))
    dropped = changed(1, Dropped(HERE, key(range(40)), 10))
    assert not made.take("b", dropped)
    assert made.take("b", held)
    assert made.take("b", dropped)
    assert made.take("b", held)
    assert made.choose("1", HERE, key(range(60))).cached == 10
    made.ended("1")
    later = Position("a later process", 0, 5)
    assert not made.take("b", held._replace(at=later))
    assert made.choose("2", HERE, key(range(60)), among=["b"]).cached == 0, "it has another cache"
    assert made.take("b", FeedUpdate(later, whole=True, changes=[]))
    assert not made.take("nobody", held)


def test_a_replica_that_leaves_takes_its_requests_along():
    made = router()
    gone = made.choose("1", HERE, key(range(100))).replica
    assert made.sent_to(gone) == {"1"}
    made.leave(gone)
    made.leave(gone)
    made.began("1")
    assert set(made.names) == {"a", "b"} - {gone}
    again = made.choose("1", HERE, key(range(100)))
    assert again.replica != gone
    assert again.why is Why.ONLY
    made.join(gone, 10)
    with pytest.raises(ConfigError, match="known already"):
        made.join(gone, 10)


def test_nothing_is_left_of_requests_that_fail():
    made = router()
    made.choose("1", HERE, key(range(100)))
    made.ended("1")
    assert made.tree.nodes == 0
    assert set(made.loads().values()) == {(0, 0.0)}
    made.began("1")
    made.ended("1", 4)
    assert made.tree.nodes == 0


def test_only_those_that_may_be_chosen():
    made = router()
    first = made.choose("1", HERE, key(range(100))).replica
    done(made, "1")
    other = ({"a", "b"} - {first}).pop()
    assert made.choose("2", HERE, key(range(100)), among={other}).replica == other
    with pytest.raises(QueueFullError, match="no replica"):
        made.choose("3", HERE, key(range(100)), among=set())
