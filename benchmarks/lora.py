"""Decoding with many adapters in one step against none: the same requests, in turns.

    python -m benchmarks.lora --adapters 8 --requests 16 --rank 16 --threads 1

Ends in one JSON line: by the modules that the adapters have, tokens a second and the ratio; and the
ratio of the process's own time, which others on the machine change less (of one thread, hardly).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from radixlm.assembly import Engine
from radixlm.bench.tables import processor
from radixlm.core.sampling import SamplingParams
from radixlm.models import CausalLM, load_config
from radixlm.testing.checkpoints import write_random_checkpoint

MODULES: Mapping[str, Sequence[str]] = {
    "q and v": ("q_proj", "v_proj"),
    "all": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
}
PROMPT = 24


def write_adapter(folder: Path, base: Path, modules: Sequence[str], rank: int, seed: int) -> None:
    """Random, in PEFT's format."""
    generator = torch.Generator().manual_seed(seed)
    model = CausalLM(load_config(base), dtype=torch.bfloat16, device=torch.device("meta"))
    tensors = {}
    for prefix, linear in model.adaptable():
        for part, size in linear.parts.items():
            if part in modules:
                name = f"base_model.model.{prefix}{part}.lora_"
                for side, shape in (("A", (rank, linear.inputs)), ("B", (size, rank))):
                    made = torch.randn(shape, generator=generator) * 0.02
                    tensors[f"{name}{side}.weight"] = made.bfloat16()
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [*modules]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def took(engine: Engine, names: Sequence[str | None], tokens: int) -> tuple[float, float]:
    """Seconds, and the process's own, of one request for each name, all at once; their prompts are
    cached.
    """
    params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
    prompts = [[(place * 7 + at) % 256 for at in range(PROMPT)] for place in range(len(names))]

    def run(how: SamplingParams) -> None:
        requests = [
            engine.request(prompt, how, lora_path=name)
            for prompt, name in zip(prompts, names, strict=True)
        ]
        for _ in engine.client.run(requests):
            pass

    run(SamplingParams(max_tokens=1, temperature=0))
    began, own = time.perf_counter(), time.process_time()
    run(params)
    return time.perf_counter() - began, time.process_time() - own


def compared(args: argparse.Namespace, folder: Path, base: Path, kind: str) -> dict[str, float]:
    """Medians of both, in turns."""
    paths = []
    for place in range(args.adapters):
        its = folder / f"{kind}-{place}"
        write_adapter(its, base, MODULES[kind], args.rank, place)
        paths.append(f"a{place}={its}")
    flags = {"kv_tokens": 16_384, "dtype": args.dtype, "threads": args.threads}
    turns = []
    with Engine(str(base), lora_paths=tuple(paths), **flags) as engine:
        with_adapters = [f"a{place % args.adapters}" for place in range(args.requests)]
        for _ in range(args.turns + 1):
            none = took(engine, [None] * args.requests, args.tokens)
            turns.append((none, took(engine, with_adapters, args.tokens)))
    turns = turns[1:]  # the first one warms
    wall, own = (
        statistics.median(none[of] / adapters[of] for none, adapters in turns) for of in range(2)
    )
    count = args.requests * args.tokens
    without, adapted = (count / statistics.median(turn[of][0] for turn in turns) for of in range(2))
    print(
        f"{kind}: {without:.0f} tokens/s without, {adapted:.0f} with adapters: {wall:.2f}; "
        f"{own:.2f} by the process's own time"
    )
    rates = {"none": round(without, 1), "adapters": round(adapted, 1)}
    return {**rates, "ratio": round(wall, 3), "ratio_own_time": round(own, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="smollm-135m")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--modules", nargs="*", default=[*MODULES], choices=[*MODULES])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        base = write_random_checkpoint(args.shape, Path(made) / "base", dtype=args.dtype)
        results = {kind: compared(args, Path(made), base, kind) for kind in args.modules}
    said = {name: value for name, value in vars(args).items() if name != "modules"}
    print(json.dumps({"processor": processor(), **said, **results}))


if __name__ == "__main__":
    main()
