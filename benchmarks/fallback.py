"""A model through transformers' modules (`--model-impl transformers`) against our own file: the
same requests on the same checkpoint, in turns.

    python -m benchmarks.fallback --threads 1

Ends in one JSON line: by model tokens a second of both and the ratio, of wall time and of the
process's own time, which others on the machine change less (of one thread, hardly).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radixlm.bench.processor_name import processor
from radixlm.build import Engine
from radixlm.core.sampling import SamplingParams
from radixlm.testing.reference import make_checkpoint

# SmolLM-135M's sizes; the vocabulary is smaller, so that layers count for more than the head does.
SIZES: Mapping[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "initializer_range": 0.04,
}
IMPLS = ("radixlm", "transformers")


def took(engine: Engine, args: argparse.Namespace, turn: int) -> tuple[float, float]:
    """Seconds, and the process's own, of prompts that no turn had before."""
    params = SamplingParams(max_tokens=args.tokens, temperature=0, ignore_eos=True)
    prompts = [
        [turn, *((at * (place + 3)) % 256 for at in range(args.prompt - 1))]
        for place in range(args.requests)
    ]
    began, own = time.perf_counter(), time.process_time()
    outputs = engine.generate(prompts, params)
    seconds = time.perf_counter() - began, time.process_time() - own
    if any(len(output.token_ids) != args.tokens for output in outputs):
        raise SystemExit("an answer is too short")
    return seconds


def compared(args: argparse.Namespace, folder: Path, family: str) -> Mapping[str, float]:
    """Medians of both, in turns."""
    base = str(make_checkpoint(folder, family, **SIZES))
    flags = {"kv_tokens": 16_384, "dtype": args.dtype, "threads": args.threads}
    turns: list[list[tuple[float, float]]] = []
    with (
        Engine(base, model_impl=IMPLS[0], **flags) as ours,
        Engine(base, model_impl=IMPLS[1], **flags) as theirs,
    ):
        for engine in (ours, theirs):
            engine.generate([[0] * 40] * args.requests, SamplingParams(max_tokens=4))
        for turn in range(1, args.turns + 1):
            turns.append([took(engine, args, turn) for engine in (ours, theirs)])
    wall, own = (
        statistics.median(ours[of] / theirs[of] for ours, theirs in turns) for of in (0, 1)
    )
    count = args.requests * args.tokens
    rates = [count / statistics.median(turn[side][0] for turn in turns) for side in (0, 1)]
    print(
        f"{family}: {rates[0]:.0f} tokens/s by our file, {rates[1]:.0f} by transformers: "
        f"{wall:.2f}; {own:.2f} by the process's own time",
        flush=True,
    )
    named = dict(zip(IMPLS, (round(rate, 1) for rate in rates), strict=True))
    return {**named, "ratio": round(wall, 3), "ratio_own_time": round(own, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="*", default=["llama", "qwen3"])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        results = {name: compared(args, Path(made) / name, name) for name in args.families}
    said = {name: value for name, value in vars(args).items() if name != "families"}
    print(json.dumps({"processor": processor(), **said, **results}))


if __name__ == "__main__":
    main()
