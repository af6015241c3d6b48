"""Whether programs of the frontend language compute what they share once, and leave no thread.

    python -m benchmarks.language [--shape 10m] [--programs 32] [--forks 8] [--rounds 3]

Programs under one beginning, each with a context of its own and forks that each ask about it, all
at once, from an empty cache, on a random model. Of each round: prompt tokens that were computed
beside the fewest that could be: each distinct prefix once, and the last token of every prompt, for
what is predicted from it. `unique_tokens` counts the prefixes alone. Threads are counted before,
in the middle and behind. Ends in one JSON line; the wall time is the rounds' median.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

import radixlm as rl
from benchmarks.rows import show_rows
from radixlm.assembly import AsyncEngine
from radixlm.bench.frontend_programs import round_trip_tokens
from radixlm.bench.paper_run import Listener
from radixlm.bench.programs import CompletedRequest, Draw, best_possible, remember
from radixlm.cache import RadixTree
from radixlm.core.config import EngineConfig
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

SHARED, CONTEXT, QUESTION, OUT = 600, 200, 20, 24


def _threads() -> int:
    """Of the process, but for the one that holds a team while other processes crowd this one."""
    return sum(thread.name != "radixlm-doze" for thread in threading.enumerate())


@rl.function
def program(s: Any, context: str, questions: list[str], threads: list[int]) -> None:
    s += context
    forks = s.fork(len(questions))
    forks += [question + rl.gen("answer", max_tokens=OUT) for question in questions]
    forks.join()
    threads.append(_threads())
    s["answer"]


class Counts(NamedTuple):
    """Prompt tokens of requests: all, the fewest to be computed, distinct prefixes."""

    prompt: int
    fewest: int
    unique: int


def count(finished: Sequence[CompletedRequest]) -> Counts:
    bound = best_possible(finished)
    tree = RadixTree()
    for item in finished:
        remember(tree, item.ask.prompt)
    return Counts(bound.prompt, bound.prompt - bound.cached, tree.evictable_size)


def contexts(draw: Draw, tokenizer: Any, programs: int, forks: int) -> list[dict[str, Any]]:
    """What the programs are called with, but for `threads`."""
    shared = draw.tokens(SHARED)
    return [
        {
            "context": tokenizer.decode(shared + draw.tokens(CONTEXT)),
            "questions": [tokenizer.decode(part) for part in draw.parts(forks, QUESTION)],
        }
        for _ in range(programs)
    ]


def measure(engine: AsyncEngine, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One round, from an empty cache."""
    asyncio.run(engine.flush_cache())
    threads: list[int] = []
    listener = Listener(engine)
    before, running = engine.stats(), _threads()
    started = time.perf_counter()
    program.run_batch(
        [{**call, "threads": threads} for call in calls],
        backend=listener,
        num_threads=len(calls),
        temperature=0.0,
        ignore_eos=True,
    )
    wall = time.perf_counter() - started
    after, left = engine.stats(), _threads()
    finished = [item.finished for item in listener.measured]
    counts = count(finished)
    # An answer's last token is never computed.
    answers = sum(len(item.token_ids) - 1 for item in finished)
    computed = after.computed_tokens - before.computed_tokens - answers
    return {
        "requests": len(finished),
        "prompt_tokens": counts.prompt,
        "computed_tokens": computed,
        "fewest_tokens": counts.fewest,
        "unique_tokens": counts.unique,
        "over_fewest": round(computed / counts.fewest, 4),
        "hit_rate": round(1 - computed / counts.prompt, 6),
        "best_hit_rate": round(1 - counts.fewest / counts.prompt, 6),
        "threads_before": running,
        "threads_most": max(threads),
        "threads_after": left,
        "wall_s": round(wall, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="10m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--programs", type=int, default=32)
    parser.add_argument("--forks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    room = SHARED + options.programs * (CONTEXT + options.forks * (QUESTION + OUT))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / options.shape
        write_random_checkpoint(options.shape, folder, dtype=options.dtype)
        engine = AsyncEngine.from_config(
            EngineConfig(model=str(folder), dtype=options.dtype, kv_tokens=2 * room)
        )
        try:
            tokens = round_trip_tokens(engine.tokenizer, engine.info.vocab_size)
            calls = contexts(Draw(tokens, 0), engine.tokenizer, options.programs, options.forks)
            measure(engine, calls[:2])  # kernels and thread pools start with the first steps
            rows = [measure(engine, calls) for _ in tqdm(range(options.rounds))]
        finally:
            asyncio.run(engine.close())
    show_rows(f"{options.programs} programs of {options.forks} forks, {options.shape}", rows)
    report = {
        "benchmark": "language",
        "shape": options.shape,
        "dtype": options.dtype,
        "programs": options.programs,
        "forks": options.forks,
        **rows[-1],
        "over_fewest": max(row["over_fewest"] for row in rows),
        "wall_s": statistics.median(row["wall_s"] for row in rows),
        "as_wanted": all(
            row["computed_tokens"] == row["fewest_tokens"]
            and row["threads_after"] == row["threads_before"]
            for row in rows
        ),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
