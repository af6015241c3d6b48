"""What a step costs with several ranks: its time, and the bytes that this rank gave, counted.

    python -m benchmarks.rank_cost [--shape smollm-135m] [--ranks 1 2] [--rows 1 16] [--steps 20]

A prompt of 256 tokens, then steps that decode, of a random model. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radixlm.bench.processor_name import processor
from radixlm.build.loading import make_memory, make_model
from radixlm.build.rank_setup import ParallelRanks, start_ranks
from radixlm.cache import make_policy
from radixlm.core.config import EngineConfig
from radixlm.core.model_files import files_of
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore
from radixlm.engine.assembly import make_cache, make_core
from radixlm.engine.engine_core import Runner
from radixlm.models.model_config import load_config
from radixlm.runner.model_runner import ModelRunner
from radixlm.runner.ranks import leading
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

TOKENS, PROMPT = 8192, 256
CPU = torch.device("cpu")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    options.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    options.add_argument("--steps", type=int, default=20)
    args = options.parse_args()
    report: dict[str, Any] = {"shape": args.shape, "processor": processor(), "steps": []}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / args.shape
        write_random_checkpoint(args.shape, folder, dtype="bfloat16")
        for size in args.ranks:
            with ExitStack() as ending:
                core, ranks = engine(folder, size, ending)
                for rows in args.rows:
                    found = {"ranks": size, **measured(core, ranks, rows, args.steps)}
                    print(found, flush=True)
                    report["steps"].append(found)
    print(json.dumps(report))
    return 0


def engine(folder: Path, size: int, ending: ExitStack) -> tuple[EngineCore, ParallelRanks | None]:
    """A core on this thread, with as many threads a rank as there are processors for it."""
    threads = max((torch.get_num_threads() if size == 1 else 2) // size, 1)
    torch.set_num_threads(threads)
    config = EngineConfig(model=str(folder), tp_size=size, kv_tokens=TOKENS, threads=threads)
    files, shape = files_of(folder), load_config(folder)
    ranks = start_ranks(config, files, shape, CPU, threads, ending)
    split = None if ranks is None else ranks.split
    model = make_model(config, files, shape, torch.bfloat16, CPU, progress=False, split=split)
    runner: Runner
    pool, table = make_memory(config, model, TOKENS, 1024, torch.bfloat16, CPU)
    if ranks is None:
        runner = ModelRunner(model, pool, table, CPU)
    else:
        ranks.loaded()
        runner = leading(model, pool, table, CPU, ranks)
    cache = make_cache(config, make_policy(config.eviction_policy), TOKENS, 0)
    return make_core(config, cache, runner, None), ranks


def measured(
    core: EngineCore, ranks: ParallelRanks | None, rows: int, steps: int
) -> dict[str, Any]:
    """Of a step that computes a prompt, and of those that decode `rows` rows of 256 tokens."""
    core.cache.flush()
    for request in requests(rows, steps + 8):
        core.add(request)
    prompt = step(core, ranks)
    while core.waiting:
        core.step()
    for _ in range(3):  # the first ones compile, or wait for pages
        core.step()
    each = [step(core, ranks) for _ in range(steps)]
    while core.has_work:
        core.step()
    seconds, nbytes, calls = zip(*each, strict=True)
    return {
        "rows": rows,
        "decode_ms": round(statistics.median(seconds) * 1e3, 2),
        "decode_bytes": nbytes[-1],
        "meetings": calls[-1],
        "prompt_ms": round(prompt[0] * 1e3, 1),
        "prompt_bytes": prompt[1],
    }


def step(core: EngineCore, ranks: ParallelRanks | None) -> tuple[float, int, int]:
    """Seconds, bytes that rank 0 gave to reductions, and how many there were."""
    before = (0, 0) if ranks is None else (ranks.group.nbytes, ranks.group.calls)
    began = time.perf_counter()
    core.step()
    seconds = time.perf_counter() - began
    after = (0, 0) if ranks is None else (ranks.group.nbytes, ranks.group.calls)
    return seconds, after[0] - before[0], after[1] - before[1]


def requests(rows: int, tokens: int) -> Iterator[GenerateRequest]:
    draw = np.random.default_rng(rows)
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    for row in range(rows):
        key = draw.integers(5, 1000, PROMPT).astype(np.int32)
        yield GenerateRequest(f"{rows}-{row}", key, params, max_tokens=tokens)


if __name__ == "__main__":
    sys.exit(main())
