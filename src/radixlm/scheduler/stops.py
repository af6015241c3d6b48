"""Places in requests where checkpoints of states are left, so that others can go on from there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from sys import maxsize

from radixlm.scheduler.state import RequestState
from radixlm.scheduler.waiting import WaitingRoom

# A copy of a state costs more than so few tokens that are computed again.
LEAST_BETWEEN = 16


class Checkpoints:
    """Chooses where running requests stop and leave a checkpoint:

        before the last token    for the same prompt again: the last one's logits are wanted
        a branch                 where the cache's tokens part from the prompt and no state is kept;
                                 where the prompts that wait for this one part from it
        a breakpoint             what is to be kept of a prompt must end where a match can
        every `interval` tokens

    At its end, however it comes, a request leaves one anyway: its state is not copied for that.
    Without states in the cache nothing stops anywhere.
    """

    def __init__(self, room: WaitingRoom, interval: int) -> None:
        """interval: in tokens, in whole pages; 0: no such places."""
        self._room, self._interval = room, interval
        self.active = room.cache.enabled and any(each.at_ends for each in room.cache.components)

    def place(self, states: Iterable[RequestState]) -> None:
        """Set where each of these stops next. O(1) for each, amortised, once it runs."""
        for state in states if self.active else ():
            state.stop = min(self._places(state), default=maxsize)

    def _places(self, state: RequestState) -> Iterator[int]:
        done, cache = state.computed, self._room.cache
        if self._interval:
            yield done - done % self._interval + self._interval
        last = cache.round_down(state.prefill_end - 1)
        if done < last:
            yield last
            ends = (cache.round_down(each.tokens) for each in state.request.breakpoints)
            yield from (end for end in ends if done < end < last)
            least = max(state.kept + LEAST_BETWEEN, done + 1)
            branches = state.branch, self._room.first_shared(state, least)
            yield from (at for at in branches if least <= at < last)

    def leave(self, state: RequestState) -> None:
        """Leave one where a request ends that runs no more, if all of it is in the cache."""
        lease = state.running_lease
        if self.active and lease.length == lease.committed:
            lease.checkpoint(goes_on=False)
