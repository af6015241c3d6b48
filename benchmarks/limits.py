"""What this machine can do, and how much of it the engine does.

    python -m benchmarks.limits [--shapes smollm-135m] [--dtypes bfloat16] [--quick] [--threads N]
                                [--kv-cache-dtype int8] [--latents]

First matrix products in the model's shapes, with weights that come from memory, and the memory's
bandwidth. Then steps of the ModelRunner on random weights: chunks of a prompt, and decoding with
256 or 2,048 tokens of context per request, or 64 of its own under 4,096 that all share. With
--latents only what a shared prefix costs a layer of a model with latents. With
--kv-cache-dtype int8 each step takes turns on a pool of either kind. The bound of the usual one is

    max(operations / rate, (weights + unique keys and values) / bandwidth)

where operations are those of the linear layers, of attention (only what causality leaves) and of
the head; the rate is that of a layer's four products together at 2,048 tokens, by torch's mm or by
oneDNN with weights in its own layout, whichever is faster; the bandwidth is that of reading. All
are medians. At last where the time of a prefill and of a decode step goes.

With one thread its CPU time is taken, which other work on the machine changes less. Do not believe
figures of several threads while there is other work: each of the many parallel stretches of a step
waits for the thread that was held up. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from benchmarks.step_profile import StepProfile
from radixlm.bench.machine import (
    Timing,
    bandwidths,
    head_product,
    layer_products,
    median_of_turns,
    product_rates,
)
from radixlm.core.batch import Extent, Remap, ScheduledBatch, ScheduledRow, Segment
from radixlm.core.keys import as_key
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.kernels.jit import user_store
from radixlm.memory.pools import KVPool, ReqToTokenPool, bytes_per_token
from radixlm.models import CausalLM, ModelConfig, PlainCheckpoint, load_config, load_model
from radixlm.products.product_table import ProductTable
from radixlm.runner.model_runner import ModelRunner
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DECODE, LONG, CHUNKS = (1, 8, 32), (1, 8), (256, 2048)
# One layer of DeepSeek-V2-Lite that has experts; so few tokens that the head does not count.
LITE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "vocab_size": 512,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "max_position_embeddings": 8192,
    "q_lora_rank": None,
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 6,
}
PARAMS = SamplingParams(max_tokens=1, temperature=0)
PROFILED = ("prefill 256", "decode 8")
console = Console(width=120)


class Step(NamedTuple):
    """Rows alike: `shared` tokens that all read, `own` before the `new` ones."""

    name: str
    rows: int
    new: int
    own: int = 0
    shared: int = 0

    @property
    def unique(self) -> int:
        """Tokens whose keys and values are read, each counted once."""
        return self.shared + self.rows * (self.own + self.new)

    @property
    def pairs(self) -> int:
        """Of a new token and one that it attends to, itself included."""
        before = self.new * (self.shared + self.own)
        return self.rows * (before + self.new * (self.new + 1) // 2)


def steps(*, quick: bool) -> list[Step]:
    chunks = CHUNKS[:1] if quick else CHUNKS
    made = [Step(f"prefill {chunk}", 1, chunk) for chunk in chunks]
    made += [Step(f"decode {rows}", rows, 1, own=256) for rows in DECODE]
    made += [Step(f"decode {rows} of 2,048", rows, 1, own=2_048) for rows in LONG]
    return [*made, Step("decode 32 under 4,096", 32, 1, own=64, shared=4_096)]


def operations(config: ModelConfig, step: Step) -> float:
    """Of one step, in which every row samples one token."""
    layers = sum(product.weights for product in layer_products(config))
    linear = 2 * step.rows * (step.new * layers + head_product(config).weights)
    return linear + 4 * config.n_layers * config.n_heads * config.head_dim * step.pairs


def bytes_read(config: ModelConfig, step: Step, dtype: torch.dtype) -> float:
    """Weights and unique keys and values."""
    products = [*layer_products(config), head_product(config)]
    weights = dtype.itemsize * sum(product.weights for product in products)
    token = bytes_per_token(config.n_layers, config.n_kv_heads, config.head_dim, dtype)
    return weights + step.unique * token


def make_batch(step: Step, table: ReqToTokenPool, vocab_size: int) -> ScheduledBatch:
    """The rows, whose earlier tokens the table knows already."""
    rows = []
    draw = np.random.default_rng(0)
    for index in range(step.rows):
        length = step.shared + step.own + step.new
        first = step.shared + index * (step.own + step.new)
        own = Extent(first, first + step.own + step.new)
        segments: tuple[Segment, ...] = (Segment(None, step.shared, length, (own,)),)
        if step.shared:
            prefix = Segment(0, 0, step.shared, (Extent(0, step.shared),))
            segments = (prefix, *segments)
        slots = np.concatenate((np.arange(step.shared), np.arange(*own))).astype(np.int32)
        key = as_key(draw.integers(0, vocab_size, length).tolist())
        start = length - step.new
        row = ScheduledRow(
            GenerateRequest(f"r{index}", key, PARAMS, max_tokens=1, seed=0),
            row=index,
            tokens=key,
            start=start,
            prompt_length=length,
            new_slots=slots[start:],
            remaps=(),
            segments=segments,
            samples=True,
        )
        table.apply([replace(row, remaps=(Remap(0, slots[:start]),))])
        rows.append(row)
    return ScheduledBatch(tuple(rows))


def random_model(shape: str, dtype: torch.dtype) -> CausalLM:
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_random_checkpoint(shape, Path(scratch) / shape)
        config, cpu = load_config(folder), torch.device("cpu")
        checkpoint = PlainCheckpoint(folder)
        return load_model(checkpoint, config, dtype=dtype, device=cpu, progress=False)


class Bench:
    """A model and its pools, on which any of the steps can be run. kinds: whether each is coded."""

    def __init__(
        self,
        model: CausalLM,
        dtype: torch.dtype,
        wanted: Sequence[Step],
        kinds: Sequence[bool] = (False,),
    ) -> None:
        self._model, self.config = model, model.config
        self._model.pack(ProductTable(user_store()).choice)
        slots = max(step.unique for step in wanted)
        longest = max(step.shared + step.own + step.new for step in wanted)
        self._table = ReqToTokenPool(max(step.rows for step in wanted), longest)
        self._runners = [
            ModelRunner(self._model, self._filled(slots, dtype, coded=coded), self._table)
            for coded in kinds
        ]

    def _filled(self, slots: int, dtype: torch.dtype, *, coded: bool) -> KVPool:
        shape = (self.config.n_kv_heads, self.config.head_dim)
        latent = self.config.traits.latents is not None
        pool = KVPool(self.config.n_layers, slots, *shape, dtype, coded=coded, latent=latent)
        for layer in range(pool.n_layers):
            pool.write(layer, torch.arange(slots), *torch.randn(2, slots, *shape).to(dtype))
        return pool

    def seconds(self, step: Step, timing: Timing) -> list[float]:
        """On each pool, by turns."""
        return median_of_turns(self.works(step), timing)

    def works(self, step: Step) -> list[Callable[[], object]]:
        """The step on each pool. The table knows its rows until the next one's are made."""
        batch = make_batch(step, self._table, self.config.vocab_size)
        return [partial(each.execute, batch) for each in self._runners]

    def profile(self, step: Step, repeats: int) -> dict[str, float]:
        """Milliseconds of a step by heading, the longest first."""
        batch = make_batch(step, self._table, self.config.vocab_size)
        self._runners[0].execute(batch)
        profile = StepProfile()
        with profile.watching():
            for _ in range(repeats):
                self._runners[0].execute(batch)
        longest = sorted(profile.seconds.items(), key=lambda item: -item[1])
        return {heading: round(1e3 * spent / repeats, 3) for heading, spent in longest}


