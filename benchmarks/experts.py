"""A step of few rows through a layer of experts: its share of the memory bound of what is read.

    python -m benchmarks.experts [--rows 8] [--shape qwen3-30b-a3b] [--dtype bfloat16]

The bound is the bytes of the router and of the experts that were chosen, each once, over the rate
at which this machine adds up memory; that is measured in turns with the steps, as is a dense MLP
with as many weights. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.rows import show_rows
from radixlm.bench.machine import Timing, median_of_turns
from radixlm.layers.compiled import TensorOptions
from radixlm.layers.experts import ExpertMLP, ExpertRouter
from radixlm.layers.mlps import MLP
from radixlm.layers.ways import one_way

_READ_BYTES = 512 << 20
_STEPS = 16


class Sizes(NamedTuple):
    """Of a layer: a token's numbers, an expert's, how many experts there are and a token gets."""

    hidden: int
    size: int
    experts: int
    chosen: int


SHAPES = {
    "qwen3-30b-a3b": Sizes(2048, 768, 128, 8),
    "olmoe": Sizes(2048, 1024, 64, 8),
    "granite-3b-a800m": Sizes(1536, 512, 40, 8),
    "mixtral": Sizes(4096, 14_336, 8, 2),
}


def make(sizes: Sizes, dtype: torch.dtype) -> tuple[ExpertRouter, ExpertMLP]:
    """A layer, and what chooses in it."""
    options = TensorOptions(dtype, torch.device("cpu"))
    router = ExpertRouter(
        sizes.hidden, sizes.experts, options, name="gate", chosen=sizes.chosen, renormalised=True
    )
    experts = [MLP(sizes.hidden, sizes.size, options, bias=False) for _ in range(sizes.experts)]
    layer = ExpertMLP(router, experts)
    fill(layer)
    return router, layer


def fill(mlp: MLP | ExpertMLP) -> None:
    """With random weights, laid out for the machine."""
    for _, linear in mlp.linears():
        torch.nn.init.normal_(linear.weight, std=linear.weight.shape[1] ** -0.5)
        linear.pack(one_way)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    torch.manual_seed(0)
    sizes, dtype = SHAPES[options.shape], getattr(torch, options.dtype)
    router, layer = make(sizes, dtype)
    made = [measured(sizes, router, layer, rows, dtype, options.seconds) for rows in options.rows]
    show_rows(f"experts of {options.shape}, {options.dtype}", made)
    share = {row["rows"]: row["share_of_the_bound"] for row in made}
    report = {"shape": options.shape, "dtype": options.dtype, "share_of_the_bound": share}
    print(json.dumps(report | {"rows": made}))
    return 0


@torch.inference_mode()
def measured(
    sizes: Sizes,
    router: ExpertRouter,
    layer: ExpertMLP,
    rows: int,
    dtype: torch.dtype,
    seconds: float,
) -> dict[str, float]:
    """A row of the table."""
    source = torch.ones(_READ_BYTES // 4)
    inputs = [torch.randn(rows, sizes.hidden).to(dtype) for _ in range(_STEPS)]
    found = statistics.fmean(router(x)[1].unique().numel() for x in inputs)
    options = TensorOptions(dtype, torch.device("cpu"))
    dense = MLP(sizes.hidden, round(found) * sizes.size, options, bias=False)
    fill(dense)

    def turns(work: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def all_steps() -> None:
            for x in inputs:
                work(x)

        return all_steps

    works: list[Callable[[], object]] = [turns(layer), turns(dense), source.sum]
    step, of_dense, read = median_of_turns(works, Timing(seconds))
    weights = sizes.hidden * (3 * sizes.size * found + sizes.experts)
    rate = source.nbytes / read
    bound = weights * dtype.itemsize / rate
    return {
        "rows": rows,
        "experts_read": round(found, 1),
        "step_ms": round(1e3 * step / _STEPS, 2),
        "dense_ms": round(1e3 * of_dense / _STEPS, 2),
        "bound_ms": round(1e3 * bound, 2),
        "read_gb_per_s": round(rate / 1e9, 1),
        "share_of_the_bound": round(bound / (step / _STEPS), 3),
        "dense_share": round(bound / (of_dense / _STEPS), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
