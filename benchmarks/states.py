"""Where checkpoints of states stand: hit rates of a hybrid model at equal bytes, beside what the
best placement could have found and beside other engines' rules, simulated.

    python -m benchmarks.states [--trace FILE_OR_FOLDER ...] [--only few-shot] [--cases]
        [--state-tokens 1500] [--picture docs/img/states.png]

The product's scheduler and cache run without a model; a state takes as many bytes as --state-tokens
tokens of keys and values (Qwen3.5 0.8B: 1,560), all states nine tenths of the pool, as by default.
`placement` is an upper bound, see radixlm/sim/state_bounds.py; others' rules: state_rules.py. Ends
in one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.state_rules import RULES, Rule
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.sim.bounds import PLACEMENT
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.costs import made_up
from radixlm.sim.replay import Replay
from radixlm.sim.sources import TraceSource

SHARE = 0.9
# Sessions and pools, the second one with room for all that pays.
WORKLOADS = {
    "chats": (200, (100_000, 200_000)),
    "agents": (60, (100_000, 200_000)),
    "few-shot": (400, (120_000, 480_000)),
    "trees": (60, (60_000, 240_000)),
}
TRACES = (100_000, 200_000)


class Row(NamedTuple):
    workload: str
    pool: int
    states: int
    rule: str
    hit_percent: float
    best_percent: float
    of_best: float
    no_state_percent: float
    steps: int


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


def measured(name: str, place: str, limit: int | None, pool: int, states: int) -> list[Row]:
    """A row for each rule. The best is that of the order in which ours admits."""
    rows, best = list[Row](), 0.0
    for rule, follow in RULES.items():
        sessions = TraceSource(place, limit=limit).open(Problems())
        replay = replayed(sessions, pool, states, follow, sessions.scale)
        stats = replay.core.stats()
        hits = stats.cached_tokens / stats.prompt_tokens
        best = best or replay.history.bounds(pool, states)[PLACEMENT]
        lacking = replay.no_state_tokens / stats.prompt_tokens
        rows.append(
            Row(
                *(name, pool, states, rule),
                hit_percent=round(100 * hits, 2),
                best_percent=round(100 * best, 2),
                of_best=round(hits / best, 3),
                no_state_percent=round(100 * lacking, 2),
                steps=stats.steps,
            )
        )
    return rows


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


def cases(rule: Rule) -> dict[str, object]:
    """Measure what issues of others report, with this rule.

    vllm_45238_*: of 64 requests with a shared prefix in turn, how many found any of it.
    sglang_22935: of a prompt of 6,476 tokens the least share that the second request finds, of
    suffixes from 1 to 200 tokens. second: of pairs that share a random prefix, one after the other
    or together, how many of the second ones find some of it.
    """
    make, found = np.random.default_rng(0), dict[str, object]()
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
    """A panel for the smaller and one for the larger pool of each workload, a bar for each rule."""
    names = list(dict.fromkeys(row.workload for row in rows))
    figure, axes = panels(
        2, "hit rate of a hybrid model by where checkpoints stand, % of the bound"
    )
    for number, title in enumerate(("few states", "more states")):
        for place, rule in enumerate(RULES):
            each = [_of(rows, name, rule)[number] for name in names]
            across = np.arange(len(names)) + 0.2 * place - 0.3
            axes[number].bar(across, [100 * row.of_best for row in each], 0.18, label=rule)
        labels = [f"{name}\n{_of(rows, name, 'ours')[number].states} states" for name in names]
        axes[number].set_xticks(range(len(names)), labels, fontsize=8)
        axes[number].set_title(title, fontsize=9, loc="left")
        axes[number].axhline(92, color="#59636e", linewidth=0.8, linestyle=":")
    axes[0].legend(frameon=False, fontsize=8, ncols=4, loc="lower right")
    save(figure, path)


def _of(rows: Sequence[Row], name: str, rule: str) -> list[Row]:
    return [row for row in rows if (row.workload, row.rule) == (name, rule)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trace", action="append", default=[])
    parser.add_argument("--only")
    parser.add_argument("--cases", action="store_true", help="only what issues of others report")
    parser.add_argument("--state-tokens", type=int, default=1_500)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    report: dict[str, object] = {"workload": "states"}
    if not args.cases:
        work: dict[str, tuple[str, int | None, Sequence[int]]] = {
            name: (name, *sizes) for name, sizes in WORKLOADS.items()
        }
        work |= {Path(trace).stem: (trace, None, TRACES) for trace in args.trace}
        rows = [
            row
            for name, (place, limit, pools) in work.items()
            if args.only in (None, name)
            for pool in pools
            for row in measured(name, place, limit, pool, int(SHARE * pool / args.state_tokens))
        ]
        show_rows("hit rates by where checkpoints stand", [row._asdict() for row in rows])
        if args.picture is not None:
            draw(args.picture, rows)
        report["rows"] = [row._asdict() for row in rows]
    if args.only is None:
        found = [{"rule": rule} | cases(follow) for rule, follow in RULES.items()]
        show_rows("cases", found)
        report["cases"] = found
    print(json.dumps(report))


if __name__ == "__main__":
    main()
