"""Measures of this machine: matrix products in a model's shapes, and memory bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.kernels.vectors import processor_has
from radixlm.models import ModelConfig
from radixlm.products.gemm_choice import has_onednn

# Far more than the caches hold, so that data comes from memory as it does in a model.
_WEIGHT_BYTES = 256 << 20
_STREAM_BYTES = 1 << 30
_INSTRUCTIONS = (
    ("amx-int8", "AMX"),
    ("avx512bf16", "AVX-512 with bfloat16"),
    ("avx512vnni", "AVX-512 with VNNI"),
    ("avx512f", "AVX-512"),
    ("avx2", "AVX2"),
)
# Tokens that weights are laid out for: this serves 1 and 2,048 as well.
_PACKED_FOR = 8


class Product(NamedTuple):
    """x (tokens, inner) times a weight (outer, inner), of which a model has `copies`."""

    name: str
    outer: int
    inner: int
    copies: int

    @property
    def weights(self) -> int:
        """Elements of all of them."""
        return self.outer * self.inner * self.copies


class Timing(NamedTuple):
    """budget: seconds to spend on a figure. least, most: repeats, whatever it is."""

    budget: float
    least: int = 3
    most: int = 50


def instructions() -> str:
    """The best of the instructions that compiled products may use."""
    return next((name for feature, name in _INSTRUCTIONS if processor_has(feature)), "no AVX2")


def layer_products(config: ModelConfig) -> list[Product]:
    """The four products of a decoder layer, as they are fused."""
    queries, keys = (n * config.head_dim for n in (config.n_heads, config.n_kv_heads))
    hidden, wide, layers = config.hidden_size, config.intermediate_size, config.n_layers
    return [
        Product("qkv", queries + 2 * keys, hidden, layers),
        Product("o", hidden, queries, layers),
        Product("gate-up", 2 * wide, hidden, layers),
        Product("down", hidden, wide, layers),
    ]


def head_product(config: ModelConfig) -> Product:
    return Product("head", config.vocab_size, config.hidden_size, 1)


def clock() -> float:
    """Seconds. With one thread its CPU time, which other work on the machine changes less."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


def median_seconds(work: Callable[[], object], timing: Timing) -> float:
    """The median of some repeats, after one that is not counted."""
    return median_of_turns([work], timing)[0]


def median_of_turns(works: Sequence[Callable[[], object]], timing: Timing) -> list[float]:
    """The same of several, which take turns."""
    for work in works:
        work()
    times: list[list[float]] = [[] for _ in works]
    began = time.perf_counter()
    while len(times[0]) < timing.most:
        for work, of_work in zip(works, times, strict=True):
            started = clock()
            work()
            of_work.append(clock() - started)
        if len(times[0]) >= timing.least and time.perf_counter() - began > timing.budget:
            break
    return [statistics.median(of_work) for of_work in times]


def product_rates(
    product: Product, tokens: int, dtype: torch.dtype, timing: Timing
) -> dict[str, float]:
    """Operations per second with the weight as it is stored (`mm`) and, where oneDNN multiplies its
    type, as that lays it out (`packed`). Copies of the weight take turns, as a model's layers do.
    """
    weight = torch.empty(product.outer, product.inner, dtype=dtype).normal_()
    copies = [weight]
    copies += [weight.clone() for _ in range(_WEIGHT_BYTES // weight.nbytes)]
    x = torch.empty(tokens, product.inner, dtype=dtype).normal_()
    out = torch.empty(tokens, product.outer, dtype=dtype)
    plain = cycle(copies)
    ways: dict[str, Callable[[], Tensor]] = {"mm": lambda: torch.mm(x, next(plain).t(), out=out)}
    if has_onednn(dtype):
        laid_out = [torch.ops.mkldnn._reorder_linear_weight(w, _PACKED_FOR) for w in copies]
        packed = cycle(laid_out)
        ways["packed"] = lambda: torch.ops.mkldnn._linear_pointwise(
            x, next(packed), None, "none", [], ""
        )
    work = 2 * tokens * product.outer * product.inner
    return {name: work / median_seconds(way, timing) for name, way in ways.items()}


def bandwidths(timing: Timing) -> dict[str, float]:
    """Bytes per second: `read` is a sum over a large buffer, `copy` counts both ways."""
    source = torch.ones(_STREAM_BYTES // 4)
    target = torch.empty_like(source)
    return {
        "read": source.nbytes / median_seconds(source.sum, timing),
        "copy": 2 * source.nbytes / median_seconds(lambda: target.copy_(source), timing),
    }