def measure_rates(shape: str, dtype: torch.dtype, timing: Timing) -> dict[str, dict[int, float]]:
    """Operations per second by tokens: of each product the faster way, of a layer's four products
    together both ways. The head's for as many tokens as sample.
    """
    config = ModelConfig.from_hf(SHAPES[shape])
    products = layer_products(config)
    counts = (*DECODE, *CHUNKS)
    found = {p: {n: product_rates(p, n, dtype, timing) for n in counts} for p in products}
    rates = {p.name: {n: max(ways.values()) for n, ways in found[p].items()} for p in products}
    weights = sum(product.weights for product in products)
    for way in found[products[0]][1]:
        rates[f"layer, {way}"] = {
            n: weights / sum(p.weights / found[p][n][way] for p in products) for n in counts
        }
    head = head_product(config)
    rates["head"] = {n: max(product_rates(head, n, dtype, timing).values()) for n in DECODE}
    return rates


def measure(
    shape: str, dtype: torch.dtype, read: float, timing: Timing, *, quick: bool, coded: bool
) -> dict[str, Any]:
    """Rates in GFLOP/s, steps with their bound in milliseconds, profiles in milliseconds."""
    rates = measure_rates(shape, dtype, timing)
    rate = max(by[max(CHUNKS)] for name, by in rates.items() if name.startswith("layer"))
    wanted = steps(quick=quick)
    bench = Bench(random_model(shape, dtype), dtype, wanted, [False, True] if coded else [False])
    rows = []
    for step in tqdm(wanted, desc=f"{shape} {_name(dtype)}", dynamic_ncols=True):
        work, moved = operations(bench.config, step), bytes_read(bench.config, step, dtype)
        bound = max(work / rate, moved / read)
        seconds, *of_codes = bench.seconds(step, timing)
        rows.append(
            {
                "step": step.name,
                "gflop": round(work / 1e9, 2),
                "mb": round(moved / 1e6, 1),
                "bound_by": "products" if work / rate > moved / read else "memory",
                "bound_ms": round(1e3 * bound, 2),
                "step_ms": round(1e3 * seconds, 2),
                "share": round(bound / seconds, 3),
            }
            | _beside(seconds, *of_codes)
        )
    return {
        "shape": shape,
        "dtype": _name(dtype),
        "gflops": {
            name: {str(n): round(rate / 1e9, 1) for n, rate in by_tokens.items()}
            for name, by_tokens in rates.items()
        },
        "steps": rows,
        "profiles_ms": {
            step.name: bench.profile(step, timing.least) for step in wanted if step.name in PROFILED
        },
    }


