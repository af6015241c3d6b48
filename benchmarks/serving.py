"""The server beside the same work offline, how fast it starts, and what memory it takes.

    python -m benchmarks.serving [--shape smollm-135m] [--dtype bfloat16] [--rounds 3]

64 clients stream at the same time, 200 prompt tokens of their own and 128 tokens of answer each;
then `Engine.generate` does the same in a process of its own; several rounds, the best of each. The
clients run in this process and share the machine's cores: their CPU seconds, divided by the cores,
are taken out of the server's time. Before that: seconds from starting `radixlm serve` with the demo
model to its first 200, and those of `radixlm --help`; the largest resident memory of the server
beside the bytes of weights and KV pool, of which it has written all. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.peer_client import Peer
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.rows import show_rows
from benchmarks.served import PATIENCE, RADIXLM, memory, serving
from radixlm import Engine, SamplingParams
from radixlm.bench.machine import head_product, layer_products
from radixlm.memory.pools import bytes_per_token
from radixlm.models import load_config
from radixlm.testing.checkpoints import write_random_checkpoint

CLIENTS, OWN, OUT = 64, 200, 128
KV_TOKENS = 40_000
VOCAB = 32_000
CPU_COUNT = os.cpu_count() or 1


def seconds_of_help() -> float:
    began = time.perf_counter()
    subprocess.run([RADIXLM, "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def weights_and_pool(folder: str, dtype: str) -> int:
    """Bytes. A tied head counts once, as in the checkpoint, whose type need not be `dtype`."""
    config = load_config(Path(folder))
    kind: torch.dtype = getattr(torch, dtype)
    products = [*layer_products(config), head_product(config)]
    weights = kind.itemsize * sum(product.weights for product in products)
    token = bytes_per_token(config.n_layers, config.n_kv_heads, config.head_dim, kind)
    return weights + KV_TOKENS * token


def prompts(seed: int) -> list[list[int]]:
    draw = Draw(VOCAB, seed)
    return [draw.tokens(OWN) for _ in range(CLIENTS)]


async def stream_all(
    url: str, prompts: Sequence[list[int]], warm_up: Draw, **fields: object
) -> tuple[float, float]:
    """Seconds of wall time, and of this process's CPU time. fields: more of each request."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE, limits=limits) as client:
        peer = Peer(url, client, None, **fields)
        await peer.connect(warm_up)
        asks = [Ask(prompt, OUT) for prompt in prompts]
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*map(peer.ask, asks))
        return time.perf_counter() - began, time.process_time() - cpu


def offline(folder: str, dtype: str, rounds: int) -> list[float]:
    """Seconds of wall time, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.serving", "--offline", folder, "--dtype", dtype]
    command += ["--rounds", str(rounds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds: list[float] = json.loads(done.stdout)
    return seconds


def run_offline(folder: str, dtype: str, rounds: int) -> None:
    params = SamplingParams(max_tokens=OUT, temperature=0, ignore_eos=True)
    seconds = []
    with Engine(folder, dtype=dtype, kv_tokens=KV_TOKENS) as engine:
        engine.generate([1, 2, 3], SamplingParams(max_tokens=8))
        for seed in range(rounds):
            work = prompts(seed)
            began = time.perf_counter()
            engine.generate(work, params)
            seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))


def measure(shape: str, dtype: str, rounds: int) -> dict[str, Any]:
    report: dict[str, Any] = {"benchmark": "serving", "shape": shape, "dtype": dtype}
    report["help_s"] = round(min(seconds_of_help() for _ in range(3)), 2)
    starts = []
    for _ in range(3):
        with serving() as served:
            starts.append(served.seconds)
    report["demo_model_to_first_200_s"] = [round(seconds, 2) for seconds in starts]
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(write_random_checkpoint(shape, Path(scratch) / shape))
        taken = []
        with serving(folder, "--dtype", dtype, "--kv-tokens", str(KV_TOKENS)) as served:
            report["model_to_first_200_s"] = round(served.seconds, 2)
            for seed in range(rounds):
                taken.append(
                    asyncio.run(stream_all(served.url, prompts(seed), Draw(VOCAB, seed, 1)))
                )
            report["peak_mb"] = round(memory(served.pid, "VmHWM") / 1e6)
        report["weights_and_pool_mb"] = round(weights_and_pool(folder, dtype) / 1e6)
        off = min(offline(folder, dtype, rounds))
    wall, cpu = min(taken)
    tokens = CLIENTS * OUT
    report |= {
        "offline_tokens_per_s": round(tokens / off),
        "served_tokens_per_s": round(tokens / wall),
        "client_cpu_s": round(cpu, 2),
        "without_clients_tokens_per_s": round(tokens / (wall - cpu / CPU_COUNT)),
        "share": round(off / wall, 3),
        "share_without_clients": round(off / (wall - cpu / CPU_COUNT), 3),
    }
    return report


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", default="smollm-135m", help="default: smollm-135m")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16; or float32")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--offline", metavar="FOLDER", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.offline:
        run_offline(options.offline, options.dtype, options.rounds)
        return
    report = measure(options.shape, options.dtype, options.rounds)
    rows = [{"what": key, "value": str(value)} for key, value in report.items()]
    show_rows("serving", rows)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
