"""Does the simulator say what happens? The same sessions through an engine, and simulated.

    python -m benchmarks.sim_real [--model FOLDER] [--workloads chats,agents,rag] [--seconds 40]

The engine's steps are measured first, once, as by `radixlm sim --calibrate`. Then each workload
runs: its calls come when they would, each of a session a pause after the answer before; prompts go
on from what the engine has really answered, in as many tokens as the trace has. Wanted: hit rate
within half a point, median time to first token within 15 %, output tokens a second within 10 %.
Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import median

from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.assembly import AsyncEngine
from radixlm.bench.tables import processor
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.core.sampling import SamplingParams
from radixlm.sim.calibration import Calibration
from radixlm.sim.calls import Problems, TraceSession
from radixlm.sim.costs import Costs
from radixlm.sim.live import Heard, Player
from radixlm.sim.replay import Replay
from radixlm.sim.sources import TraceSource
from radixlm.testing.checkpoints import write_random_checkpoint

POINTS, FIRST, THROUGHPUT = 0.5, 0.15, 0.10


@dataclass(frozen=True)
class Load:
    """source: a generator. pace: sessions a second. pause: times as long. pool: tokens."""

    source: str
    pace: float
    pause: float
    pool: int


LOADS = {
    "chats": Load("chats", 0.5, 0.1, 20_000),
    "agents": Load("agents", 0.15, 0.5, 30_000),
    "rag": Load("rag", 1.0, 1.0, 20_000),
}


@dataclass(frozen=True)
class Seen:
    """What came of a load: in one of the two ways."""

    hit_rate: float
    ttft_ms: float
    tokens_per_s: float
    calls: int
    seconds: float


def sessions_of(load: Load, seconds: float, longest: int, seed: int) -> list[TraceSession]:
    """Those that come within the time, with the calls that fit the model's context."""
    sessions = TraceSource(load.source, limit=10_000, rate=load.pace, seed=seed).open(Problems())
    near = takewhile(lambda session: (session.at or 0.0) < seconds, sessions)
    return [
        replace(
            each,
            calls=tuple(
                replace(call, gap=call.gap * load.pause)
                for call in each.calls
                if call.prompt.size + call.answer.size <= longest
            ),
        )
        for each in near
    ]


class EngineTarget:
    """An engine in this process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def ask(self, prompt: Key, out: int) -> AsyncIterator[Heard]:
        params = SamplingParams(max_tokens=out, temperature=0.0, ignore_eos=True)
        tokens: list[int] = []
        async for output in self._engine.stream(prompt, params):
            tokens += output.token_ids
            yield Heard(tokens, output.cached_tokens)


async def played(engine: AsyncEngine, sessions: Sequence[TraceSession]) -> Seen:
    await engine.flush_cache()
    problems = Problems()
    player = Player(EngineTarget(engine), problems)
    await player.run(sessions)
    if problems.count:
        raise RuntimeError(f"the engine refused some: {problems.shown}")
    return Seen(
        hit_rate=player.cached_tokens / player.prompt_tokens,
        ttft_ms=1_000 * median(player.times.first),
        tokens_per_s=player.generated / player.seconds,
        calls=player.calls,
        seconds=player.seconds,
    )


def simulated(config: EngineConfig, costs: Costs, sessions: Sequence[TraceSession]) -> Seen:
    replay = Replay(config, costs, Problems())
    replay.run(sessions)
    seconds = replay.seconds
    return Seen(
        hit_rate=replay.core.stats().hit_rate,
        ttft_ms=1_000 * median(replay.times.first),
        tokens_per_s=replay.generated / seconds,
        calls=replay.calls,
        seconds=seconds,
    )


def compare(name: str, real: Seen, sim: Seen) -> dict[str, object]:
    points = 100 * (sim.hit_rate - real.hit_rate)
    first, rate = sim.ttft_ms / real.ttft_ms - 1, sim.tokens_per_s / real.tokens_per_s - 1
    return {
        "workload": name,
        "calls": real.calls,
        "hit %": round(100 * real.hit_rate, 2),
        "sim: hit %": round(100 * sim.hit_rate, 2),
        "TTFT ms": round(real.ttft_ms, 1),
        "sim: TTFT": round(sim.ttft_ms, 1),
        "off %": round(100 * first, 1),
        "tok/s": round(real.tokens_per_s, 1),
        "sim: tok/s": round(sim.tokens_per_s, 1),
        "off by %": round(100 * rate, 1),
        "as wanted": abs(points) <= POINTS and abs(first) <= FIRST and abs(rate) <= THROUGHPUT,
    }


async def measure(
    model: Path, names: Sequence[str], seconds: float, seed: int
) -> list[dict[str, object]]:
    rows = []
    costs: Costs | None = None
    for name in names:
        load = LOADS[name]
        config = EngineConfig(model=str(model), kv_tokens=load.pool, max_pinned_tokens=0)
        engine = AsyncEngine.from_config(config)
        try:
            longest = engine.limits.longest
            if costs is None:  # minutes, where the processor has no products of bfloat16
                with tqdm(unit=" figures", desc="calibration", leave=False) as bar:
                    calibration = Calibration(engine, bar.update)
                    costs = await asyncio.to_thread(calibration.measure, "this machine")
            sessions = sessions_of(load, seconds, longest, seed)
            sim = await asyncio.to_thread(simulated, config, costs, sessions)
            real = await played(engine, sessions)
        finally:
            await engine.close()
        print(
            json.dumps({"costs": asdict(costs), "real": asdict(real), "sim": asdict(sim)}),
            flush=True,
        )
        rows.append(compare(name, real, sim))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--workloads", default=",".join(LOADS))
    parser.add_argument("--seconds", type=float, default=40.0, help="in which sessions begin")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        model = args.model or write_random_checkpoint("smollm-135m", Path(scratch) / "smollm-135m")
        rows = asyncio.run(measure(model, args.workloads.split(","), args.seconds, args.seed))
    show_rows(f"Simulated beside real: {processor()}", rows)
    print(json.dumps({"benchmark": "sim_real", "processor": processor(), "rows": rows}))


if __name__ == "__main__":
    main()
