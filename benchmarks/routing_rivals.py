"""Other ways to route, for the simulator: Ray Serve's three, and SGLang's cache_aware."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

from radixlm.sim.calls import TraceCall
from radixlm.sim.sim_machine import Machine

_SURROGATES = range(0xD800, 0xE000)


class _Counting:
    """Knows what is under way at each machine."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.machines = list(machines)
        self.queues: Counter[int] = Counter()
        self._where: dict[str, int] = {}
        self._random = random.Random(0)

    def choose(self, name: str, call: TraceCall, /) -> Machine:
        place = self.place(call)
        self._where[name] = place
        self.queues[place] += 1
        return self.machines[place]

    def place(self, call: TraceCall) -> int:
        raise NotImplementedError

    def shorter_of_two(self, places: Sequence[int]) -> int:
        two = self._random.sample(list(places), min(2, len(places)))
        return min(two, key=lambda place: self.queues[place])

    def began(self, name: str) -> None: ...

    def ended(self, name: str, answer_tokens: int | None) -> None:  # noqa: ARG002
        self.queues[self._where.pop(name)] -= 1

    def stepped(self, machine: Machine) -> None: ...


class RoundRobin(_Counting):
    """One after the other."""

    _last = -1

    def place(self, call: TraceCall) -> int:  # noqa: ARG002
        self._last = (self._last + 1) % len(self.machines)
        return self._last


class PowerOfTwo(_Counting):
    """Ray Serve's default: the shorter queue of two."""

    def place(self, call: TraceCall) -> int:  # noqa: ARG002
        return self.shorter_of_two(range(len(self.machines)))


class _ByText(_Counting):
    """Ray's own PrefixTree, which knows what was sent where; a token is a character."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        super().__init__(machines)
        self.tree = PrefixTree()
        self.tree.add_tenants([str(place) for place in range(len(machines))], 0)
        self._letters: dict[int, str] = {}
        self._time = 0.0

    def text(self, call: TraceCall) -> str:
        salt = f"{call.namespace.cache_salt} " if call.namespace.cache_salt else ""
        return salt + "".join(map(self._letter, call.prompt.tolist()))

    def _letter(self, token: int) -> str:
        if token not in self._letters:
            number = len(self._letters) + 32
            self._letters[token] = chr(number + len(_SURROGATES) * (number >= _SURROGATES.start))
        return self._letters[token]

    def place(self, call: TraceCall) -> int:
        text = self.text(call)
        place = self.of_text(text)
        self._time += 1
        self.tree.insert(text, str(place), self._time)
        return place

    def of_text(self, text: str) -> int:
        raise NotImplementedError


class PrefixCacheAffinity(_ByText):
    """Ray Serve's, with its defaults: the longest match of 10 % or more, else the smallest tree."""

    def of_text(self, text: str) -> int:
        matched, tenants = self.tree.prefix_match(text)
        if not tenants or len(matched) < 0.1 * len(text):
            tenants = self.tree.get_smallest_tenants()
        return self.shorter_of_two([int(each) for each in tenants or ()])


class CacheAware(_ByText):
    """As SGLang's router describes it: the longest match above a threshold, else the smallest tree;
    the shortest queue while queues differ by more than 64 and half.
    """

    def of_text(self, text: str) -> int:
        places = range(len(self.machines))
        queues = [self.queues[place] for place in places]
        if max(queues) - min(queues) > 64 and max(queues) > 1.5 * min(queues):
            return min(places, key=lambda place: queues[place])
        matched, tenants = self.tree.prefix_match(text)
        if not tenants or len(matched) <= 0.3 * len(text):
            tenants = self.tree.get_smallest_tenants()
        return int((tenants or ["0"])[0])
