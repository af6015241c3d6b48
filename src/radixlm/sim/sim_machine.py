"""One simulated replica: an engine's core, its clock, its disk. And how a fleet of them is routed:
by the router that serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from radixlm.cache import make_policy
from radixlm.core.clock import VirtualClock
from radixlm.core.config import EngineConfig
from radixlm.core.reports import TreeQuery
from radixlm.core.request import RequestOutput
from radixlm.engine import Limits
from radixlm.engine.watching import Scene, SceneChange
from radixlm.engine.wiring import make_cache, make_core, resolve_pin_budget
from radixlm.routing import Router, TreeFeed
from radixlm.sim.calls import TraceCall
from radixlm.sim.cost_runner import CostRunner
from radixlm.sim.costs import Costs
from radixlm.sim.sim_disk import DiskSize, SimDisk

# A context without a limit, and all token ids that there can be.
_ANY = 2**31


class Machine:
    """Steps by its own clock. It is what its runner knows of the world.

    config: in tokens that each stand for `scale`; kv_tokens is needed. coming: when something comes
    from outside, by the clock. disk: None without one.
    """

    def __init__(
        self,
        config: EngineConfig,
        costs: Costs,
        coming: Callable[[], float],
        *,
        scale: int = 1,
        disk: DiskSize | None = None,
    ) -> None:
        capacity, budget = config.kv_tokens or 0, config.chunked_prefill_size
        self.clock = VirtualClock()
        self.runner = CostRunner(costs, self.clock, self, budget=budget, scale=scale)
        self._coming = coming
        self._overhead = costs.overhead
        self._rested = True
        context = config.context_length or _ANY
        pins = resolve_pin_budget(config, capacity, context)
        policy = make_policy(config.eviction_policy)
        cache = make_cache(config, policy, capacity, pins, self.clock)
        self.limits = Limits(context, cache.largest_request, _ANY)
        self.disk = SimDisk(self.clock, config, disk, scale) if disk is not None else None
        tiering = None if self.disk is None else self.disk.tiering
        self.core = make_core(config, cache, self.runner, None, tiering=tiering, clock=self.clock)

    @property
    def waiting(self) -> int:
        return self.core.waiting

    @property
    def room(self) -> int:
        return self.core.cache.available

    def next_arrival(self) -> float:
        due = self._coming()
        return due if self.disk is None else min(due, self.disk.next_read)

    def step(self) -> Sequence[RequestOutput]:
        """The next one; where there was nothing to do before, it begins later."""
        if self._rested:
            self.clock.advance(self._overhead)
            self._rested = False
        if self.disk is not None:
            self.disk.work()
        outputs = self.core.step()
        if self.core.stuck and self.disk is not None:
            self._wait(min(self.next_arrival(), self.disk.until))
        return outputs

    def rest(self, until: float) -> None:
        """Let the time pass where there is nothing to do."""
        if not self.core.has_work:
            self._rested = True
            if until > self.clock.now():
                self._wait(until)

    def _wait(self, until: float) -> None:
        """Wait: nothing is computed meanwhile; the disk works."""
        while self.disk is not None and self.disk.until < until:
            self.clock.advance(max(self.disk.until - self.clock.now(), 0.0))
            self.disk.work()
        self.clock.advance(max(until - self.clock.now(), 0.0))


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
