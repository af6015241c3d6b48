"""The kernels of GPUs as Triton compiles them, without a GPU: `python -m tests.compiled_kernels`.

Prints one JSON object a line: a kernel, for which GPU, and what it takes there. What kernels are
given is caught where they would be launched.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from radixlm.attention.gpu_backend import GpuBackend, GpuLatentBackend, tiles_for
from radixlm.attention.plan import make_plan
from radixlm.kernels import gpu_attention, gpu_launch, gpu_multiply, gpu_place, gpu_rows
from radixlm.kernels.gpu_launch import Launch
from radixlm.layers.expansion import Expansion, LatentSizes
from radixlm.layers.linear import add_norm
from radixlm.memory.pools import KVPool
from radixlm.products.compiled import TensorOptions, gated
from radixlm.products.gpu_products import GpuProduct, Shared
from radixlm.products.quantized import QuantizedWeight, WeightKind
from tests.tensor.attention_cases import (
    EVERYTHING,
    Heads,
    attention,
    in_codes,
    make_tree_case,
    unturned,
)
from tests.tensor.attention_cases import Path as TreePath

_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("num_warps", "num_stages")
CASES = [
    ("plain", torch.bfloat16, Heads(32, 8, 128)),
    ("plain", torch.bfloat16, Heads(16, 8, 128)),
    ("coded", torch.bfloat16, Heads(32, 8, 128)),
    ("window", torch.bfloat16, Heads(8, 1, 64)),
    ("cap and sinks", torch.bfloat16, Heads(8, 4, 256)),
    ("plain", torch.bfloat16, Heads(8, 1, 512)),
    ("plain", torch.float16, Heads(9, 3, 80)),
    ("plain", torch.float32, Heads(4, 1, 128)),
]

WEIGHTS = [
    WeightKind(8, 0, False, "int"),
    WeightKind(4, 128, True, "int"),
    WeightKind(4, 32, False, "e2m1"),
    WeightKind(4, 32, False, "iq4"),
    WeightKind(8, 128, False, "e4m3"),
    WeightKind(8, 16, False, "int"),
]


Caught = list[tuple[Any, dict[str, Any]]]


def keep(kernels: Sequence[Any]) -> Caught:
    """What they are given from now on."""
    found: Caught = []
    for kernel in kernels:

        def run(*given: Any, _kernel: Any = kernel, **named: Any) -> None:
            args = dict(zip(_kernel.arg_names, given, strict=False))
            found.append((_kernel, args | named))

        kernel.run = run
    return found


def products(dtype: torch.dtype, kinds: Sequence[WeightKind]) -> Caught:
    """Products of few, some and many rows, with weights of these kinds and, plain, of experts."""
    found = keep((gpu_multiply.multiply, gpu_multiply.fill))
    gpu_launch.DEVICES = ("cpu",)
    cpu, made, size = torch.device("cpu"), list[tuple[GpuProduct, Shared | None]](), 2_048
    for kind in kinds:
        codes = torch.zeros(size, size, dtype=torch.uint8)
        scales = torch.ones(size, size // (kind.group or size))
        offsets = scales if kind.offsets else None
        weight = QuantizedWeight(codes, scales, offsets, kind.bits, 0, kind.numbers)
        made.append((GpuProduct.coded(weight, None, dtype, dtype, cpu), None))
    plain = torch.zeros(8, size, size, dtype=dtype)
    starts = torch.zeros(9, dtype=torch.int32)
    made.append((GpuProduct.plain(plain, plain[0], dtype), Shared(starts, starts)))
    for product, shared in made:
        for rows in (1, 32, 64, 600):
            product(torch.zeros(rows, size, dtype=dtype), shared)
    return found


def caught(kind: str, dtype: torch.dtype, heads: Heads, capability: int) -> Caught:
    """The kernels of a step with reads of every kind, each with what it is given by name."""
    group = heads.n_heads // heads.n_kv_heads
    tiles = tiles_for(group, heads.head_dim, dtype, wgmma=capability == 90)
    kernels = gpu_attention.attend, gpu_attention.merge, gpu_place.place
    found = keep((*kernels, gpu_rows.add_norm, gpu_rows.gated))
    paths = [TreePath(((0, 40), (1, 30)), 3, 1)] * 70 + [TreePath((), 5, 300)]
    case = make_tree_case(paths, heads, dtype, "cpu", seed=0, page=1)
    case = in_codes(case) if kind == "coded" else case
    capped = kind == "cap and sinks"
    cap, sinks = ({"cap": 30.0}, torch.zeros(heads.n_heads)) if capped else ({}, None)
    window = 64 if kind == "window" else None
    backend = GpuBackend(case.pool, heads.n_heads, windows=(None, window), tiles=tiles, **cap)
    plan = make_plan(case.rows, EVERYTHING._replace(least_view=backend.sharing.least_view))
    attention(backend.prepare(plan, case.table, case.slots), case, sinks=sinks)
    x = torch.zeros(3, 4_096, dtype=dtype)
    add_norm(Launch(gpu_rows.add_norm), x, x, x[0], 1e-6)
    gated(Launch(gpu_rows.gated), x)
    return found


def latents(n_heads: int, capability: int) -> Caught:
    """The kernels of a step over latents, as DeepSeek's models have them."""
    kernels = gpu_attention.attend, gpu_attention.merge, gpu_rows.place_latents
    found = keep(kernels)
    gpu_launch.DEVICES = ("cpu",)
    sizes, options = (
        LatentSizes(512, 64, 128, 128),
        TensorOptions(torch.bfloat16, torch.device("cpu")),
    )
    paths = [TreePath(((0, 40), (1, 30)), 3, 1)] * 70
    case = make_tree_case(paths, Heads(n_heads, 1, sizes.row), options.dtype, "cpu", seed=0, page=1)
    pool = KVPool(1, case.pool.capacity, 1, sizes.row, options.dtype, latent=True)
    backend = GpuLatentBackend(pool, [Expansion(sizes, n_heads, 1.0, options)])
    wgmma = capability == 90
    backend.kernels.tiles = tiles_for(n_heads, sizes.row, options.dtype, wgmma=wgmma, latent=True)
    plan = make_plan(case.rows, EVERYTHING._replace(least_view=backend.sharing.least_view))
    qkv = options.empty(case.slots.numel(), n_heads * sizes.key + sizes.row)
    backend.prepare(plan, case.table, case.slots)(0, qkv, unturned(qkv[:, None, :64]), None)
    return found


