"""Attention as a model calls it, once per layer, and layers that see less than others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from radixlm.attention.plan import AttentionPlan, ChunkSize, Sharing
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.staging import Sending


class Attend(Protocol):
    """Attention of one step's new tokens over everything their rows have in the pool.

    layer: index of the decoder layer, from 0.
    qkv: (tokens, (n_heads + 2 n_kv_heads) x head_dim), of each new token the queries, keys and
        values as the projection gives them; contiguous within a token, and overwritten. Of a layer
        that reads another's keys and values (`LayerShape.source`) the queries alone.
    norm, rotation: what is done to queries and keys first, in this order, unless the norm comes
        after. Then keys and values are written to the pool at this step's slots, before anything
        is read.
    sinks: (n_heads,) float32, of each head a score that has a weight in the softmax and no value.

    Scores are scaled by 1 / sqrt(head_dim). Returns (tokens, n_heads x head_dim), as qkv's type.
    """

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor: ...


class Reading(Protocol):
    """Attention over what is in the pool already.

    q: (tokens, n_heads x head_dim), contiguous within a token, queries as they are used but for the
        factor 1 / sqrt(head_dim). Returns the same shape, of latents perhaps only what is value.
    """

    def read(self, layer: int, q: Tensor) -> Tensor: ...


class AttentionBackend(Protocol):
    """A way to compute attention over one pool, made once. sharing: what pays, for `make_plan`."""

    sharing: Sharing

    def prepare(
        self, plan: AttentionPlan, table: Tensor, slots: Tensor, staging: Sending | None = None, /
    ) -> Attend:
        """One step's attention.

        table: (rows, context) int32, the request table with this step applied.
        slots: (tokens,) int64, where the step's new tokens go.
        staging: by which the device gets what it needs of the step; on another device than the CPU
            nothing of `table` and `slots` is read before it is sent. None: all is there.
        """
        ...


def by_layer(
    plan: AttentionPlan,
    windows: Sequence[int | None],
    make: Callable[[AttentionPlan, int | None, bool], Attend],
    *,
    apart: bool = False,
    fixed: bool = False,
) -> Attend:
    """One step's attention, made once for each kind of layer by make(plan, window, own). window:
    what of the plan's reads a token is not to see; chunks are in the plan. own: whether it has
    slots of its own, as all layers with a window do where these are `apart`.

    windows: of each layer how many tokens a token sees, itself included, or the size of its chunk;
    None: all before it. Empty: no layer has one. Where contexts are shorter than windows, all
    layers have one plan, unless it is fixed: then each kind of layer has the same calls in all
    steps.
    """
    if not windows:
        return make(plan, None, False)
    plans = {window: plan.within(window) for window in windows}
    if fixed:
        plans |= {window: its.alone() for window, its in plans.items() if window and its is plan}
    kinds = {window: (id(its), apart and window is not None) for window, its in plans.items()}
    made: dict[tuple[int, bool], Attend] = {}
    for window, its in plans.items():
        hides = its is not plan and not isinstance(window, ChunkSize)
        made[kinds[window]] = make(its, window if hides else None, kinds[window][1])
    attends = [made[kinds[window]] for window in windows]
    if len(made) == 1:
        return attends[0]
    return lambda layer, *given, **named: attends[layer](layer, *given, **named)
