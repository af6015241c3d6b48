"""Deliberate faults in components, and in what observers hear. Each patches one thing."""

from __future__ import annotations

from dataclasses import replace

from radixlm.cache import RadixCache, RadixTree
from radixlm.cache import cache as cache_module
from radixlm.cache.components.reuse_rates import ReuseRates
from radixlm.cache.components.state_hold import StateHold
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_hold import Window, WindowHold
from radixlm.cache.places.stored_parts import StoredParts
from radixlm.cache.places.write_queue import WriteQueue
from radixlm.cache.radix.conservation import Usage
from radixlm.cache.radix.node import NO_SLOTS, upward
from radixlm.cache.radix.tree_stats import Reuse
from radixlm.core.misses import MissReason
from radixlm.scheduler.restoring import Restoring
from tests.property.cache.faults import FAULTS, Patch, around, fault

BEFORE = set(FAULTS)

# What observers hear


def unheard(call, self, *args, **named):
    observers, self.observers = self.observers, ()
    try:
        return call(self, *args, **named)
    finally:
        self.observers = observers


@around(RadixTree, "split")
def observers_do_not_hear_of_splits(split, self, node, offset):
    return unheard(split, self, node, offset)


@around(RadixTree, "trim")
def observers_do_not_hear_of_evictions(trim, self, leaf, n_tokens):
    return unheard(trim, self, leaf, n_tokens)


@around(RadixTree, "grow")
def observers_do_not_hear_of_growth(grow, self, leaf, edge, slots):
    unheard(grow, self, leaf, edge, slots)


@around(StoredParts, "merged")
def observers_do_not_hear_of_merges(_merged, _self, _node, _child):
    pass


@around(Reuse, "unlocking")
def observers_hear_of_unlocking_when_it_is_done(unlocking, self, node, use, hint):
    path = list(upward(node))
    for at in path:
        at.lock_ref -= 1
    unlocking(self, node, use, hint)
    for at in path:
        at.lock_ref += 1


# Matches


@around(StateSlots, "cut")
def states_do_not_cut(_cut, _self, match):
    return match


@around(Window, "cut")
def windows_do_not_cut(_cut, _self, match):
    return match


@fault
def components_cut_once_each(patch: Patch) -> None:
    def once(components, match):
        for component in components:
            match = component.cut(match)
        return match

    patch.setattr(cache_module, "cut", once)


@around(StateSlots, "cut")
def states_cut_where_a_node_is_matched_in_part(_cut, self, match):
    if match.node is None or match.node in self.at:
        return match
    return _cut(self, match)


@around(RadixTree, "matches_changed")
def matches_stay_when_components_change(changed, self, slots):
    changed(self, slots)
    self.version -= 1


def of_the_version_before(call, self, *args, **named):
    version = self._tree.version
    made = call(self, *args, **named)
    self._tree.version = version
    return made


@around(StateSlots, "enter")
def matches_stay_when_a_checkpoint_is_left(enter, self, node, slot, *, on_the_way):
    return of_the_version_before(enter, self, node, slot, on_the_way=on_the_way)


@around(Window, "replace")
def matches_stay_when_a_window_is_there_again(give, self, mine, theirs, node):
    of_the_version_before(give, self, mine, theirs, node)


@around(StateSlots, "cut")
def states_give_the_reason_of_windows(cut, self, match):
    found = cut(self, match)
    return found if found is match else replace(found, reason=MissReason.WINDOW_EVICTED)


# Checkpoints of states


@fault
def a_checkpoint_is_not_locked_on_use(patch: Patch) -> None:
    hold, extend, release = StateSlots.hold, StateHold.extend, StateHold.release
    holders: dict[StateHold, StateSlots] = {}

    def unlocked(self, *args):
        made = hold(self, *args)
        self.unlock(made.source, used=False)
        holders[made] = self
        return made

    def locked_only(call):
        def locked(self, *args, **named):
            holders[self].lock(self.source)
            call(self, *args, **named)
            holders[self].unlock(self.source, used=False)

        return locked

    patch.setattr(StateSlots, "hold", unlocked)
    patch.setattr(StateHold, "extend", locked_only(extend))
    patch.setattr(StateHold, "release", locked_only(release))


@around(StateSlots, "split")
def a_checkpoint_goes_to_the_upper_half(_split, self, node, upper):
    if node in self.at:
        slot = self.at.pop(node)
        self.at[upper], self._node[slot] = slot, upper


@around(StateSlots, "keeps_end")
def a_checkpoint_is_merged_away(_keeps, _self, node):
    return not node.children


@around(StateSlots, "keeps_end")
def a_node_grows_beyond_its_checkpoint(keeps, self, node):
    return bool(node.children) and keeps(self, node)


