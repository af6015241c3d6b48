"""How long steps and their parts take, and what the profiler sees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from radixlm.bench.machine import layer_products
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.models import ModelConfig
from radixlm.runner.sampler import sample
from radixlm.testing.checkpoints import SHAPES
from scripts.gpu_check.place import Finding, Place, rounded
from scripts.gpu_check.steps import Step, random_model, runner_for

_STEPS = [
    Step("decode 1", 1, 1_000),
    Step("decode 8", 8, 1_000),
    Step("decode 32", 32, 1_000),
    Step("decode 256 over 4,096 shared", 256, 4_224, shared=4_096),
    Step("prefill 2,048", 1, 0, 2_048),
    Step("decode 256", 256, 1_000),
]
_SMALL = [Step("decode 2", 2, 40), Step("decode 4 over shared", 4, 90, shared=64)]
_HEADS = (32, 8, 128)
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")


def model_small(place: Place) -> Iterator[Finding]:
    yield from _table("tiny" if place.small else "qwen3-0.6b", place)


def model_large(place: Place) -> Iterator[Finding]:
    yield from _table("tiny" if place.small else "qwen3-8b", place)


@torch.inference_mode()
def _table(shape: str, place: Place) -> Iterator[Finding]:
    model = random_model(shape, place)
    for step in _SMALL if place.small else _STEPS:
        runner = runner_for(model, step, place)
        runner.execute(step.batch(begins=True))
        work = partial(runner.execute, step.batch(begins=False))
        seconds = place.seconds(work, calls=3)
        found = {"what": f"{shape}, {step.name}", "ms": rounded(seconds * 1e3)}
        yield found | _profiled(work, place, seconds)
        del runner, work  # the next pool needs their memory


def _profiled(work: Callable[[], object], place: Place, seconds: float) -> dict[str, float]:
    """Of one call: launches, copies to the device, waits of the host (each copy from memory that is
    not pinned is one), and the share of its seconds, which are more while they are looked at, in
    which the GPU has nothing to do.
    """
    if not place.on_gpu:
        return {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        place.wait()
    events = seen.events() or []
    there = [each for each in events if each.device_type.name == "CUDA"]
    if not there:
        return {}
    busy = sum(each.time_range.elapsed_us() for each in there) / 1e6
    return {
        "launches": sum(not each.name.startswith(("Memcpy", "Memset")) for each in there),
        "copies": sum("HtoD" in each.name for each in there),
        # Those for the whole device are the profiler's and ours.
        "waits": sum(each.name in _WAITS for each in events),
        "idle_share": rounded(max(1 - busy / seconds, 0)),
    }


@torch.inference_mode()
def trace(place: Place) -> Iterator[Finding]:
    """A step of 32 rows as chrome://tracing shows it."""
    step = _SMALL[0] if place.small else _STEPS[2]
    runner = runner_for(random_model("tiny" if place.small else "qwen3-0.6b", place), step, place)
    runner.execute(step.batch(begins=True))
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if place.on_gpu else [])]
    with profile(activities=kinds) as seen:
        runner.execute(step.batch(begins=False))
        place.wait()
    path = place.out / "trace.json.gz"
    seen.export_chrome_trace(str(path))
    yield {"what": "profiler's trace", "file": path.name, "kb": path.stat().st_size // 1024}


@torch.inference_mode()
def parts(place: Place) -> Iterator[Finding]:
    """Products by rows, sampling by rows, copies to the host's memory."""
    config = ModelConfig.from_hf(SHAPES["tiny" if place.small else "qwen3-8b"])
    for product in layer_products(config):
        weight = torch.randn(product.outer, product.inner, device=place.device).bfloat16()
        for rows in (1, 8, 64, 256, 2_048):
            x = torch.randn(rows, product.inner, device=place.device).bfloat16()
            seconds = place.seconds(partial(functional.linear, x, weight))
            yield {
                "what": f"product {product.name}, {rows:,} rows",
                "us": rounded(seconds * 1e6),
                "tb_per_s": rounded(weight.nbytes / seconds / 1e12),
                "tflop_per_s": rounded(2 * rows * weight.numel() / seconds / 1e12),
            }
    for rows in (1, 8, 64, 256):
        logits = torch.randn(rows, config.vocab_size, device=place.device)
        batch = Step("", rows, 4).batch(begins=True)
        seconds = place.seconds(partial(sample, logits, batch.rows), calls=3)
        yield {"what": f"greedy sampling, {rows} rows", "us": rounded(seconds * 1e6)}
    yield from _host_copies(place)


def _host_copies(place: Place) -> Iterator[Finding]:
    layers, tokens = (2, 16) if place.small else (36, 128)
    pool = KVPool(layers, 2 * tokens, *_HEADS[1:], torch.bfloat16, place.device)
    blocks = PoolBlocks(pool, tokens)
    slots = np.arange(0, 2 * tokens, 2, dtype=np.int32)
    [row] = blocks.rows(1)
    for name, move in (
        ("to", partial(blocks.pack, slots, row)),
        ("from", partial(blocks.unpack, row, slots)),
    ):
        seconds = place.seconds(move)
        yield {
            "what": f"copies {name} the host's memory, blocks of {tokens} tokens",
            "mb": blocks.nbytes / 1e6,
            "gb_per_s": rounded(blocks.nbytes / seconds / 1e9),
        }
