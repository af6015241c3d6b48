"""Rules by which other engines place checkpoints of states, as their documentation and issues say,
over this scheduler: same requests, same slots, the state that was used longest ago goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from radixlm.cache.components.states import StateSlots
from radixlm.scheduler.state import RequestState
from radixlm.scheduler.stops import CHUNK, Checkpoints
from radixlm.sim.sim_machine import Machine

# Of Qwen3.5 in vLLM: the block whose keys and values take as much as a state.
BLOCK = 528
# SGLang: a state for each chunk of a prompt, and for these tokens that are decoded.
PREFILL, TRACK = 2048, 256


class _NoEnds(Checkpoints):
    """Nothing is left where requests end, nor elsewhere but where their rules say."""

    def on_the_way(self, _state: RequestState, _done: int, _ends: Iterable[int]) -> Iterator[int]:
        return iter(())

    def leave(self, state: RequestState) -> None: ...


class VllmBlocks(_NoEnds):
    """`--mamba-cache-mode align`: at ends of steps, which are whole blocks; at the last whole block
    of a prompt; at every block that is decoded.
    """

    def ends(self, state: RequestState, done: int) -> Iterator[int]:
        last = state.prefill_end - 1
        whole = PREFILL // BLOCK * BLOCK
        yield done - done % BLOCK + (whole if done < last else BLOCK)
        yield from self.within(state, done, last // BLOCK * BLOCK)

    def within(self, state: RequestState, done: int, *ends: int) -> Iterator[int]:
        yield from (end for end in ends if done < end < state.prefill_end)


class VllmJunctions(VllmBlocks):
    """And at the last whole block of what was cached of a prompt without a state."""

    def ends(self, state: RequestState, done: int) -> Iterator[int]:
        yield from super().ends(state, done)
        yield from self.within(state, done, state.branch // BLOCK * BLOCK)


class SglangNodes(_NoEnds):
    """`--mamba-radix-cache-strategy extra_buffer`: the last multiple of 64 tokens of each chunk of
    a prompt, or before the tree parts from it; every 256 tokens that are decoded.
    """

    def ends(self, state: RequestState, done: int) -> Iterator[int]:
        last = state.prefill_end - 1
        step = PREFILL if done < last else TRACK
        yield done - done % step + step
        for end in (last // CHUNK * CHUNK, state.branch // CHUNK * CHUNK):
            if done < end < state.prefill_end:
                yield end


Rule = Callable[[Machine], None]


def _of(kind: type[Checkpoints]) -> Rule:
    def follow(machine: Machine) -> None:
        scheduler = machine.core.scheduler
        scheduler.checkpoints = kind(scheduler.waiting_room, 0)
        for states in machine.core.cache.components:
            assert isinstance(states, StateSlots)
            states.worth = states.last_used.__getitem__  # type: ignore[assignment, method-assign]

    return follow


RULES: dict[str, Rule] = {
    "ours": lambda _machine: None,
    "vLLM, blocks": _of(VllmBlocks),
    "vLLM, junctions": _of(VllmJunctions),
    "SGLang": _of(SglangNodes),
}
