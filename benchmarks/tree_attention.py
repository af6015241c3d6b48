"""What attention of one decode step costs when rows share a prefix, read once or by each row.

    python -m benchmarks.tree_attention [--quick] [--threads N]

Every row has one new token, a prefix that it shares with all others, and 64 tokens of its own, in
the shape of SmolLM-135M (9 heads over 3 of keys, 64 wide). Measured are 6 layers, each with a pool
of its own, and given for 30. Both ways in turn, the best of some rounds. The floor is the step's
multiplications at the rate of a large matrix product, measured here. With one thread its CPU time
is taken, which other work on the machine changes less. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from benchmarks.rows import show_rows
from radixlm.attention.attend import Attend, AttentionBackend
from radixlm.attention.backends import make_backend
from radixlm.attention.plan import AttentionPlan, Sharing, make_plan
from radixlm.core.batch import Extent, Remap, ScheduledRow, Segment
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, ReqToTokenPool

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 9, 3, 64, 30
MEASURED_LAYERS = 6
OWN = 64
READERS = (1, 2, 4, 8, 16, 32, 64)
PREFIXES = (0, 256, 1024, 4096, 16384)
# Results of either way may differ by rounding: float32 scores of a few, bfloat16 results of one.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

# From the root down, the nodes that a row reads: (node, first slot, tokens).
Nodes = tuple[tuple[int, int, int], ...]


class Step(NamedTuple):
    """One decode step's attention, for any plan."""

    rows: list[ScheduledRow]
    pool: KVPool
    backend: AttentionBackend
    table: Tensor
    slots: Tensor
    qkv: Tensor
    rotation: Rotation

    def plan(self, rule: Sharing | None) -> AttentionPlan:
        return make_plan(self.rows, rule)

    def prepare(self, plan: AttentionPlan) -> Attend:
        return self.backend.prepare(plan, self.table, self.slots)

    def run(self, attend: Attend) -> Tensor:
        """All layers; the output of the last."""
        for layer in range(self.pool.n_layers):
            out = attend(layer, self.qkv, self.rotation, None)
        return out

    def milliseconds(self, rules: Sequence[Sharing | None], rounds: int) -> list[float]:
        """Of a step of 30 layers, planning included, by each rule."""
        made = [self.prepare(self.plan(rule)) for rule in rules]
        layers = best([partial(self.run, attend) for attend in made], rounds)
        start = best([partial(self.start, rule) for rule in rules], 10)
        scale = LAYERS / self.pool.n_layers
        return [1e3 * (once + scale * each) for once, each in zip(start, layers, strict=True)]

    def start(self, rule: Sharing | None) -> None:
        self.prepare(self.plan(rule))


