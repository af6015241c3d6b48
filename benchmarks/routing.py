"""Routing by tokens: hit rates of replicas beside one cache and beside other routers, the pace of a
decision, bursts with one cold prefix and with one that is held, and a prefix that half of all
requests have.

    python -m benchmarks.routing [--trace mooncake_conversation_trace.jsonl] [--only hits]
        [--picture hits.png]

Replicas are simulated, by the product's engine core, cache and router; see docs/simulator.md. Ends
in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.pictures import panels, save
from benchmarks.routing_rivals import (
    CacheAware,
    PowerOfTwo,
    PrefixCacheAffinity,
    RoundRobin,
)
from benchmarks.rows import show_rows
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key, as_key
from radixlm.core.request import Namespace
from radixlm.routing import FeedUpdate, Position, Router
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import made_up
from radixlm.sim.replay import Replay
from radixlm.sim.sim_machine import Alone, ByTokens, Machine, MachineRouting
from radixlm.sim.sources import TraceSource

Make = Callable[[Sequence[Machine]], MachineRouting]
ROUTERS: dict[str, Make] = {
    "tokens": ByTokens,
    "round robin": RoundRobin,
    "power of two": PowerOfTwo,
    "prefix affinity": PrefixCacheAffinity,
    "cache_aware": CacheAware,
}
_HERE = Namespace()
# What one request meets decides where many go: another run differs by some thousandths.
_SHARES = (0.9, 0.95, 1.0, 1.05, 1.1)


class Workload(NamedTuple):
    """tokens: of all pools together. per_block: tokens that stand for a block of a trace. shares:
    of those tokens; each is run, and what is shown are means.
    """

    place: str
    tokens: int
    costs: str
    limit: int | None = None
    users: int = 32
    per_block: int = 512
    shares: Sequence[float] = (1.0,)


def workloads(trace: str | None) -> dict[str, Workload]:
    made = {
        "chats": Workload("chats", 100_000, "node", 400),
        "agents": Workload("agents", 400_000, "node", 100),
        "few-shot": Workload("few-shot", 60_000, "node", 400),
    }
    if trace is not None:
        for costs in ("none", "node"):
            made[f"trace, {costs}"] = _of_trace(trace, costs)._replace(shares=_SHARES)
    return made


def workloads_of_many(trace: str | None) -> dict[str, Workload]:
    """For dozens of replicas: several users each."""
    made = {"chats": Workload("chats", 1_600_000, "node", 6_400, users=512)}
    if trace is not None:
        made["trace"] = _of_trace(trace, "none")
    return made


def _of_trace(place: str, costs: str) -> Workload:
    return Workload(place, 5_120_000, costs, per_block=1)


def hit_rate(work: Workload, replicas: int, make: Make) -> tuple[float, float]:
    """And what the busiest replica computed, by the mean."""
    problems = Problems()
    source = TraceSource(work.place, tokens_per_block=work.per_block, limit=work.limit)
    sessions = source.open(problems)
    config = EngineConfig(kv_tokens=work.tokens // replicas)
    replay = Replay(
        config,
        made_up(work.costs),
        problems,
        users=work.users,
        scale=sessions.scale,
        replicas=replicas,
        routing=make,
    )
    replay.run(sessions)
    stats = [machine.core.stats() for machine in replay.machines]
    computed = [each.computed_tokens for each in stats]
    cached = sum(each.cached_tokens for each in stats)
    prompts = sum(each.prompt_tokens for each in stats)
    return cached / max(prompts, 1), max(computed) * len(computed) / max(sum(computed), 1)


def hits(
    works: dict[str, Workload], counts: Sequence[int], routers: Sequence[str]
) -> list[dict[str, Any]]:
    """Hit rates over that of one cache as large as all together."""
    rows = []
    for name, work in works.items():
        sized = [work._replace(tokens=int(share * work.tokens)) for share in work.shares]
        alone = [hit_rate(each, 1, Alone)[0] for each in sized]
        for replicas in counts:
            row: dict[str, Any] = {"workload": name, "replicas": replicas}
            row["one cache"] = statistics.mean(alone)
            for router in routers:
                found = [hit_rate(each, replicas, ROUTERS[router]) for each in sized]
                ratios = [rate / of_one for (rate, _), of_one in zip(found, alone, strict=True)]
                row[router] = statistics.mean(ratios)
                if router == "tokens":
                    row["imbalance"] = statistics.mean(each for _, each in found)
                    row["spread"] = statistics.pstdev(ratios)
            print(json.dumps(row), flush=True)
            rows.append(row)
    return rows


def decision(nodes: int = 100_000, replicas: int = 64, asked: int = 2_000) -> dict[str, float]:
    """Microseconds of one decision."""
    router, chosen = Router(), random.Random(0)
    names = [f"replica-{n}" for n in range(replicas)]
    for name in names:
        router.join(name, 1_000_000)
        router.take(name, FeedUpdate(Position(name, 0, 0), whole=True, changes=[]))
    stems = [_row(1_000 * n, 500) for n in range(200)]
    prompts = []
    while router.tree.nodes < nodes:
        key = np.concatenate(
            (chosen.choice(stems), np.array(chosen.choices(range(9_000_000), k=40), np.int32))
        )
        router.tree.hold(chosen.randrange(replicas), _HERE, as_key(key))
        prompts.append(as_key(np.append(key, np.int32(7))))
    spent = []
    for number, key in enumerate(chosen.choices(prompts, k=asked)):
        begun = time.perf_counter()
        router.choose(str(number), _HERE, key)
        spent.append(time.perf_counter() - begun)
        router.ended(str(number))
    cut = statistics.quantiles(spent, n=100)
    return {"nodes": router.tree.nodes, "median_us": 1e6 * cut[49], "p99_us": 1e6 * cut[98]}


def burst(replicas: int = 4, requests: int = 64, prefix: int = 2_000) -> float:
    """Tokens computed over the fewest possible: a cold prefix, all at once."""
    shared = list(range(prefix))
    calls = [
        TraceSession((TraceCall(as_key([*shared, 9_000 + n]), as_key([1] * 8)),), at=0.0)
        for n in range(requests)
    ]
    replay = Replay(EngineConfig(kv_tokens=20_000), made_up("node"), Problems(), replicas=replicas)
    replay.run(calls)
    computed = sum(machine.core.stats().computed_tokens for machine in replay.machines)
    return computed / (prefix + requests * (1 + 7))


def held_burst(requests: int = 512, prefix: int = 2_000, own: int = 100) -> dict[str, float]:
    """Seconds to the first token, the 99th of 100, by router: all at once, with a prefix that one
    of four replicas holds, after 15 s of other traffic.
    """
    chosen = random.Random(1)
    stems = [_row(10_000 * n, prefix) for n in range(64)]
    sessions = [
        _session(n / 100, chosen.choice(stems), _row(3_000_000 + own * n, own))
        for n in range(1_500)
    ]
    hot = _row(5_000_000, prefix)
    sessions.append(_session(16.0, hot, _row(1, 1)))
    sessions += [_session(17.0, hot, _row(6_000_000 + own * n, own)) for n in range(requests)]
    found = {}
    for name, make in ROUTERS.items():
        config = EngineConfig(kv_tokens=60_000)
        replay = Replay(config, made_up("node"), Problems(), replicas=4, routing=make)
        replay.run(sessions)
        found[name] = statistics.quantiles(replay.times.first[-requests:], n=100)[98]
    return found


def _row(begin: int, size: int) -> Key:
    return np.arange(begin, begin + size, dtype=np.int32)


def _session(at: float, stem: Key, own: Key) -> TraceSession:
    return TraceSession((TraceCall(as_key(np.concatenate((stem, own))), as_key([1] * 64)),), at=at)


class _Watched(ByTokens):
    """Looks at the queues at each arrival."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        super().__init__(machines)
        self.seen: list[float] = []

    def choose(self, name: str, call: TraceCall, /) -> Machine:
        machine = super().choose(name, call)
        loads = [queue for _, queue in self.router.loads().values()]
        self.seen.append(max(loads) / (sum(loads) / len(loads)) if sum(loads) else 1.0)
        return machine


