"""How fast attention by our own kernels is, and which tiles are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Attend, AttentionBackend
from radixlm.attention.backends import make_backend
from radixlm.attention.plan import AttentionPlan, make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, ReqToTokenPool
from scripts.gpu_check.place import Finding, Place, rounded
from scripts.gpu_check.steps import Step

_STEPS = [
    Step("", 256, 1_000),
    Step("", 256, 4_224, shared=4_096),
    Step("", 1, 32_000),
    Step("", 1, 1_000),
    Step("", 32, 1_000),
    Step("", 64, 1_050, shared=1_000),
    Step("", 1, 0, 2_048),
    Step("", 1, 30_000, 2_048),
]
_SMALL = [Step("", 2, 40), Step("", 4, 90, shared=64)]
_HEADS = (32, 8, 128)


class Layer(NamedTuple):
    """One layer's attention of a step. gb: what it reads of keys and values."""

    attend: Attend
    qkv: Tensor
    rotation: Rotation
    gb: float

    def run(self) -> Tensor:
        return self.attend(0, self.qkv, self.rotation, None)


def layer_of(
    step: Step, place: Place, make: Callable[[KVPool, int], AttentionBackend], *, sharing: bool
) -> Layer:
    """With the heads of an 8B model."""
    heads, kv, head_dim = (4, 2, 16) if place.small else _HEADS
    batch = step.batch(begins=True)
    pool = KVPool(1, step.tokens, kv, head_dim, torch.bfloat16, place.device)
    table = ReqToTokenPool(step.rows, step.before + step.new, place.device)
    table.apply(batch.rows)
    backend = make(pool, heads)
    slots = torch.from_numpy(np.concatenate([row.new_slots for row in batch.rows]))
    tokens = step.rows * step.new
    qkv = torch.randn(tokens, (heads + 2 * kv) * head_dim, device=place.device).bfloat16()
    turning = torch.ones(tokens, head_dim, device=place.device, dtype=torch.bfloat16)
    turning[:, head_dim // 2 :] = 0  # by nothing
    plan: AttentionPlan = make_plan(batch.rows, backend.sharing if sharing else None)
    attend = backend.prepare(plan, table.table, slots.long().to(place.device))
    return Layer(attend, qkv, Rotation(turning), plan.kv_tokens_read * pool.layer_bytes(0) / 1e9)


def said(step: Step) -> str:
    new = f", {step.new:,} new" if step.new > 1 else ""
    return f"{step.rows} rows of {step.before:,} tokens, {step.shared:,} shared{new}"


@torch.inference_mode()
def attention(place: Place) -> Iterator[Finding]:
    """One layer by each backend, reads of the context alone and together."""
    for step in _SMALL if place.small else _STEPS:
        for name, make in (("ours", make_backend), ("torch", TorchBackend)):
            for sharing in (True, False) if step.shared else (False,):
                layer = layer_of(step, place, make, sharing=sharing)
                how = ", together" if sharing else ", alone" if step.shared else ""
                as_graph = name == "ours" and place.on_gpu
                found = timed(layer, place, as_graph=as_graph)
                yield {"what": f"{name}: {said(step)}{how}", **found}


def timed(layer: Layer, place: Place, *, as_graph: bool = True) -> Mapping[str, float]:
    """us: called by the host, gpu_us: as one graph."""
    found = {"us": rounded(place.seconds(layer.run) * 1e6)}
    if as_graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                layer.run()
        seconds = place.seconds(graph.replay, calls=3) / 10
        found |= {"gpu_us": rounded(seconds * 1e6), "gb_per_s": rounded(layer.gb / seconds)}
    return found


@torch.inference_mode()
def tiles(place: Place) -> Iterator[Finding]:
    """Other tiles than those that are chosen."""
    if not place.on_gpu:
        yield {"what": "tiles", "skipped": "no GPU"}
        return
    from radixlm.attention.gpu_backend import GpuBackend, tiles_for  # noqa: PLC0415

    few, many = tiles_for(_HEADS[0] // _HEADS[1], _HEADS[2], torch.bfloat16, wgmma=True)
    for tokens, warps, stages, programs in (
        (32, 4, 3, 4),
        (32, 4, 5, 3),
        (64, 4, 3, 3),
        (64, 4, 5, 2),
        (128, 8, 3, 2),
        (32, 4, 7, 3),
    ):
        its = few._replace(tokens=tokens, warps=warps, stages=stages, programs=programs)
        make = partial(GpuBackend, tiles=(its, many))
        for step in _STEPS[0], _STEPS[2], _STEPS[3]:
            layer = layer_of(step, place, make, sharing=True)
            yield {"what": f"{tuple(its)}: {said(step)}", **timed(layer, place)}
    for queries, tokens, warps, stages, programs in (
        (128, 64, 8, 3, 1),
        (64, 64, 4, 3, 2),
        (128, 64, 8, 5, 1),
        (128, 128, 8, 3, 1),
        (128, 32, 8, 5, 2),
    ):
        its = many._replace(
            queries=queries, tokens=tokens, warps=warps, stages=stages, programs=programs
        )
        make = partial(GpuBackend, tiles=(few, its))
        for step in _STEPS[1], _STEPS[6]:
            layer = layer_of(step, place, make, sharing=True)
            yield {"what": f"{tuple(its)}: {said(step)}", **timed(layer, place)}


@torch.inference_mode()
def launches(place: Place) -> Iterator[Finding]:
    """What the host takes to launch: torch's operations, Triton's kernels in two ways."""
    if not place.on_gpu:
        yield {"what": "launches", "skipped": "no GPU"}
        return
    from radixlm.kernels.gpu_attention import merge  # noqa: PLC0415
    from radixlm.kernels.gpu_launch import Launch  # noqa: PLC0415

    x = torch.zeros(8, 128, device=place.device)
    numbers = torch.zeros(8, dtype=torch.int64, device=place.device)
    given = (numbers, x, x, x, None)
    named = {"HEADS": 1, "SIZE": 128, "D": 128, "J": 16}
    ours = Launch(merge)
    for name, work in (
        ("torch, one operation", partial(x.add_, 1)),
        ("torch, empty", partial(x.new_empty, 8, 128)),
        ("Triton", partial(merge[(8,)], *given, **named)),
        ("ours", partial(ours, 0, (8,), given, named)),
    ):
        seconds = place.seconds(work, calls=500, rounds=3)
        yield {"what": f"launch: {name}", "us": rounded(seconds * 1e6)}