def compiled(kernel: Any, given: dict[str, Any], capability: int) -> dict[str, Any]:
    """What the kernel takes on GPUs of this capability."""
    given = {name: value for name, value in given.items() if name not in ("grid", "warmup")}
    options = {name: given.pop(name) for name in _OPTIONS if name in given}
    if "PRECISION" in given:
        x = given["q"] if "q" in given else given["x"]
        given["PRECISION"] = "tf32x3" if x.dtype == torch.float32 else "tf32"
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = given[name]
        if isinstance(value, Tensor):
            signature[name] = _TYPES[value.dtype]
            aligned[(place,)] = [["tt.divisibility", 16]]
        elif kernel.params[place].is_constexpr or value is None:
            signature[name], constants[(place,)] = "constexpr", value
        else:
            signature[name] = "i32" if isinstance(value, int) else "fp32"
            if isinstance(value, int) and value % 16 == 0:
                aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    return {
        "kernel": kernel.fn.__name__,
        "capability": capability,
        **{name: given[name] for name in ("KIND", "NUMBERS", "S", "M", "N", "D") if name in given},
        **options,
        "shared": made.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "mma": ptx.count("mma.sync"),
        "async": ptx.count("cp.async"),
        **_resources(made.asm["cubin"]),
    }


def _resources(cubin: bytes) -> dict[str, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", file.name]
        said = subprocess.check_output(command, text=True)  # noqa: S603
    return {
        name.lower(): int(count) for name, count in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)
    }


def rows(cases: Sequence[tuple[str, torch.dtype, Heads]]) -> Iterator[dict[str, Any]]:
    for kind, dtype, heads in cases:
        for capability in (90, 80):
            for kernel, given in caught(kind, dtype, heads, capability):
                name = f"{kind}, {dtype}, {tuple(heads)}"
                yield {"case": name, **compiled(kernel, given, capability)}
    for n_heads in (16, 20, 128):
        for capability in (90, 80):
            for kernel, given in latents(n_heads, capability):
                yield {"case": f"latents, {n_heads}", **compiled(kernel, given, capability)}
    for dtype, kinds in ((torch.bfloat16, WEIGHTS), (torch.float32, WEIGHTS[1:2])):
        for kernel, given in products(dtype, kinds):
            for capability in (90, 80):
                yield {"case": f"products, {dtype}", **compiled(kernel, given, capability)}


if __name__ == "__main__":
    for row in rows(CASES):
        print(json.dumps(row), flush=True)
