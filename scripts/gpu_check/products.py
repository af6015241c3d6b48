"""Whether products over codes and of experts are right, and how fast they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.kernels.gpu_launch import has_kernels
from radixlm.products.gpu_products import GpuProduct, Shared
from radixlm.products.quantized import QuantizedWeight, WeightKind
from scripts.gpu_check.place import Finding, Place, rounded

_KINDS = {
    "int8": WeightKind(8, 4_096, False, "int"),
    "int4/128, offsets": WeightKind(4, 128, True, "int"),
    "int4/32": WeightKind(4, 32, False, "int"),
    "int6/16": WeightKind(8, 16, False, "int"),
    "E4M3/128": WeightKind(8, 128, False, "e4m3"),
    "MXFP4": WeightKind(4, 32, False, "e2m1"),
    "NF4/64": WeightKind(4, 64, False, "nf4"),
}
_ROWS = 1, 8, 16, 32, 64, 256, 2_048
# A weight of 8B models; experts of gpt-oss.
_SIZES, _EXPERTS = (12_288, 4_096), (32, 5_760, 2_880)
# Of a result's deviation, in bfloat16.
_NEAR = 5e-2


def coded(kind: WeightKind, device: str) -> QuantizedWeight:
    """Make one with any codes that are numbers."""
    outputs, inputs = _SIZES
    codes = torch.randint(0, 1 << kind.bits, _SIZES, dtype=torch.uint8, device=device)
    if kind.numbers == "e4m3":
        codes &= 0xB7
    scales = torch.rand(outputs, inputs // kind.group, device=device) + 0.1
    zero = 1 << kind.bits - 1 if kind.numbers == "int" else 0
    offsets = torch.randn_like(scales) if kind.offsets else None
    return QuantizedWeight(codes, scales, offsets, kind.bits, zero, kind.numbers)


@torch.inference_mode()
def products(place: Place) -> Iterator[Finding]:
    """Against float64, and in the time of torch's product in bfloat16."""
    if not has_kernels(place.device):
        yield {"what": "products", "skipped": "no GPU, or no Triton"}
        return
    bfloat16, device = torch.bfloat16, torch.device(place.device)
    for name, kind in _KINDS.items():
        weight = coded(kind, place.device)
        full = weight.dequantized()
        plain, full = full.bfloat16(), full.double().t()
        product = GpuProduct.coded(weight, None, bfloat16, bfloat16, device)
        for rows in _ROWS:
            x = torch.randn(rows, _SIZES[1], device=device).bfloat16()
            found = _compared(product(x), x.double() @ full)
            theirs = place.seconds(partial(functional.linear, x, plain))
            yield {
                "what": f"{name}, {rows:,} rows",
                **found,
                **_timed(place, partial(product, x), theirs),
            }
    weights = torch.randn(_EXPERTS, device=device).bfloat16()
    experts, [count, _, inputs] = GpuProduct.plain(weights, None, bfloat16), _EXPERTS
    for rows in (4, 256, 8_192):
        chosen = torch.randint(0, count, (rows,), device=device).sort()[0]
        ends = torch.bincount(chosen, minlength=count).cumsum(0, dtype=torch.int32)
        shared = Shared(functional.pad(ends, (1, 0)), chosen)
        x = torch.randn(rows, inputs, device=device).bfloat16()
        parts = x.tensor_split(ends[:-1].cpu())
        wanted = [
            part.double() @ its.double().t() for part, its in zip(parts, weights, strict=True)
        ]
        found = _compared(experts(x, shared), torch.cat(wanted))
        by_torch = partial(torch._grouped_mm, x, weights.transpose(1, 2), offs=ends)
        timed = _timed(place, partial(experts, x, shared), place.seconds(by_torch))
        yield {"what": f"experts in bfloat16, {rows:,} rows", **found, **timed}


def _compared(made: Tensor, wanted: Tensor) -> Finding:
    off = ((made - wanted).abs().max() / wanted.std()).item()
    return {"ok": off < _NEAR, "off": f"{off:.1e}"}


def _timed(place: Place, work: Callable[[], Tensor], theirs: float) -> Finding:
    """us: called by the host, gpu_us: as one graph; torch_us: torch's, called by the host."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(10):
            work()
    seconds = place.seconds(work), place.seconds(graph.replay, calls=3) / 10, theirs
    return dict(
        zip(("us", "gpu_us", "torch_us"), (rounded(each * 1e6) for each in seconds), strict=True)
    )
