"""Checkpoints of states, without a model: where matches end, what is copied, and what goes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from radixlm.cache import Lease, RadixCache, Usage
from radixlm.cache.components.states import StateSlots
from radixlm.cache.radix.node import Match
from radixlm.core.batch import EMPTY
from radixlm.core.errors import CacheError, ConfigError, PinError
from radixlm.core.misses import MissReason
from radixlm.core.moves import Place
from radixlm.core.reports import TreeQuery
from radixlm.observe.picture import Picture
from tests.invariants import check


def make(states: int = 4, capacity: int = 64) -> tuple[RadixCache, StateSlots]:
    cache = RadixCache(capacity, components=[partial(StateSlots, states)])
    [component] = cache.components
    assert isinstance(component, StateSlots)
    return cache, component


def compute(lease: Lease, upto: int, *checkpoints: int) -> None:
    assert lease.extend(upto - lease.length) is not None
    for end in checkpoints:
        lease.mark(end)
    lease.commit(upto)


def moved(states: StateSlots) -> list[tuple[int, int]]:
    """(from, to) of the states that the next batch copies."""
    moves = states.take_moves().get("states", ((), ()))
    return list(zip(*map(list, moves), strict=True))


def serve(cache: RadixCache, key: list[int], *checkpoints: int) -> int:
    """A whole request that leaves checkpoints after so many tokens; how many it found."""
    found = serve_unchecked(cache, key, *checkpoints)
    check(cache)
    return found


def serve_unchecked(cache: RadixCache, key: list[int], *checkpoints: int) -> int:
    lease = cache.acquire(key)
    found = lease.cached
    for end in (*checkpoints, len(key)):
        if end > lease.length:
            compute(lease, end, *({end} & {*checkpoints}))
    lease.release()
    return found


def test_a_match_ends_at_the_deepest_checkpoint() -> None:
    cache, states = make()
    assert serve(cache, [1, 2, 3, 4, 5, 6, 7, 8], 3, 6) == 0
    assert serve(cache, [1, 2, 3, 4, 5, 6, 7, 9]) == 6
    assert serve(cache, [1, 2, 3, 4, 5, 9]) == 3
    assert serve(cache, [1, 2, 9]) == 0
    assert cache.tree.match_prefix([1, 2, 3, 4, 5, 6, 7]).length == 7
    assert states.usage() == Usage(2, 0, 0, 2)


def test_what_another_component_cuts_ends_at_a_checkpoint_again() -> None:
    cache, states = make()
    key = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    serve(cache, key, 3, 6, 8)

    class AtMostSeven:
        def cut(self, match: Match) -> Match:
            return match if match.length <= 7 else cache.tree.match_prefix(key[:7])

    cache.components = (states, AtMostSeven())
    assert cache.match(key).length == 6


def test_a_state_is_copied_when_it_is_used_and_not_before() -> None:
    cache, states = make()
    lease = cache.acquire([1, 2, 3, 4])
    lease.extend(3)
    lease.mark(2)
    (source, first), (mark, copy) = *moved(states), *lease.row_fields()["checkpoints"]
    assert (source, mark, first != copy) == (EMPTY, 2, True)
    assert states.usage() == Usage(2, 2, 0, 0)
    lease.commit(3)
    assert ([node.end for node in states.at], states.usage()) == ([2], Usage(2, 1, 0, 1))
    other = cache.acquire([1, 2, 9])
    assert (states.usage(), moved(states)) == (Usage(2, 1, 1, 0), [])
    compute(other, 3)
    assert [source for source, _ in moved(states)] == [copy]
    assert states.usage() == Usage(1, 2, 0, 1)
    lease.release()
    other.release()
    assert states.usage() == Usage(3, 0, 0, 1)


def test_copies_that_were_not_made_are_given_back() -> None:
    cache, states = make()
    lease = cache.acquire([1, 2, 3, 4])
    lease.extend(3)
    lease.mark(1)
    lease.mark(2)
    for end in (2, 0, 4):
        with pytest.raises(CacheError, match=f"no end after {end} tokens: of 2 to 3, in pages"):
            lease.mark(end)
    assert states.usage() == Usage(1, 3, 0, 0)
    lease.release()
    assert (states.at, states.usage()) == ({}, Usage(4, 0, 0, 0))


def test_a_checkpoint_at_the_end_of_a_lease_is_not_copied() -> None:
    cache, states = make()
    lease = cache.acquire([1, 2, 3])
    compute(lease, 3)
    [(_, slot)] = moved(states)
    lease.checkpoint()
    lease.release()
    assert (list(states.at.values()), moved(states)) == ([slot], [])
    assert states.usage() == Usage(3, 0, 0, 1)


def test_without_room_no_checkpoint_is_left_on_the_way() -> None:
    cache, states = make(states=2)
    leases = [cache.acquire([kind, 5, 5]) for kind in (1, 2)]
    for lease in leases:
        lease.extend(2)
    for lease in leases:
        lease.mark(2)
        lease.commit(2)
    assert (states.at, states.usage()) == ({}, Usage(0, 2, 0, 0))
    leases[1].release()
    compute(leases[0], 3, 3)
    assert (states.figures()["mamba_checkpoints"], states.usage()) == (1, Usage(0, 1, 0, 1))


def test_what_is_worth_more_makes_no_room_on_the_way_of_a_prompt() -> None:
    """Of several that one step leaves; an end, from which others are known to go on, has room."""
    cache, states = make(states=3, capacity=400)
    serve(cache, [*range(100)], 90)
    compute(cache.acquire([7, 8]), 2)
    lease = cache.acquire([*range(200, 300)])
    lease.extend(50)
    lease.mark(20, since=20, ahead=80)
    assert ([node.end for node in states.at], states.usage()) == ([90], Usage(0, 2, 0, 1))
    lease.mark(40, since=20)
    assert ([*states.at], states.usage()) == ([], Usage(0, 3, 0, 0))


def test_a_source_may_be_another_s_slot_by_the_time_it_is_copied() -> None:
    cache, states = make(states=2)
    serve(cache, [1, 2, 3], 2)
    moved(states)
    [source] = states.at.values()
    one = cache.acquire([1, 2, 4])
    compute(one, 3)
    other = cache.acquire([9, 9])
    compute(other, 1)
    mine, its = (each.row_fields()["state"] for each in (one, other))
    assert (moved(states), its) == ([(source, mine), (EMPTY, source)], source)


def test_a_checkpoint_that_is_there_stays_and_the_lease_goes_on_with_its_own_state() -> None:
    cache, states = make()
    one, other = cache.acquire([1, 2, 3]), cache.acquire([1, 2, 4])
    for lease in (one, other):
        compute(lease, 2, 2)
    assert states.usage() == Usage(1, 2, 0, 1)
    moved(states)
    compute(other, 3)
    compute(one, 3)
    assert moved(states) == []


def test_all_that_has_slots_must_be_committed_for_a_checkpoint() -> None:
    cache, _ = make()
    lease = cache.acquire([1, 2, 3])
    lease.extend(2)
    lease.commit(1)
    with pytest.raises(CacheError, match="2 tokens have slots, 1 are committed"):
        lease.checkpoint()


def test_splits_and_merges_leave_checkpoints_where_they_are() -> None:
    cache, states = make()
    serve(cache, [1, 2, 3, 4], 4)
    [node] = states.at
    serve(cache, [1, 2, 9])
    assert [list(at.tokens()) for at in states.at] == [[3, 4]]
    assert list(states.at) == [node]
    serve(cache, [1, 2, 3, 4, 5, 6], 6)
    assert len(states.at) == 2  # [3, 4] neither grew nor joined [5, 6]
    assert serve(cache, [1, 2, 3, 4, 5, 6, 7]) == 6
    assert serve(cache, [1, 2, 3, 4, 9]) == 4


def test_a_node_may_join_its_child_once_its_checkpoint_is_given_up() -> None:
    cache, states = make(states=2)
    serve(cache, [1, 2, 3, 4, 5], 2)
    nodes = cache.tree.node_count
    lease = cache.acquire([7, 7])
    other = cache.acquire([8, 8])
    compute(lease, 1)
    compute(other, 1)
    assert (states.usage(), cache.tree.node_count) == (Usage(0, 2, 0, 0), nodes + 1)
    check(cache)


def left_of(cache: RadixCache, *kinds: int) -> set[int]:
    """Which of the prompts [kind, 5, ...] have a checkpoint after two tokens."""
    return {kind for kind in kinds if cache.match([kind, 5, 0]).length}


def test_a_branch_outlives_prompts_that_nobody_asked_for_again() -> None:
    cache, _ = make(states=4, capacity=400)
    for kind in (1, 2, 3):
        serve(cache, [kind, 5, 5], 2)
    assert serve(cache, [1, 5, 6]) == 2
    for kind in (4, 6, 7):
        serve(cache, [kind, 5, 5], 2)
    assert left_of(cache, 1, 2, 3) == {1}


def test_what_a_chat_has_left_behind_goes_before_where_it_is() -> None:
    cache, states = make(states=4, capacity=400)
    chat = list(range(100, 130))
    for end in (10, 20, 30):
        assert serve(cache, chat[:end], end) == end - 10
    serve(cache, [*range(20)], 20)
    assert [node.end for node in states.at] == [20, 30, 20]
    serve(cache, [*range(50, 70)], 20)
    assert cache.match([*chat, 0]).length == 30


def test_what_is_used_or_would_be_left_once_more_is_as_new() -> None:
    cache, _ = make(states=4, capacity=400)
    for kind in (1, 2, 3):
        serve(cache, [kind, 5], 2)
    lease = cache.acquire([1, 5], max_match=0)
    compute(lease, 2)  # evicts nothing: there is a slot for it
    lease.checkpoint()
    lease.release()
    serve(cache, [4, 5], 2)
    serve(cache, [6, 5], 2)
    assert left_of(cache, 1, 2, 3) == {1}


def test_of_a_long_prompt_checkpoints_stay_all_along_it() -> None:
    """sglang #36935: the oldest, which others begin with, went first, and a fork found none."""
    cache, _ = make(states=24, capacity=9_000)
    prompts = [[kind, *range(800)] for kind in (1, 2, 3)]
    for prompt in prompts:
        serve(cache, prompt, *range(100, 801, 100), 801)
    assert serve(cache, [*prompts[0][:450], 9, 9, 9]) >= 200


