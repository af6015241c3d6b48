"""How simulated replicas are routed to: by the router that serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from radixlm.core.reports import TreeQuery
from radixlm.engine.watching import Scene, SceneChange
from radixlm.routing import Router, TreeFeed
from radixlm.sim.calls import TraceCall
from radixlm.sim.sim_machine import Machine

_TICKET = 1


class MachineRouting(Protocol):
    """A way to choose the machine that takes a call. `began`: it has its first token; `ended`:
    after that many tokens, None where it was refused.
    """

    def choose(self, name: str, call: TraceCall, /) -> Machine: ...
    def began(self, name: str) -> None: ...
    def ended(self, name: str, answer_tokens: int | None) -> None: ...
    def stepped(self, machine: Machine) -> None: ...


class Alone:
    """There is one machine."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        (self._machine,) = machines

    def choose(self, _name: str, _call: TraceCall, /) -> Machine:
        return self._machine

    def began(self, name: str) -> None: ...
    def ended(self, name: str, answer_tokens: int | None) -> None: ...
    def stepped(self, machine: Machine) -> None: ...


class ByTokens:
    """The product's router, fed by viewers of the machines' trees, as late as in a server."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self.router = Router()
        self._machines = {f"replica-{n}": machine for n, machine in enumerate(machines)}
        self._names = {machine: name for name, machine in self._machines.items()}
        self._feeds = {machine: TreeFeed(name) for name, machine in self._machines.items()}
        for name, machine in self._machines.items():
            self.router.join(name, machine.core.cache.capacity)
            machine.core.watching.watch(_TICKET, TreeQuery(), follow=True)

    def choose(self, name: str, call: TraceCall, /) -> Machine:
        for machine in self._feeds:
            if machine.core.watching.seconds_left() == 0.0:
                self.stepped(machine)  # one that has nothing to do tells what is due, too
        choice = self.router.choose(
            name, call.namespace, call.prompt, max_tokens=call.max_tokens or None
        )
        return self._machines[choice.replica]

    def began(self, name: str) -> None:
        self.router.began(name)

    def ended(self, name: str, answer_tokens: int | None) -> None:
        self.router.ended(name, answer_tokens)

    def stepped(self, machine: Machine) -> None:
        for update in machine.core.watching.turn(machine.core.stats()):
            news = update.news
            if isinstance(news, Scene | SceneChange) and news.tree is not None:
                fed = self._feeds[machine].take(news.tree)
                if fed is not None:
                    self.router.take(self._names[machine], fed)
