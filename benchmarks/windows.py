"""What layers with a window hold, and what is found again when they hold little.

    python -m benchmarks.windows [--window 256] [--running 8] [--ends 8] [--ratio 0.25]

Three tables, of a tiny Gemma 2 whose every other layer has a window. The first: window slots for
1.1 windows of each prompt that runs and each that is to be found again; prompts are of five
windows. They run at once, and then all are asked again, with more. The second: chats with a common
system prompt, turn after turn, of pools of several sizes; window slots are `--ratio` of the others;
beside it what a model without windows finds in as many tokens. The third: the same chats in a pool
too small for them, beside host memory or a disk. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.core.config import DiskWritePolicy
from radixlm.core.moves import Place
from radixlm.engine.engine_core import EngineCore
from radixlm.scheduler import restoring
from radixlm.testing.reference import make_checkpoint

_VOCAB = 300
_BLOCK = 16
_CHATS, _TURNS, _SYSTEM, _TURN, _ANSWER = 12, 4, 600, 60, 40


def _tokens(draw: np.random.Generator, count: int) -> list[int]:
    return [int(each) for each in draw.integers(0, _VOCAB, count)]


def _answers(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, temperature=0, ignore_eos=True)


def _engine(folder: Path, kv_tokens: int, **flags: Any) -> Engine:
    sizes = {"dtype": "float32", "kv_tokens": kv_tokens, "chunked_prefill_size": 64}
    return Engine(str(folder), **sizes, **flags)


def memory(folder: Path, window: int, running: int, ends: int) -> dict[str, Any]:
    """`ends` prompts one after another, `running` at once, then all again with one token more."""
    draw = np.random.default_rng(0)
    first, second = ([_tokens(draw, 5 * window) for _ in range(n)] for n in (ends, running))
    needed = window * (running + ends)
    kv_tokens = 8 * needed
    ratio = 1.1 * needed / kv_tokens
    with _engine(folder, kv_tokens, swa_full_tokens_ratio=ratio) as engine:
        for prompt in tqdm(first, "ends", leave=False):
            engine.generate([prompt], _answers(1))
        at_once = engine.generate(second, _answers(window))
        peak = engine.stats()
        again = [[*prompt, 7] for prompt in [*first, *_with_answers(second, at_once)]]
        found = sum(engine.generate([prompt], _answers(1))[0].cached_tokens for prompt in again)
        stats = engine.stats()
        layers = engine.info.kv_bytes
    with _engine(folder, kv_tokens, swa_full_tokens_ratio=1.0) as engine:
        all_slots = engine.info.kv_bytes
    return {
        "window": window,
        "running + ends": running + ends,
        "window slots / (window x both)": round(stats.swa_capacity / needed, 3),
        "given up": peak.swa_evicted_tokens,
        "retractions": stats.retractions,
        "found again / all": round(found / sum(len(prompt) - 1 for prompt in again), 4),
        "all memory / with all slots": round(layers / all_slots, 3),
        "leaks": stats.leaks,
    }


def _with_answers(
    prompts: Sequence[list[int]], outputs: Sequence[RequestOutput]
) -> Iterator[list[int]]:
    """The last token of an answer has no keys and values."""
    for prompt, output in zip(prompts, outputs, strict=True):
        yield [*prompt, *output.token_ids[:-1]]


def hit_rate(folder: Path, kv_tokens: int, ratio: float, **place: Any) -> tuple[float, int]:
    """Of the prompt tokens of all turns, the chats taking turns; and the pool's bytes. place: flags
    of one beside the pool.
    """
    draw = np.random.default_rng(1)
    system = _tokens(draw, _SYSTEM)
    chats = [[*system, *_tokens(draw, _TURN)] for _ in range(_CHATS)]
    cached = asked = 0
    with _engine(folder, kv_tokens, swa_full_tokens_ratio=ratio, **place) as engine:
        for _ in range(_TURNS):
            for chat in chats:
                (output,) = engine.generate([chat], _answers(_ANSWER))
                while place and not engine.client.ask(_at_rest).result():
                    time.sleep(0.005)  # a model this small computes faster than a disk writes
                cached += output.cached_tokens
                asked += output.prompt_tokens
                # Of the same length for every model, whatever it says.
                chat += [*output.token_ids, *_tokens(draw, _TURN)]
        assert engine.stats().leaks == 0
        return cached / asked, engine.info.kv_bytes


def _at_rest(core: EngineCore) -> bool:
    """Nothing is copied, nor waits to be."""
    [tier] = core.cache.tiers
    policy: DiskWritePolicy = "evict" if tier.place is Place.HOST else "all"
    return not core.cache.usage().locked and not tier.queue.take(policy, core.cache.capacity)


def beside_places(folder: Path, scratch: Path, kv_tokens: int, ratio: float) -> Iterator[Any]:
    """Rows: no place, host memory, a disk; what is stored is always read."""
    restoring.READING_TO_COMPUTING = 10**6
    places: dict[str, Any] = {
        "none": {},
        "host memory": {"host_kv_tokens": 20_000, "disk_block_tokens": _BLOCK},
        "disk": {"disk_block_tokens": _BLOCK, "disk_write_policy": "all"},
    }
    alone = 0
    for name, flags in tqdm(places.items(), "places", leave=False):
        found = []
        for share in (ratio, 1.0):
            if name == "disk":
                flags["disk_cache"] = str(scratch / f"disk-{share}")
            found.append(hit_rate(folder, kv_tokens, share, **flags))
        (own, nbytes), (whole, all_bytes) = found
        alone = alone or nbytes
        yield {
            "place": name,
            "memory / without a place": round(nbytes / alone, 4),
            "memory / with all slots": round(nbytes / all_bytes, 3),
            "hit rate": round(own, 4),
            "with all slots": round(whole, 4),
            "ratio": round(own / whole, 4),
        }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--window", type=int, default=256)
    options.add_argument("--running", type=int, default=8)
    options.add_argument("--ends", type=int, default=8)
    options.add_argument("--ratio", type=float, default=0.25)
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wide, narrow, full = (Path(scratch) / name for name in ("wide", "narrow", "full"))
        make_checkpoint(wide, "gemma2", sliding_window=args.window, max_position_embeddings=8192)
        make_checkpoint(narrow, "gemma2", sliding_window=64)
        make_checkpoint(full, "llama")
        held = memory(wide, args.window, args.running, args.ends)
        rows = []
        for kv_tokens in tqdm((1_500, 2_000, 3_000, 5_000), "pools", leave=False):
            windows, _ = hit_rate(narrow, kv_tokens, args.ratio)
            whole, _ = hit_rate(full, kv_tokens, 1.0)
            rates = {"with windows": windows, "without": whole, "ratio": windows / whole}
            rows.append(
                {"pool": kv_tokens, **{name: round(rate, 4) for name, rate in rates.items()}}
            )
        places = list(beside_places(narrow, Path(scratch), 1_500, args.ratio))
    show_rows("memory", [held])
    show_rows("hit rates", rows)
    show_rows("places", places)
    print(json.dumps({"memory": held, "hit_rates": rows, "places": places}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
