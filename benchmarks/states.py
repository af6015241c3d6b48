"""Where checkpoints of states stand: hit rates of a hybrid model at equal bytes, beside what the
best placement could have found and beside other engines' rules, simulated.

    python -m benchmarks.states [--trace FILE_OR_FOLDER ...] [--only few-shot] [--cases]
        [--state-tokens 1500] [--picture docs/img/states.png]

The product's scheduler and cache run without a model; a state takes as many bytes as --state-tokens
tokens of keys and values (Qwen3.5 0.8B: 1,560), all states nine tenths of the pool, as by default.
Others' rules: state_rules.py.

best: an upper bound of any choice of checkpoints in hindsight, with our order of requests, our keys
and values, and the slots that running requests leave: radixlm/sim/state_bounds.py. It is that of a
linear relaxation, within 0.5 % of a choice that fits the slots where these were compared. With
other keys and values more could be found, at most `clairvoyant`: Belady's evictions of tokens, with
a state at each. second: of requests that were the second at a branch, whose tokens were cached, how
many found at least half of them. again: tokens of prompts that were cached, but computed again as
no state was there. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.state_rules import RULES, Rule
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.sim.bounds import CLAIRVOYANT, PLACEMENT
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import made_up
from radixlm.sim.generators import Maker
from radixlm.sim.replay import Replay
from radixlm.sim.sources import TraceSource

SHARE = 0.9
SYSTEMS = "system prompts"
# Sessions and pools, the last one with room for all that pays.
WORKLOADS = {
    "chats": (200, (100_000, 150_000, 200_000)),
    "agents": (60, (100_000, 150_000, 200_000)),
    "few-shot": (400, (120_000, 200_000, 480_000)),
    "trees": (60, (60_000, 120_000, 240_000)),
    SYSTEMS: (400, (60_000, 120_000, 240_000)),
}
TRACES = (60_000, 100_000, 200_000)


class Row(NamedTuple):
    """others: hit rates by their rules, as `ours`, in %; as are all but `of_best`."""

    workload: str
    pool: int
    states: int
    ours: float
    best: float
    of_best: float
    clairvoyant: float
    others: dict[str, float]
    second: float | None
    again: float

    def cells(self) -> dict[str, object]:
        """Its columns."""
        its: dict[str, object] = {**self._asdict(), **self.others}
        del its["others"]
        return its


def system_prompts(make: Maker) -> Iterator[TraceSession]:
    """A question to one of 30 applications, each with a long system prompt of its own."""
    systems = [make.tokens(500, 3_000) for _ in range(30)]
    while True:
        prompt = np.concatenate((systems[make.popular(30)], make.tokens(20, 300)))
        yield make.session(make.call(prompt, 20, 100))


def sessions_of(place: str, limit: int | None) -> tuple[Iterable[TraceSession], int]:
    """Sessions, and how many tokens one stands for."""
    if place == SYSTEMS:
        return islice(system_prompts(Maker(place, 0)), limit), 1
    found = TraceSource(place, limit=limit).open(Problems())
    return found, found.scale


def replayed(
    sessions: Iterable[TraceSession], pool: int, states: int, rule: Rule, scale: int = 1
) -> Replay:
    config = EngineConfig(
        kv_tokens=pool, max_mamba_cache_size=states, max_running_requests=min(64, states // 2)
    )
    replay = Replay(config, made_up("node"), Problems(), scale=scale)
    for machine in replay.machines:
        rule(machine)
    replay.run(sessions)
    return replay


def measured(name: str, place: str, limit: int | None, pool: int, states: int) -> Row:
    """A row with all rules."""
    found = dict[str, Replay]()
    for rule, follow in RULES.items():
        sessions, scale = sessions_of(place, limit)
        found[rule] = replayed(sessions, pool, states, follow, scale)
    ours = found["ours"]
    bounds = ours.history.bounds(pool // scale, states)
    rates = {rule: sum(its.cached) / its.history.prompt_tokens for rule, its in found.items()}
    seconds = list(second_requests(ours))
    return Row(
        *(name, pool, states),
        ours=round(100 * rates["ours"], 2),
        best=round(100 * bounds[PLACEMENT], 2),
        of_best=round(rates["ours"] / bounds[PLACEMENT], 3),
        clairvoyant=round(100 * bounds[CLAIRVOYANT], 2),
        others={rule: round(100 * its, 2) for rule, its in rates.items() if rule != "ours"},
        second=round(100 * sum(seconds) / len(seconds), 1) if seconds else None,
        again=round(100 * ours.no_state_tokens / ours.history.prompt_tokens, 2),
    )


def second_requests(replay: Replay) -> Iterator[bool]:
    """For each request that parts from only one before it, inside of that, and whose shared tokens
    had keys and values: whether it found at least half of them.
    """
    seen, ends, unit = dict[int, int](), set[int](), replay.history.unit
    for noted, cached in zip(replay.history.noted, replay.cached, strict=True):
        mine = noted.prefixes.tolist()
        shared = next((at for at, each in enumerate(mine) if each not in seen), len(mine))
        shared = min(shared, noted.prompt // unit)
        last = mine[shared - 1] if shared else 0
        if shared and seen[last] == 1 and last not in ends and noted.held // unit >= shared:
            yield 2 * cached >= shared * unit
        for each in mine:
            seen[each] = seen.get(each, 0) + 1
        ends.add(mine[-1])


def lone(make: np.random.Generator, prompts: Iterable[Key], apart: float) -> list[TraceSession]:
    """Requests that come so many seconds after one another."""
    return [
        TraceSession((TraceCall(prompt, make.integers(0, 30_000, 16, dtype=np.int32)),), apart * at)
        for at, prompt in enumerate(prompts)
    ]


def shared(make: np.random.Generator, prefix: int, suffixes: Sequence[int]) -> list[Key]:
    """Prompts that share a prefix of so many tokens, then go on for as many each."""
    whole = make.integers(0, 30_000, prefix, dtype=np.int32)
    own = (make.integers(0, 30_000, size, dtype=np.int32) for size in suffixes)
    return [np.concatenate((whole, each)) for each in own]


def cases(name: str) -> dict[str, object]:
    """Measure what issues of others report, with this rule.

    vllm_45238_*: of 64 requests with a shared prefix in turn, how many found any of it.
    sglang_22935: of a prompt of 6,476 tokens the least share that the second request finds, of
    suffixes from 1 to 200 tokens. second: of pairs that share a random prefix, one after the other
    or together, how many of the second ones find some of it.
    """
    make, found, rule = np.random.default_rng(0), dict[str, object](rule=name), RULES[name]
    for prefix, suffix in ((1_600, 600), (1_500, 700)):
        key = shared(make, prefix, 64 * [suffix])
        found[f"vllm_45238_{prefix}"] = sum(n > 0 for n in _cached(lone(make, key, 60.0), rule))
    least = 1.0
    for suffix in range(1, 201):
        pair = lone(make, shared(make, 6_476, 2 * [suffix]), 60.0)
        least = min(least, _cached(pair, rule)[1] / 6_476)
    found["sglang_22935"] = round(least, 4)
    for name, apart in (("second_apart", 60.0), ("second_together", 0.0)):
        pairs = [shared(make, int(make.integers(100, 4_000)), [300, 200]) for _ in range(50)]
        hits = [max(_cached(lone(make, pair, apart), rule)) for pair in pairs]
        found[name] = sum(n > 0 for n in hits) / len(hits)
    return found


def _cached(sessions: Sequence[TraceSession], rule: Rule) -> list[int]:
    """How many tokens each of them found."""
    return replayed(sessions, 60_000, 240, rule).cached


def draw(path: Path, rows: Sequence[Row]) -> None:
    """A panel for the smallest and one for the largest pool of each workload, a bar each rule."""
    names = list(dict.fromkeys(row.workload for row in rows))
    figure, axes = panels(2, "hit rate of a hybrid model by where checkpoints stand, % of the best")
    for axis, title, number in zip(axes, ("few states", "more states"), (0, -1), strict=True):
        each = [[row for row in rows if row.workload == name][number] for name in names]
        for place, rule in enumerate(RULES):
            rates = [100 * ({"ours": row.ours} | row.others)[rule] / row.best for row in each]
            axis.bar(np.arange(len(names)) + 0.2 * place - 0.3, rates, 0.18, label=rule)
        labels = [f"{row.workload}\n{row.states} states" for row in each]
        axis.set_xticks(range(len(names)), labels, fontsize=8)
        axis.set_title(title, fontsize=9, loc="left")
        axis.axhline(92, color="#59636e", linewidth=0.8, linestyle=":")
    axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="lower right")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--only")
    parser.add_argument("--cases", action="store_true", help="only what issues of others report")
    parser.add_argument("--state-tokens", type=int, default=1_500)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    report: dict[str, object] = {"workload": "states"}
    work: dict[str, tuple[str, int | None, Sequence[int]]] = {
        name: (name, *sizes) for name, sizes in WORKLOADS.items()
    }
    work |= {Path(trace).stem: (trace, None, TRACES) for trace in args.trace}
    with ProcessPoolExecutor() as processes:
        of_rules = [] if args.only else [processes.submit(cases, rule) for rule in RULES]
        waited = [
            processes.submit(
                measured, name, place, limit, pool, int(SHARE * pool / args.state_tokens)
            )
            for name, (place, limit, pools) in work.items()
            if args.only in (None, name) and not args.cases
            for pool in pools
        ]
        rows, found = [each.result() for each in waited], [each.result() for each in of_rules]
    if rows:
        show_rows("hit rates by where checkpoints stand, %", [row.cells() for row in rows])
        report["rows"] = [row.cells() for row in rows]
        if args.picture is not None:
            draw(args.picture, rows)
    if found:
        show_rows("cases", found)
        report["cases"] = found
    print(json.dumps(report))


if __name__ == "__main__":
    main()