def test_what_is_left_of_places_that_are_never_used_makes_room() -> None:
    """Prompts under shared examples: that ends are never gone on from is learned."""
    cache, _ = make(states=12, capacity=4_000)
    examples = [[kind, *range(20)] for kind in range(8)]
    for number in range(200):
        serve(cache, [*examples[number % 8], 500 + number, 7], 21, 23)
    found = [serve(cache, [*each, 999]) for each in examples]
    assert found == [21] * 8


def test_those_that_go_are_looked_for_once_in_many_evictions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache, states = make(states=800, capacity=4000)
    for prompt in range(800):
        serve_unchecked(cache, [prompt, 1], 1)
    looked = Counter[int]()
    worth = StateSlots.worth

    def counted(self: StateSlots, slot: int) -> float:
        looked[slot] += 1
        return worth(self, slot)

    monkeypatch.setattr(StateSlots, "worth", counted)
    for _ in range(50):
        states.evict()
    assert looked.total() < 50 * 2 + 2 * 800


def test_a_branch_gets_the_uses_of_what_stood_before_it() -> None:
    """What those who part at the branch went on from is not worth keeping beside it."""
    cache, states = make(states=6, capacity=4_000)
    serve(cache, range(100), 60, 100)
    assert serve(cache, [*range(80), 7, 8], 80) == 60
    assert {node.end: states.uses_of(node) for node in states.at} == {60: 0, 80: 1, 100: 0}


