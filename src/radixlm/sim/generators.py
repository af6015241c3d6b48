"""Sessions that nobody recorded: chats, agents with tools, agents that say what comes next,
few-shot prompts, retrieved documents, trees of thoughts. Equal seeds give equal tokens. Sizes in
tokens; of a session only as much is kept as it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from radixlm.core.keys import Key
from radixlm.core.request import Hint
from radixlm.sim.calls import TraceCall, TraceSession

VOCABULARY = 30_000
# Sessions a second, unless another rate is asked for.
RATE = 1.0
# How much more popular the first subject or document is than the others: rank ** -ZIPF.
_ZIPF = 0.8


class Maker:
    """Draws content and times. place: of a call, for people."""

    def __init__(self, name: str, seed: int, vocabulary: int = VOCABULARY) -> None:
        self.random = np.random.default_rng(seed)
        self._name = name
        self._vocabulary = vocabulary
        self._now = 0.0
        self._calls = 0

    def tokens(self, low: int, high: int = 0) -> Key:
        """Draw a number of tokens: `low`, or from `low` to `high`."""
        size = self.size(low, high)
        return self.random.integers(0, self._vocabulary, size, dtype=np.int32)

    def size(self, low: int, high: int = 0) -> int:
        return int(self.random.integers(low, max(low, high) + 1))

    def popular(self, count: int) -> int:
        """One of these, the first ones more often."""
        weights = np.arange(1, count + 1) ** -_ZIPF
        return int(self.random.choice(count, p=weights / weights.sum()))

    def pause(self, mean: float) -> float:
        return float(self.random.exponential(mean))

    def call(
        self, prompt: Key, low: int, high: int = 0, gap: float = 0.0, hint: Hint = Hint.NONE
    ) -> TraceCall:
        self._calls += 1
        answer, where = self.tokens(low, high), f"{self._name}, call {self._calls}"
        return TraceCall(prompt, answer, gap=gap, hint=hint, where=where)

    def session(self, *calls: TraceCall) -> TraceSession:
        """A session, some time after the one before."""
        self._now += self.pause(1 / RATE)
        return TraceSession(calls, self._now)


def chats(make: Maker) -> Iterator[TraceSession]:
    """2 to 12 turns under one of three system prompts, ten seconds between them."""
    systems = [make.tokens(300) for _ in range(3)]
    while True:
        history, calls = systems[make.size(0, 2)], list[TraceCall]()
        for turn in range(make.size(2, 12)):
            prompt = np.concatenate((history, make.tokens(20, 120)))
            calls.append(make.call(prompt, 20, 300, gap=make.pause(10.0) if turn else 0.0))
            history = np.concatenate((prompt, calls[-1].answer))
        yield make.session(*calls)


def agents(make: Maker) -> Iterator[TraceSession]:
    """4 to 25 calls under one of four long prompts with tools, each with a tool's result, which
    comes after a second or some more.
    """
    prompts = [make.tokens(2_000) for _ in range(4)]
    while True:
        history = np.concatenate((prompts[make.size(0, 3)], make.tokens(100, 400)))
        yield _with_results(make, history, [Hint.NONE] * make.size(4, 25), 2.0)


def hinted(make: Maker) -> Iterator[TraceSession]:
    """Agents as above, chats of people, and sub-agents that are asked once or a few times; each
    call says truly whether a tool runs, or nothing comes after it. People say nothing.
    """
    prompts = [make.tokens(1_000) for _ in range(4)]
    while True:
        kind = make.size(0, 2)
        turns = (make.size(4, 25), make.size(1, 6), make.size(1, 4))[kind]
        last = (Hint.SESSION_END, Hint.SESSION_END, Hint.SUBAGENT_DONE)[kind]
        inner = (Hint.TOOL_RUNNING, Hint.NONE, Hint.TOOL_RUNNING)[kind]
        pause = (2.0, 30.0, 2.0)[kind]
        history = np.concatenate((prompts[make.size(0, 3)], make.tokens(100, 1_500)))
        yield _with_results(make, history, [*[inner] * (turns - 1), last], pause)


def _with_results(make: Maker, history: Key, hints: Sequence[Hint], pause: float) -> TraceSession:
    """A call for each hint, each with something new after the answer before."""
    calls = list[TraceCall]()
    for hint in hints:
        gap = make.pause(pause) if calls else 0.0
        calls.append(make.call(history, 30, 150, gap=gap, hint=hint))
        history = np.concatenate((history, calls[-1].answer, make.tokens(30, 800)))
    return make.session(*calls)


def few_shot(make: Maker) -> Iterator[TraceSession]:
    """A question under the examples of one of 120 subjects."""
    subjects = [make.tokens(200, 900) for _ in range(120)]
    while True:
        prompt = np.concatenate((subjects[make.popular(120)], make.tokens(20, 80)))
        yield make.session(make.call(prompt, 4))


def rag(make: Maker) -> Iterator[TraceSession]:
    """A question under three of 200 documents, which stand in the collection's order."""
    system, documents = make.tokens(200), [make.tokens(300, 700) for _ in range(200)]
    while True:
        found = sorted({make.popular(200) for _ in range(3)})
        prompt = np.concatenate((system, *(documents[at] for at in found), make.tokens(20, 60)))
        yield make.session(make.call(prompt, 40, 200))


def trees(make: Maker) -> Iterator[TraceSession]:
    """A problem thought about in 10 to 40 steps, each from one of the last eight thoughts."""
    tools = [make.tokens(500) for _ in range(4)]
    while True:
        thoughts = [np.concatenate((tools[make.size(0, 3)], make.tokens(200)))]
        calls = list[TraceCall]()
        for _ in range(make.size(10, 40)):
            back = make.size(1, min(len(thoughts), 8))
            prompt = np.concatenate((thoughts[-back], make.tokens(30)))
            calls.append(make.call(prompt, 20, 60))
            thoughts.append(np.concatenate((prompt, calls[-1].answer)))
        yield make.session(*calls)


GENERATORS: Mapping[str, Callable[[Maker], Iterator[TraceSession]]] = MappingProxyType(
    {
        "chats": chats,
        "agents": agents,
        "hinted": hinted,
        "few-shot": few_shot,
        "rag": rag,
        "trees": trees,
    }
)