def skew(replicas: int = 4, requests: int = 2_000) -> float:
    """Largest queue over the mean, the mean of all arrivals: half of them have one prefix."""
    chosen, watched = random.Random(1), []
    stems = [_row(10_000 * n, 2_000) for n in range(64)]
    sessions = []
    for n in range(requests):
        stem = stems[0] if n % 2 else chosen.choice(stems)
        sessions.append(_session(n / 200, stem, _row(3_000_000 + 100 * n, 100)))

    def make(machines: Sequence[Machine]) -> MachineRouting:
        watched.append(_Watched(machines))
        return watched[0]

    Replay(
        EngineConfig(kv_tokens=60_000),
        made_up("node"),
        Problems(),
        replicas=replicas,
        routing=make,
    ).run(sessions)
    return statistics.mean(watched[0].seen[100:])


def draw(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Bars of what each router found, by workload and replicas."""
    figure, [axes] = panels(1, "Hit rate / that of one cache as large as all", height=4.0)
    width = 0.8 / len(ROUTERS)
    for place, name in enumerate(ROUTERS):
        at = [row + width * (place - len(ROUTERS) / 2 + 0.5) for row in range(len(rows))]
        axes.bar(at, [row[name] for row in rows], width, label=name)
    names = [f"{row['replicas']}, {row['workload']}".replace(", ", "\n") for row in rows]
    axes.set_xticks(range(len(rows)), names)
    axes.axhline(0.95, color="black", linewidth=0.6, linestyle=":")
    axes.set_ylim(0, 1.2)
    axes.set_xlabel("replicas, workload")
    axes.legend(loc="upper center", ncols=len(ROUTERS), fontsize=8)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", help="Mooncake's conversation trace")
    parser.add_argument("--picture", type=Path, help="of the hits, a PNG")
    parser.add_argument("--only", choices=("hits", "many", "decision", "burst", "held", "skew"))
    args = parser.parse_args()
    found: dict[str, Any] = {}
    parts: dict[str, Callable[[], Any]] = {
        "decision": decision,
        "burst": burst,
        "held": held_burst,
        "skew": skew,
        "many": lambda: hits(workloads_of_many(args.trace), (64,), ["tokens"]),
        "hits": lambda: hits(workloads(args.trace), (2, 4), list(ROUTERS)),
    }
    for name, part in parts.items():
        if args.only in (None, name):
            found[name] = part()
            if not isinstance(found[name], list):
                print(name, found[name], flush=True)
    for name in ("hits", "many"):
        if name in found:
            show_rows("hit rate / that of one cache as large", found[name])
    if args.picture is not None and "hits" in found:
        draw(args.picture, found["hits"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
