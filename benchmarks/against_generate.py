"""Each family here against transformers' own `generate` with its cache: the same greedy prompts on
one random checkpoint, in turns, each side in the type that is faster for it.

    python -m benchmarks.against_generate --threads 1 --families llama gemma2

Ends in one JSON line: by family, tokens a second of both sides and types, and ours over theirs, of
wall time and of the process's own time, which others on the machine change less.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from radixlm.bench.processor_name import processor
from radixlm.build import Engine
from radixlm.core.sampling import SamplingParams
from radixlm.testing.reference import ARCHITECTURES, make_checkpoint

# Large enough that products are measured, not Python.
SIZES: Mapping[str, Any] = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "initializer_range": 0.04,
}
# Layers of two kinds have to be listed.
_WINDOWED = frozenset({"gemma2", "gemma3_text", "cohere2", "olmo3", "gpt_oss"})
DTYPES = ("bfloat16", "float32")


class Took(NamedTuple):
    """Seconds, and the process's own."""

    wall: float
    own: float


def fields(family: str, layers: int) -> dict[str, Any]:
    made = {**SIZES, "num_hidden_layers": layers}
    if family in _WINDOWED:
        kinds = ("sliding_attention", "full_attention")
        made |= {"sliding_window": 256, "layer_types": [kinds[n % 2] for n in range(layers)]}
    if family == "smollm3":
        made["no_rope_layers"] = [int((n + 1) % 4 > 0) for n in range(layers)]
    if family.startswith("deepseek"):
        made |= {"num_key_value_heads": 8, "head_dim": 8}
    return made


def timed(run: Callable[[], Any]) -> Took:
    began, own = time.perf_counter(), time.process_time()
    run()
    return Took(time.perf_counter() - began, time.process_time() - own)


def prompts_of(args: argparse.Namespace, turn: int) -> list[list[int]]:
    """Prompts that no turn had before."""
    return [
        [turn, *((at * (place + 3)) % 256 for at in range(args.prompt - 1))]
        for place in range(args.requests)
    ]


def of_ours(folder: Path, args: argparse.Namespace, dtype: str) -> list[Took]:
    params = SamplingParams(max_tokens=args.tokens, temperature=0, ignore_eos=True)
    kv_tokens = 2 * args.requests * (args.prompt + args.tokens)
    flags = {"kv_tokens": kv_tokens, "dtype": dtype, "threads": args.threads}
    with Engine(str(folder), **flags) as engine:
        engine.generate([[0] * 40] * args.requests, SamplingParams(max_tokens=4))
        turns = [prompts_of(args, turn) for turn in range(1, args.turns + 1)]
        return [timed(partial(engine.generate, prompts, params)) for prompts in turns]


@torch.inference_mode()
def of_theirs(folder: Path, args: argparse.Namespace, dtype: str) -> list[Took]:
    if args.threads:
        torch.set_num_threads(args.threads)
    kind: Any = transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(prompts: Sequence[Sequence[int]], tokens: int) -> None:
        ids = torch.tensor(prompts)
        made = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            use_cache=True,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        if made.shape[1] != ids.shape[1] + tokens:
            raise SystemExit("an answer is too short")

    run([[0] * 40] * args.requests, 4)
    turns = [prompts_of(args, turn) for turn in range(1, args.turns + 1)]
    return [timed(partial(run, prompts, args.tokens)) for prompts in turns]


def compared(family: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The least time of each side and type; the better type counts."""
    make_checkpoint(folder, family, **fields(family, args.layers))
    count = args.requests * args.tokens
    best: dict[str, Took] = {}
    made: dict[str, Any] = {}
    for side, measure in (("ours", of_ours), ("theirs", of_theirs)):
        by_type = {dtype: min(measure(folder, args, dtype)) for dtype in args.dtypes}
        best[side] = min(by_type.values())
        made[side] = {dtype: round(count / took.wall, 1) for dtype, took in by_type.items()}
    made["ratio"] = round(best["theirs"].wall / best["ours"].wall, 2)
    made["ratio_own_time"] = round(best["theirs"].own / best["ours"].own, 2)
    print(
        f"{family:12} ours {made['ours']}, theirs {made['theirs']}: {made['ratio']}, "
        f"{made['ratio_own_time']} by own time",
        flush=True,
    )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--families", nargs="*", default=[*ARCHITECTURES], choices=ARCHITECTURES)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtypes", nargs="*", default=[*DTYPES], choices=DTYPES)
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as made:
        for family in args.families:
            results[family] = compared(family, Path(made) / family, args)
    said = {name: value for name, value in vars(args).items() if name != "families"}
    print(json.dumps({"processor": processor(), **said, "families": results}))


if __name__ == "__main__":
    main()