@around(StateSlots, "changed")
def a_checkpoint_outlives_its_tokens(_changed, _self, _node):
    pass


@around(StateSlots, "give")
def a_state_begins_empty(give, self, _source):
    return give(self, NO_SLOTS)


@around(StateSlots, "give")
def a_state_is_copied_from_the_wrong_slot(give, self, source):
    return give(self, (source + 1) % self.capacity)


@around(StateSlots, "_set_free")
def a_copy_outlives_its_slot(_set, self, slot):
    self._free.append(slot)


@around(StateSlots, "worth")
def the_checkpoint_that_is_worth_most_goes(worth, self, slot):
    return -worth(self, slot)


@around(StateSlots, "worth")
def checkpoints_go_by_their_last_use_alone(_worth, self, slot):
    """sglang #36935: of a long prompt those go first that others would begin with."""
    return self.last_used[slot]


@around(ReuseRates, "of")
def all_checkpoints_are_as_likely_to_be_used(_of, _self, _node, _uses, _age):
    return 0.5


@around(StateSlots, "use")
def uses_are_not_counted(_use, _self, _slot, **_named):
    pass


@around(StateHold, "checkpoint")
def a_checkpoint_is_the_lease_s_as_well(checkpoint, self, node):
    slot = self.slot
    checkpoint(self, node)
    self.slot = slot


@around(StateHold, "commit")
def a_copy_is_the_lease_s_as_well(commit, self, start, node, mine, theirs):
    marks = dict(self.marks)
    commit(self, start, node, mine, theirs)
    self.marks = marks


@around(StateSlots, "give_copy")
def a_copy_is_made_where_there_is_no_room(_give, self, _since, _ahead):
    if not self._free:
        self.evict()
    self.private += 1
    return self._free.pop()


@around(StateSlots, "enter")
def a_checkpoint_that_is_there_is_not_used(enter, self, node, slot, *, on_the_way):
    return node not in self.at and enter(self, node, slot, on_the_way=on_the_way)


@around(StateHold, "checkpoint")
def a_state_stands_at_an_earlier_end(checkpoint, self, node, **named):
    """sglang #33515, #38815: what a prefix was given is the state after more tokens."""
    above = node.parent
    checkpoint(self, node if above is None or above.parent is None else above, **named)


@around(StateHold, "extend")
def the_checkpoint_that_was_copied_stays_locked(extend, self, first, stop, slots):
    before = self.source
    extend(self, first, stop, slots)
    if self.source is not before:
        self._states.lock(before)


@around(StateHold, "release")
def a_state_of_its_own_is_not_given_back(release, self, committed, slots, *, used):
    self.slot = None
    release(self, committed, slots, used=used)


@fault
def extend_does_not_ask_for_room_of_states(patch: Patch) -> None:
    patch.setattr(StateSlots, "available", property(lambda self: self.capacity))


@around(StateSlots, "pin")
def a_pin_locks_no_checkpoint(_pin, self, slots):
    self.pinned += self.unpinned(slots)
    for slot in slots.tolist():
        self._pins[slot] += 1


# Windows, and the law


@around(WindowHold, "extend")
def a_window_gets_no_slots(_extend, _self, _first, _stop, _slots):
    pass


@around(WindowHold, "release")
def a_window_stays_locked(_release, _self, _committed, _slots, *, used):
    pass


@around(Window, "take_moves")
def a_token_moves_once_only(take, self):
    moves = take(self)
    for each in moves.values():
        self._moved[each.slots] = True
    return moves


@around(Window, "take_moves")
def moves_are_of_what_was_given_back_too(take, self):
    there, self.resident = self.resident, lambda slots: slots >= 0
    moves, self.resident = take(self), there
    return moves


@around(Window, "_note_moves")
def a_window_that_is_there_again_does_not_move(note, self, slots):
    if not self._cached[self.of[slots]].any():
        note(self, slots)


@around(RadixCache, "drop")
def a_lease_that_got_no_room_has_used_what_it_found(drop, self, lease, *, used):
    drop(self, lease, used=True)


# Windows in places


@around(WriteQueue, "_without_windows")
def a_path_is_not_offered_again(_without, _self, _path, start, _end):
    return start


@around(WriteQueue, "_without_windows")
def a_path_is_offered_again_without_its_windows(_without, self, path, start, end):
    return start and min(start, max(end - self._window_blocks * self._parts.block_tokens, 0))


@around(Restoring, "_start")
def a_read_is_usable_from_its_first_token(start, self, *args):
    made = start(self, *args)
    if made is not None:
        made.usable_from = 0
    return made


@around(StateSlots, "usage")
def usage_leaves_out_what_is_private(usage, self):
    found = usage(self)
    return Usage(found.free, 0, found.locked, found.evictable)


OF_COMPONENTS = set(FAULTS) - BEFORE