def make_step(paths: Sequence[Nodes], own: int, dtype: torch.dtype, layers: int) -> Step:
    """A step of one row per path, with `own` tokens after its nodes, the last of them new."""
    used = max((first + tokens for nodes in paths for _, first, tokens in nodes), default=0)
    longest = max(sum(tokens for _, _, tokens in nodes) for nodes in paths) + own
    table = ReqToTokenPool(len(paths), longest)
    rows = []
    for index, nodes in enumerate(paths):
        rows.append(_row(index, nodes, Extent(used, used + own)))
        table.apply(rows[-1:])
        used += own
    pool = KVPool(layers, used, KV_HEADS, HEAD_DIM, dtype)
    generator = torch.Generator().manual_seed(0)
    for tensor in (*pool.keys, *pool.values):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    slots = torch.as_tensor(np.concatenate([row.new_slots for row in rows]), dtype=torch.int64)
    heads = HEADS + 2 * KV_HEADS
    qkv = torch.randn((len(rows), heads * HEAD_DIM), generator=generator).to(dtype)
    angles = torch.zeros(len(rows), HEAD_DIM // 2)
    rotation = Rotation(torch.cat((angles.cos(), angles.sin()), dim=1).to(dtype))
    return Step(rows, pool, make_backend(pool, HEADS), table.table, slots, qkv, rotation)


def _row(index: int, nodes: Nodes, own: Extent) -> ScheduledRow:
    segments = []
    start = 0
    for node, first, tokens in nodes:
        segments.append(Segment(node, start, start + tokens, (Extent(first, first + tokens),)))
        start += tokens
    length = start + own.stop - own.start
    segments.append(Segment(None, start, length, (own,)))
    slots = np.concatenate([np.arange(*e, dtype=np.int32) for s in segments for e in s.extents])
    key = np.zeros(length, dtype=np.int32)
    request = GenerateRequest(f"r{index}", key, SamplingParams(), max_tokens=1, seed=0)
    remaps = (Remap(0, slots[:-1]),)
    return ScheduledRow(
        request, index, key, length - 1, length, slots[-1:], remaps, tuple(segments), True
    )


def random_paths(seed: int, depth: int) -> list[Nodes]:
    """The leaves of a random tree, depth first."""
    rng = np.random.default_rng(seed)
    paths: list[Nodes] = []
    count = used = 0

    def grow(above: Nodes) -> None:
        nonlocal count, used
        if len(above) == depth:
            paths.append(above)
            return
        for _ in range(int(rng.integers(1, 3))):
            tokens = int(rng.choice([3, 40, 200, 700]))
            node = (count, used, tokens)
            count, used = count + 1, used + tokens
            grow((*above, node))

    grow(())
    return paths


def matmul_rate(dtype: torch.dtype) -> float:
    """Operations per second of a large product."""
    a, b = (torch.randn(1024, 1024).to(dtype) for _ in range(2))
    return 2 * 1024**3 / best([lambda: torch.mm(a, b)], rounds=30)[0]


def best(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Seconds of each, in turn: the least of all rounds, after one that is not counted."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times = [float("inf")] * len(ways)
    for count in range(rounds + 1):
        for index, way in enumerate(ways):
            started = clock()
            way()
            if count:
                times[index] = min(times[index], clock() - started)
    return times


def difference(step: Step, rule: Sharing) -> float:
    """The largest difference between both ways; refused when it is more than rounding."""
    tree, plain = (step.run(step.prepare(step.plan(r))) for r in (rule, None))
    worst = (tree.float() - plain.float()).abs().max().item()
    if not worst < TOLERANCE[step.pool.dtype]:
        raise SystemExit(f"the tree plan's results are off by {worst}")
    return worst


def measure(
    readers: int, prefix: int, dtype: torch.dtype, rate: float, rounds: int
) -> dict[str, object]:
    nodes: Nodes = ((0, 0, prefix),) if prefix else ()
    step = make_step([nodes] * readers, OWN, dtype, MEASURED_LAYERS)
    rule = step.backend.sharing
    tree, plain = step.plan(rule), step.plan(None)
    tree_ms, plain_ms = step.milliseconds((rule, None), rounds)
    token_bytes = 2 * KV_HEADS * HEAD_DIM * dtype.itemsize * LAYERS
    work = 4 * HEADS * HEAD_DIM * LAYERS * tree.kv_tokens_of_rows
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "readers": readers,
        "prefix": prefix,
        "tree_ms": round(tree_ms, 2),
        "per_request_ms": round(plain_ms, 2),
        "ratio": round(plain_ms / tree_ms, 2),
        "floor_ms": round(work / rate * 1e3, 2),
        "tree_mb": round(tree.kv_tokens_read * token_bytes / 1e6, 1),
        "per_request_mb": round(plain.kv_tokens_read * token_bytes / 1e6, 1),
        "difference": float(f"{difference(step, rule):.1e}"),
    }


def check_random_trees(count: int) -> float:
    """The largest difference over random trees of depth 6, float32, every node a read."""
    rule = Sharing(largest=99, fewest=1, shortest=0, least_saved=1, least_view=1)
    steps = (make_step(random_paths(seed, 6), 5, torch.float32, 1) for seed in range(count))
    return max(difference(step, rule) for step in steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="three sizes of each, few rounds")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    sizes = [(r, p) for r in READERS for p in PREFIXES]
    if options.quick:
        sizes = [(r, p) for r in (1, 8, 32) for p in (0, 256, 4096)]
    off = check_random_trees(5 if options.quick else 50)
    rates = {dtype: matmul_rate(dtype) for dtype in TOLERANCE}
    rows = [
        measure(readers, prefix, dtype, rates[dtype], rounds=3 if options.quick else 9)
        for dtype in TOLERANCE
        for readers, prefix in tqdm(sizes, dynamic_ncols=True)
    ]
    show_rows("attention of one decode step, 30 layers", rows)
    made = {
        "benchmark": "tree_attention",
        "threads": options.threads,
        "layers_measured": MEASURED_LAYERS,
        "gflops": {str(d).removeprefix("torch."): round(r / 1e9) for d, r in rates.items()},
        "random_trees_difference": float(f"{off:.1e}"),
        "results": rows,
    }
    print(json.dumps(made))


if __name__ == "__main__":
    main()