def measure_latents(dtype: torch.dtype, timing: Timing) -> dict[str, Any]:
    """Milliseconds of a layer with experts in DeepSeek-V2-Lite's sizes, by readers of one prefix:
    32 and one, by turns with as many that read none.
    """
    model = CausalLM(ModelConfig.from_hf(LITE), dtype=dtype, device=torch.device("cpu"))
    for weight in model.weights().values():
        weight.normal_(0, 0.02)
    rows: dict[str, Any] = {}
    for readers in (32, 1):
        under = Step(f"decode {readers} under 4,096", readers, 1, own=64, shared=4_096)
        alone = Step(f"decode {readers}", readers, 1, own=64)
        # Each its own table.
        works = [Bench(model, dtype, [step]).works(step)[0] for step in (under, alone)]
        prefix, none = median_of_turns(works, timing)
        times = {"prefix_ms": round(1e3 * prefix, 2), "none_ms": round(1e3 * none, 2)}
        rows[str(readers)] = times | {"ratio": round(prefix / none, 3)}
        console.print(f"latents, {_name(dtype)}, {readers} readers: {rows[str(readers)]}")
    return {"dtype": _name(dtype), "readers": rows}


def _beside(seconds: float, of_codes: float | None = None) -> dict[str, float]:
    if of_codes is None:
        return {}
    return {"int8_ms": round(1e3 * of_codes, 2), "int8_ratio": round(of_codes / seconds, 3)}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def show(done: dict[str, Any]) -> None:
    title = f"{done['shape']}, {done['dtype']}"
    counts = [str(n) for n in (*DECODE, *CHUNKS)]
    table = _table(f"{title}: GFLOP/s by tokens", ["product", *counts])
    for name, by_tokens in done["gflops"].items():
        table.add_row(name, *(str(by_tokens.get(n, "–")) for n in counts))
    console.print(table)
    table = _table(f"{title}: share of the limit", [k.replace("_", " ") for k in done["steps"][0]])
    for row in done["steps"]:
        table.add_row(*(f"{v:.0%}" if k == "share" else str(v) for k, v in row.items()))
    console.print(table)
    for step, parts in done["profiles_ms"].items():
        total = sum(parts.values())
        table = _table(f"{title}: {step}, {total:.1f} ms under timers", ["part", "ms", "share"])
        for heading, spent in parts.items():
            table.add_row(heading, f"{spent:.2f}", f"{spent / total:.1%}")
        console.print(table)


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shapes", default="smollm-135m,qwen3-0.6b")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--kv-cache-dtype", choices=("auto", "int8"), default="auto")
    parser.add_argument("--latents", action="store_true", help="nothing but DeepSeek's")
    parser.add_argument("--quick", action="store_true", help="short chunks, few repeats")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    timing = Timing(0.3, least=3, most=10) if options.quick else Timing(3.0, least=5)
    if options.latents:
        latents = [measure_latents(DTYPES[name], timing) for name in options.dtypes.split(",")]
        print(json.dumps({"benchmark": "limits", "threads": options.threads, "latents": latents}))
        return
    memory = bandwidths(timing)
    console.print(", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in memory.items()))
    results = []
    for shape in options.shapes.split(","):
        for dtype in options.dtypes.split(","):
            coded = options.kv_cache_dtype == "int8"
            read, quick = memory["read"], options.quick
            made = measure(shape, DTYPES[dtype], read, timing, quick=quick, coded=coded)
            show(made)
            results.append(made)
    report = {
        "benchmark": "limits",
        "threads": options.threads,
        "gb_per_s": {name: round(rate / 1e9, 1) for name, rate in memory.items()},
        "results": results,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
