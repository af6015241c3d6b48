"""What layers with states cost: their scan beside the layer's own products, and a decoding step.

    python -m benchmarks.state_kernels [--dtypes bfloat16] [--layers qwen3.5-0.8b] [--threads N]

Layers of published sizes with random weights, compiled and by torch. Prefill: 2,048 tokens of one
request through everything but the products, which is the scan, and through the products; also with
those of the MLP. Decoding: layers in turn, so that all comes from memory, for 1, 16 and 32
requests; the bound is the time to read as many bytes as weights and twice the states have. All of
one row take turns, and figures are medians.

With one thread its CPU time is taken, which other work on the machine changes less. Ends in one
JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.rows import show_rows
from radixlm.bench.machine import Timing, median_of_turns
from radixlm.kernels.jit import user_store
from radixlm.layers.gated_delta import DeltaSizes, GatedDelta
from radixlm.layers.linear import Linear
from radixlm.layers.mamba2 import Mamba2, MambaSizes
from radixlm.layers.mlps import MLP
from radixlm.layers.short_conv import ConvSizes, ShortConv
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.products.compiled import TensorOptions
from radixlm.products.product_table import ProductTable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PROMPT, ROWS = 2_048, (1, 16, 32)
# More than the caches hold, of weights and states.
LEAST_BYTES = 192 << 20
StateLayer = GatedDelta | Mamba2 | ShortConv


class Kind(NamedTuple):
    """A model's layers. hidden, intermediate: sizes around them."""

    sizes: DeltaSizes | MambaSizes | ConvSizes
    hidden: int
    intermediate: int

    def layer(self, options: TensorOptions) -> StateLayer:
        """Make one, with random weights, its products laid out for this machine."""
        made: StateLayer
        match self.sizes:
            case DeltaSizes():
                made = GatedDelta(self.sizes, 0, self.hidden, 1e-6, options)
            case MambaSizes():
                made = Mamba2(self.sizes, 0, self.hidden, 1e-6, options)
            case ConvSizes():
                made = ShortConv(self.sizes, 0, options)
        for _, weight in made.named_weights():
            weight.normal_(0, 0.05)
        pack(made)
        return made


KINDS = {
    "qwen3.5-0.8b": Kind(DeltaSizes(16, 16, 128, 128, 4, ("qkv", "z", "b", "a")), 1024, 3584),
    "granite-4.0-h-tiny": Kind(
        MambaSizes(48, 64, 1, 128, 4, bias=False, conv_bias=True), 1536, 2048
    ),
    "lfm2-350m": Kind(ConvSizes(1024, 3, bias=False), 1024, 4608),
}


def pack(part: StateLayer | MLP) -> None:
    """Lay a part's products out."""
    for each in part.linears():
        linear = each[1] if isinstance(each, tuple) else each
        linear.pack(ProductTable(user_store()).choice)


class Uncompiled(TensorOptions):
    """Options that there is no compiled code for."""

    def known(self, width: int = 0) -> bool:  # noqa: ARG002
        return False


def state_of(kind: Kind, rows: int, options: TensorOptions) -> tuple[Tensor, Tensor]:
    sizes = kind.sizes
    conv = torch.zeros(rows, sizes.width - 1, sizes.channels, dtype=options.dtype)
    return conv, torch.zeros(rows, *sizes.matrix)


def prefill(kind: Kind, options: TensorOptions, timing: Timing) -> dict[str, object]:
    """Milliseconds of a prompt."""
    layer, old = kind.layer(options), kind.layer(Uncompiled(*options))
    mlp = MLP(kind.hidden, kind.intermediate, options, bias=False)
    pack(mlp)
    x = torch.randn(PROMPT, kind.hidden).to(options.dtype)
    conv, matrix = state_of(kind, 1, options)
    states = StepStates([StateRow(0, PROMPT, 0, 0)], [conv], [matrix])
    given = {linear: linear(torch.randn(PROMPT, linear.inputs).to(x)) for linear in layer.linears()}
    others = dict(zip(old.linears(), given.values(), strict=True))

    def scan(which: StateLayer, made: dict[Linear, Tensor]) -> None:
        which(x, states, lambda linear, _x, _out: made[linear])

    inner = torch.randn(PROMPT, layer.output.inputs).to(x)

    def products() -> None:
        layer.projections(x)
        layer.output(inner)

    works: list[Callable[[], object]] = [
        partial(scan, layer, given),
        products,
        partial(mlp, x),
        partial(scan, old, others),
    ]
    ours, its, beside, before = median_of_turns(works, timing)
    return {
        "scan_ms": round(1e3 * ours, 1),
        "products_ms": round(1e3 * its, 1),
        "scan/products": round(ours / its, 3),
        "with_mlp": round(ours / (its + beside), 3),
        "torch_ms": round(1e3 * before, 1),
        "torch/products": round(before / its, 3),
        "torch/scan": round(before / ours, 1),
    }


def decode(kind: Kind, rows: int, options: TensorOptions, timing: Timing) -> dict[str, object]:
    """Milliseconds of a step of all layers of a stack."""
    first = kind.layer(options)
    weights = sum(sum(each.parts.values()) * each.inputs for each in first.linears())
    state = state_of(kind, rows, options)
    moved = weights * options.dtype.itemsize + 2 * sum(each.nbytes for each in state)
    count = max(2, LEAST_BYTES // moved)
    table = [StateRow(row, row + 1, 9, row) for row in range(rows)]
    x = torch.randn(rows, kind.hidden).to(options.dtype)
    stacks = []
    for its in (options, Uncompiled(*options)):
        parts = [state_of(kind, rows, options) for _ in range(count)]
        states = [StepStates(table, [conv], [matrix]) for conv, matrix in parts]
        stacks.append(list(zip([kind.layer(its) for _ in range(count)], states, strict=True)))
    buffers = cycle([torch.ones(moved // 4) for _ in range(count)])

    def step(stack: list[tuple[StateLayer, StepStates]]) -> None:
        for layer, states in stack:
            layer(x, states, Linear.__call__)

    def read() -> None:
        for _ in range(count):
            next(buffers).sum()

    ours, bound, before = median_of_turns(
        [partial(step, stacks[0]), read, partial(step, stacks[1])], timing
    )
    return {
        "rows": rows,
        "mb": round(moved / 1e6, 1),
        "step_ms": round(1e3 * ours / count, 2),
        "bound_ms": round(1e3 * bound / count, 2),
        "share": round(bound / ours, 3),
        "torch_ms": round(1e3 * before / count, 2),
        "torch_share": round(bound / before, 3),
        "torch/step": round(before / ours, 2),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--layers", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    timing = Timing(1.0, least=2, most=5) if options.quick else Timing(5.0, least=5)
    prompts, steps = [], []
    for name in options.layers:
        for dtype in options.dtypes:
            what = {"layer": name, "dtype": dtype}
            its, kind = TensorOptions(DTYPES[dtype], torch.device("cpu")), KINDS[name]
            prompts.append(what | prefill(kind, its, timing))
            steps += [what | decode(kind, rows, its, timing) for rows in ROWS]
    show_rows(f"prefill of {PROMPT:,}", prompts)
    show_rows("decoding", steps)
    report = {"benchmark": "state_kernels", "threads": options.threads}
    print(json.dumps(report | {"prefill": prompts, "decode": steps}))


if __name__ == "__main__":
    main()
