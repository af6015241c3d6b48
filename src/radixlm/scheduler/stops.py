"""Places in requests where checkpoints of states are left, so that others can go on from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from sys import maxsize

from radixlm.scheduler.state import RequestState
from radixlm.scheduler.waiting import WaitingRoom

# A copy of a state costs more than so few tokens that are computed again.
LEAST_BETWEEN = 16
# Tokens that scans take at a time: a state at a multiple has the same bits however it came.
CHUNK = 64
# Chunks before a new prompt's last one; so the second that shares it finds most of it.
TOWARDS_END = (0, 1, 2, 3, 4, 8, 16, 32)


class Checkpoints:
    """Chooses where running requests leave a checkpoint, which steps copy as they pass:

        before the last token    for the same prompt again: the last one's logits are wanted
        towards the prompt's end where prompts part that nobody knows of yet: at the last multiple
                                 of 64 tokens; where most of it is new, at those before that, ever
                                 further apart
        a branch                 where the cache's tokens part from the prompt and no state is kept;
                                 where the prompts that wait for this one part from it
        a breakpoint             what is to be kept of a prompt must end where a match can
        every `interval` tokens

    At its end, however it comes, a request leaves one anyway: its state is not copied for that.
    """

    def __init__(self, room: WaitingRoom, interval: int) -> None:
        """interval: in tokens, in whole pages; 0: no such places."""
        self._room, self._interval = room, interval
        self.active = room.cache.enabled and any(each.at_ends for each in room.cache.components)

    def mark(self, state: RequestState, upto: int) -> None:
        """Have the step that computes up to there leave a running request's. O(1) for each,
        amortised.
        """
        done = state.computed
        while self.active:
            ends = list(self.ends(state, done))
            done = min(chain(ends, self.on_the_way(state, done, ends)), default=maxsize)
            if done > upto:
                break
            ahead = None if done in ends else max(0, state.prefill_end - done)
            state.running_lease.mark(done, since=done - state.kept, ahead=ahead)
            state.kept = done

    def ends(self, state: RequestState, done: int) -> Iterator[int]:
        """Places where a running request could leave one after `done` tokens from which others are
        known, or are asked, to go on, in any order.
        """
        round_down = self._room.cache.round_down
        last = round_down(state.prefill_end - 1)
        if done < last:
            yield last
            ends = (round_down(each.tokens) for each in state.request.breakpoints)
            yield from (end for end in ends if done < end < last)
            least = max(state.kept + LEAST_BETWEEN, done + 1)
            known = state.branch, self._room.first_shared(state, least)
            yield from (at for at in known if least <= at < last)

    def on_the_way(self, state: RequestState, done: int, ends: Iterable[int]) -> Iterator[int]:
        """The other places, from which nobody may ever go on."""
        round_down = self._room.cache.round_down
        if self._interval:
            yield done - done % self._interval + self._interval
        last = round_down(state.prefill_end - 1)
        least = max(state.kept + LEAST_BETWEEN, done + 1)
        near = TOWARDS_END if 2 * state.branch < last else TOWARDS_END[:1]
        for place in (round_down((last // CHUNK - before) * CHUNK) for before in near):
            if least <= place < last and not any(
                place <= at < place + LEAST_BETWEEN for at in ends if at < last
            ):
                yield place

    def leave(self, state: RequestState) -> None:
        """Leave one where a request ends that runs no more, if all of it is in the cache."""
        lease = state.running_lease
        if self.active and lease.length == lease.committed:
            lease.checkpoint()
