"""What attention of a decode step costs that reads the latents it chose, beside one that reads all.

    python -m benchmarks.sparse_attention [--tokens 4096 16384 65536] [--rows 1 8] [--dtypes ...]

One layer of the shape of DeepSeek V3.2 (128 heads over latents of 576 numbers, an index of 64
heads of 128) or GLM-5 (64 heads, 32 of the index), 2,048 tokens chosen; each row has a context of
its own, whose slots lie in runs of 256. Both ways take turns, the best of some rounds; planning is
left out, choosing is not. The model's projections, the index's among them, are left out. With one
thread its processor time is taken, which other work on the machine changes less. Ends in one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from benchmarks.rows import show_rows
from radixlm.attention.backends import make_backend
from radixlm.attention.plan import AttentionPlan, RowSpan
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, LayerShape
from radixlm.products.compiled import TensorOptions

CHOSEN, RUN = 2_048, 256
# Heads, sizes of latents, of the index.
SHAPES = {
    "deepseek_v32": (128, LatentSizes(512, 64, 128, 128, 1_536), (64, 128)),
    "glm_moe_dsa": (64, LatentSizes(512, 64, 192, 256, 2_048), (32, 128)),
}


def seconds(ways: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Of each, in turn: the least of all rounds, after one that is not counted."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    found = [float("inf")] * len(ways)
    for number in range(rounds + 1):
        for place, way in enumerate(ways):
            start = clock()
            way()
            if number:
                found[place] = min(found[place], clock() - start)
    return found


def table_of(rows: int, tokens: int, draw: torch.Generator) -> Tensor:
    """(rows, tokens) int32 slots of `rows` contexts."""
    runs = torch.randperm(rows * tokens // RUN, generator=draw)
    slots = (runs[:, None] * RUN + torch.arange(RUN)).int()
    return slots.view(rows, tokens)


def expand(up: Expansion, queries: Tensor) -> None:
    """What both ways do with queries and with answers."""
    up.values_of(up.absorbed(queries.unflatten(1, (up.n_heads, -1))))


@torch.inference_mode()
def measured(
    name: str, rows: int, tokens: int, dtype: torch.dtype, rounds: int
) -> dict[str, object]:
    """Milliseconds of one layer's attention, both ways."""
    heads, sizes, (index_heads, index_size) = SHAPES[name]
    index = IndexSizes(index_heads, index_size, CHOSEN, False, (True,))
    draw = torch.Generator().manual_seed(0)
    shape = LayerShape(1, sizes.row, None, index.size)
    pool = KVPool(1, rows * tokens, 1, sizes.row, dtype, latent=True, shapes=(shape,))
    for part in pool.parts(0):
        part.normal_(generator=draw)
    table = table_of(rows, tokens, draw)
    spans = tuple(RowSpan(row, 1, 0, tokens, row, ()) for row in range(rows))
    plan = AttentionPlan((), spans, rows * tokens)
    up = Expansion(sizes, heads, sizes.key**-0.5, TensorOptions(dtype, torch.device("cpu")))
    up.weight.normal_(0, sizes.rank**-0.5, generator=draw)
    slots = table[:, -1].long()
    width = heads * sizes.key + sizes.row
    qkv = torch.randn(rows, width + sum(index.parts()), generator=draw).to(dtype)
    rotation = Rotation(torch.ones(rows, sizes.turned, dtype=dtype))
    dense, sparse = (
        make_backend(pool, heads, expansions=[up], index=its).prepare(plan, table, slots)
        for its in (None, index)
    )
    ways = (
        lambda: dense(0, qkv[:, :width], rotation, None),
        lambda: sparse(0, qkv, rotation, None),
        partial(expand, up, qkv[:, : heads * sizes.plain]),
    )
    all_read, chosen, expanding = seconds(ways, rounds)
    return {
        "shape": name,
        "dtype": str(dtype).removeprefix("torch."),
        "rows": rows,
        "tokens": tokens,
        "dense_ms": round(1e3 * all_read, 2),
        "sparse_ms": round(1e3 * chosen, 2),
        "expansion_ms": round(1e3 * expanding, 2),
        "ratio": round(chosen / all_read, 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_096, 16_384, 65_536])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    found = [
        measured(name, rows, tokens, getattr(torch, dtype), options.rounds)
        for name in SHAPES
        for dtype in options.dtypes
        for rows in options.rows
        for tokens in options.tokens
        if rows * tokens <= 2**19
    ]
    show_rows("attention of one layer", found)
    report = {"benchmark": "sparse_attention", "threads": options.threads, "results": found}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