def test_uses_of_a_checkpoint_that_goes_are_those_of_the_one_above_it() -> None:
    cache, states = make(states=6, capacity=4_000)
    serve(cache, range(100), 20, 60)
    for number in (7, 8):
        assert serve(cache, [*range(60), number]) == 60
    [deeper] = [slot for node, slot in states.at.items() if node.end == 60]
    states.worth = lambda slot: slot != deeper  # type: ignore[method-assign]
    states.evict()
    assert {node.end: states.uses_of(node) for node in states.at} == {20: 2}


def test_a_locked_checkpoint_never_goes_and_extend_says_that_there_is_no_room() -> None:
    cache, states = make(states=3)
    serve(cache, [1, 2, 3], 2)
    spare = cache.acquire([8, 8])
    compute(spare, 1)
    pin = cache.pin([1, 2])
    lease, other = (cache.acquire(key) for key in ([1, 2, 4], [9, 9]))
    compute(lease, 3)
    assert (other.extend(1), states.usage()) == (None, Usage(0, 2, 1, 0))
    cache.unpin(pin.id)
    assert other.extend(1) is not None


def test_a_checkpoint_goes_with_its_tokens() -> None:
    cache, states = make()
    serve(cache, [1, 2, 3, 4], 2, 4)
    cache.discard([1, 2, 3, 4], None, 3)
    assert [node.end for node in states.at] == [2]
    cache.flush()
    assert states.usage() == Usage(4, 0, 0, 0)
    check(cache)


def test_a_match_from_before_a_checkpoint_is_found_anew() -> None:
    cache, _ = make()
    lease = cache.acquire([1, 2, 3])
    compute(lease, 2)
    before = cache.match([1, 2, 9])
    assert before.length == 0
    lease.checkpoint()
    assert cache.acquire([1, 2, 9], match=before).cached == 2


def test_pins_lock_a_checkpoint_and_leave_room_for_one_request() -> None:
    cache, states = make(states=3)
    serve(cache, [1, 2, 3], 2)
    serve(cache, [4, 5, 6], 2)
    pin = cache.pin([1, 2, 3])
    assert (pin.tokens, states.usage()) == (2, Usage(1, 0, 1, 1))
    with pytest.raises(PinError, match="1 state would make 2 pinned ones, of 1"):
        cache.pin([4, 5, 6])
    cache.unpin(pin.id)
    assert (states.pinned, states.locked) == (0, 0)
    check(cache)


def test_a_request_alone_needs_two_slots() -> None:
    with pytest.raises(ConfigError, match="a request alone needs 2"):
        make(states=1)


def test_a_prompt_of_which_nothing_is_cached_takes_nothing_until_it_computes() -> None:
    cache, states = make()
    lease = cache.acquire([1, 2])
    assert states.usage() == Usage(4, 0, 0, 0)
    lease.release()
    assert moved(states) == []


def test_the_reason_of_a_cut_is_the_component_s_own() -> None:
    cache, _ = make()
    serve(cache, [1, 2, 3, 4, 5], 2)
    lease = cache.acquire([1, 2, 3, 4, 9])
    report = lease.why()
    assert (report.reason, report.cached, report.evicted) == (MissReason.NO_STATE, 2, 2)
    assert "2 from token 2 on are cached, but no state" in str(report)
    lease.release()


def test_states_of_no_size_can_not_be_stored() -> None:
    cache, _ = make()
    with pytest.raises(ConfigError, match=r"of no size, can not be stored \(--host-kv-tokens, --d"):
        cache.add_store(Place.DISK, 2, 8)
    with pytest.raises(ConfigError, match=r"no checkpoint of states, which takes the room of 10"):
        cache.add_store(Place.DISK, 2, 8, 4)
    assert cache.tiers == []


def test_a_state_that_is_given_back_before_a_step_is_not_copied() -> None:
    cache, states = make()
    serve(cache, [1, 2, 3], 2)
    moved(states)
    for _ in range(9):
        lease = cache.acquire([1, 2, 4])
        lease.extend(1)
        lease.release()
    assert moved(states) == []


def test_a_picture_shows_where_checkpoints_are() -> None:
    cache, states = make()
    serve(cache, [1, 2, 3, 4], 2)
    picture = Picture(cache.tree, TreeQuery(), None, states.at)
    picture.develop(100)
    shown = {view.tokens: view.checkpoint for view in picture.snapshot().nodes}
    assert shown == {(): False, (1, 2): True, (3, 4): False}


@pytest.mark.parametrize("length", [6, 5, 3])
def test_a_lease_goes_back_to_a_spare_of_its_state(length: int) -> None:
    cache, states = make(8)
    lease = cache.acquire([1, 2, 3, 4, 5, 6])
    compute(lease, 3)
    own = lease.row_fields()["state"]
    assert lease.spare(3) == 3
    assert lease.extend(3, lent=True) is not None
    check(cache)
    spares = dict(lease.row_fields()["spares"])
    assert list(spares) == [3, 4, 5]
    assert len({own, *spares.values()}) == 4
    lease.shrink(length)
    lease.pass_by(length)
    assert (lease.lost, lease.row_fields()["state"]) == (False, spares.get(length, own))
    assert (lease.row_fields()["spares"], states.usage()) == ((), Usage(7, 1, 0, 0))
    lease.commit(length)
    lease.checkpoint()
    assert cache.match([1, 2, 3, 4, 5, 6, 7]).length == length
    lease.release()


def test_without_a_spare_a_lease_that_shrinks_is_lost() -> None:
    cache, states = make(8)
    lease = cache.acquire([1, 2, 3, 4, 5, 6])
    compute(lease, 3)
    lease.spare(2)
    lease.extend(3, lent=True)
    lease.shrink(5)
    assert (lease.lost, states.usage()) == (True, Usage(8, 0, 0, 0))
    lease.release()


def test_spares_leave_half_of_the_slots_to_checkpoints() -> None:
    cache, states = make(8)
    serve(cache, [1, 2, 3, 4, 5, 6, 7, 8], 2, 3, 4, 5, 6, 7)
    assert states.usage() == Usage(2, 0, 0, 6)
    lease = cache.acquire([9, 9, 9])
    compute(lease, 2)
    assert lease.spare(8) == 3
    check(cache)
    assert states.usage() == Usage(0, 4, 0, 4)
    assert (lease.spare(0), states.usage()) == (0, Usage(3, 1, 0, 4))
    lease.release()


def test_no_checkpoint_is_left_where_a_spare_is() -> None:
    """One copy of a place is made in a step."""
    cache, states = make(8)
    lease = cache.acquire([1, 2, 3, 4, 5, 6])
    compute(lease, 2)
    lease.extend(1)
    lease.spare(2)
    lease.extend(2, lent=True)
    lease.mark(3)
    fields = lease.row_fields()
    assert (fields["checkpoints"], [end for end, _ in fields["spares"]]) == ((), [3, 4])
    lease.release()
    check(cache)
    assert states.usage() == Usage(8, 0, 0, 0)
