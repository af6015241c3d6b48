"""Random steps for attention, and what it must give: a dense float64 reference, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from radixlm.attention.attend import Attend, AttentionBackend
from radixlm.attention.backends import CpuBackend
from radixlm.attention.plan import ChunkSize, Sharing, make_plan
from radixlm.attention.torch_backend import TorchBackend, parts_of
from radixlm.core.batch import ScheduledRow, Segment, WindowMoves
from radixlm.layers.expansion import Expansion
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.linear import QueryKeyNorm
from radixlm.layers.rotary import Rotation
from radixlm.memory.pools import KVPool, LayerShape, ReqToTokenPool, WindowLayers
from radixlm.models import CausalLM
from tests.tensor.rows import extents_of, make_row

# With how near sums in them come to those in float64.
DTYPES = [(torch.float32, 5e-6), (torch.bfloat16, 3e-2)]
# Shares whatever can be shared.
EVERYTHING = Sharing(largest=99, fewest=1, shortest=0, least_saved=1, least_view=8)


class Heads(NamedTuple):
    n_heads: int
    n_kv_heads: int
    head_dim: int


HEADS = Heads(6, 2, 16)


class Case(NamedTuple):
    rows: list[ScheduledRow]
    pool: KVPool
    table: Tensor
    slots: Tensor
    q: Tensor
    k: Tensor
    v: Tensor


def make_case(
    shapes: list[tuple[int, int]],
    heads: Heads,
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    seed: int,
    scattered: bool,
) -> Case:
    """shapes: (tokens before, new tokens) per row. The pool around the rows holds NaN."""
    rng = np.random.default_rng(seed)
    total = sum(before + new for before, new in shapes)
    places = np.arange(3, total + 3)
    if scattered:
        places = rng.permutation(total + 20)[:total]
    rows = []
    table = ReqToTokenPool(len(shapes) + 2, max(before + new for before, new in shapes), device)
    taken = 0
    for index, (before, new) in enumerate(shapes):
        length = before + new
        own = places[taken : taken + length]
        rows.append(make_row([1] * length, slots=own, start=before, table_row=len(shapes) - index))
        table.apply(rows[-1:])
        taken += length
    return _filled(rows, table.table, places, heads, dtype, seed)


def in_codes(case: Case) -> Case:
    """The same with a pool that is coded; where the other holds NaN, scales do."""
    old = case.pool
    shape = old.n_layers, old.capacity, old.n_kv_heads, old.head_dim
    pool = KVPool(*shape, old.dtype, old.device, coded=True)
    pool.write(1, torch.arange(old.capacity, device=old.device), old.keys[1], old.values[1])
    return case._replace(pool=pool)


def apart(case: Case, window: int) -> Case:
    """The same with slots of their own for layer 1, for the tokens that new ones see; what others
    have there is NaN, and so is the rest.
    """
    old = case.pool
    seen = [case.table[row.row, max(row.start + 1 - window, 0) : row.stop] for row in case.rows]
    slots = torch.cat(seen).unique().long()
    order = torch.randperm(slots.numel(), generator=torch.Generator().manual_seed(window)) + 1
    layers = WindowLayers(frozenset({1}), slots.numel() + 1)
    shape = old.n_layers, old.capacity, old.n_kv_heads, old.head_dim
    pool = KVPool(*shape, old.dtype, old.device, windows=layers)
    pool.move(WindowMoves(slots.int().cpu().numpy(), order.int().numpy()))
    for side, other in ((pool.keys[1], old.keys[1]), (pool.values[1], old.values[1])):
        side.fill_(float("nan"))
        side[order] = other[slots]
    return case._replace(pool=pool)


class Path(NamedTuple):
    """A row of a tree: (node, its tokens) from the top, then tokens of its own, then new ones."""

    nodes: tuple[tuple[int, int], ...]
    private: int
    new: int


def make_tree_case(
    paths: Sequence[Path],
    heads: Heads,
    dtype: torch.dtype,
    device: str | torch.device,
    *,
    seed: int,
    page: int,
) -> Case:
    """Rows that share nodes, whose lengths are multiples of `page`. Page 0: every node one run."""
    rng = np.random.default_rng(seed)
    lengths = {node: tokens for path in paths for node, tokens in path.nodes}
    own = [path.private + path.new for path in paths]
    total = sum(lengths.values()) + sum(own)
    places = np.arange(3, total + 3)
    if page:
        pages = rng.permutation(-(-total // page))
        places = (pages[:, None] * page + np.arange(page)).flatten()
    parts = np.split(places, np.cumsum([*lengths.values(), *own]))
    of_node = dict(zip(lengths, parts, strict=False))
    table = ReqToTokenPool(len(paths) + 2, total, device)
    rows = []
    for index, (path, tail) in enumerate(zip(paths, parts[len(lengths) : -1], strict=True)):
        slots = [of_node[node] for node, _ in path.nodes]
        everything = np.concatenate([*slots, tail])
        start = everything.size - path.new
        row = make_row([1] * everything.size, slots=everything, start=start, table_row=index + 1)
        rows.append(replace(row, segments=_segments(path, slots, tail)))
        table.apply(rows[-1:])
    return _filled(rows, table.table, places, heads, dtype, seed)


def _segments(path: Path, slots: Sequence[np.ndarray], tail: np.ndarray) -> tuple[Segment, ...]:
    made = []
    start = 0
    for (node, tokens), of_node in zip(path.nodes, slots, strict=True):
        made.append(Segment(node, start, start + tokens, extents_of(of_node)))
        start += tokens
    return (*made, Segment(None, start, start + tail.size, extents_of(tail)))


def random_tree(rng: np.random.Generator, *, depth: int, page: int) -> list[Path]:
    """Leaves of a random tree, depth first; some rows end inside it, some share nothing."""
    paths: list[Path] = []
    count = 0

    def grow(above: tuple[tuple[int, int], ...]) -> None:
        nonlocal count
        for _ in range(int(rng.integers(1, 4)) if len(above) < depth else 0):
            count += 1
            tokens = max(page, 1) * int(rng.choice([1, 2, 5, 9, 20]))
            grow((*above, (count, tokens)))
        for _ in range(int(rng.choice([0, 1, 2])) if len(above) < depth else 1):
            private, new = int(rng.choice([0, 0, 3, 40])), int(rng.choice([1, 1, 1, 2, 30]))
            paths.append(Path(above, private, new))

    grow(())
    keep = sorted(rng.permutation(len(paths))[:24])
    return [paths[index] for index in keep]


def _filled(
    rows: list[ScheduledRow],
    table: Tensor,
    places: np.ndarray,
    heads: Heads,
    dtype: torch.dtype,
    seed: int,
) -> Case:
    """The case, with noise in `places` and NaN in the rest of the pool."""
    device = table.device
    pool = KVPool(2, int(places.max()) + 20, heads.n_kv_heads, heads.head_dim, dtype, device)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (pool.keys[1], pool.values[1]):
        tensor.fill_(float("nan"))
        noise = torch.randn((places.size, heads.n_kv_heads, heads.head_dim), generator=generator)
        tensor[torch.as_tensor(places)] = noise.to(dtype).to(device)
    slots = torch.as_tensor(np.concatenate([row.new_slots for row in rows]), dtype=torch.int64)
    width = heads.n_heads + 2 * heads.n_kv_heads
    qkv = torch.randn((slots.numel(), width, heads.head_dim), generator=generator)
    q, k, v = (
        qkv.to(dtype).to(device).split((heads.n_heads, heads.n_kv_heads, heads.n_kv_heads), dim=1)
    )
    return Case(rows, pool, table, slots.to(device), q, k, v)


def _on_the_cpu(least_queries: int) -> Callable[..., AttentionBackend]:
    return partial(CpuBackend, least_queries=least_queries)


def _of_a_gpu(*given: Any, **named: Any) -> AttentionBackend:
    """Its kernels are Triton's, which is not everywhere."""
    return import_module("radixlm.attention.gpu_backend").GpuBackend(*given, **named)


# The product's two backends on a CPU, torch's with groups of one size, and the CPU's with one way
# of computing for everything.
BACKENDS: dict[str, Callable[..., AttentionBackend]] = {
    "torch": TorchBackend,
    "torch 1": partial(TorchBackend, group_tokens=1),
    "torch 150": partial(TorchBackend, group_tokens=150),
    "cpu": CpuBackend,
    "direct": _on_the_cpu(1 << 30),
    "tiles": _on_the_cpu(1),
}


ALL_BACKENDS = BACKENDS | {"gpu": _of_a_gpu}


def run(
    case: Case,
    sharing: Sharing | None = None,
    backend: str = "torch",
    window: int | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """window: of the layer that is computed; the one before it has none."""
    made = ALL_BACKENDS[backend](case.pool, case.q.shape[1], windows=(None, window), cap=cap)
    if sharing is not None and backend == "gpu":  # which reads no slots but those of a table
        sharing = sharing._replace(least_view=made.sharing.least_view)
    plan = make_plan(case.rows, sharing)
    return attention(made.prepare(plan, case.table, case.slots), case, sinks=sinks)


def attention(
    attend: Attend, case: Case, new: slice = slice(None), sinks: Tensor | None = None
) -> Tensor:
    """Of these tokens, (tokens, n_heads, head_dim): nothing is normed or turned."""
    parts = [part[new] for part in (case.q, case.k, case.v)]
    qkv = torch.cat(parts, dim=1).flatten(1)
    # One strided tensor, as a wider projection would give it.
    qkv = torch.cat((qkv, qkv), dim=1)[:, : qkv.shape[1]]
    return attend(1, qkv, unturned(case.q[new]), None, sinks).view(parts[0].shape)


def unturned(x: Tensor) -> Rotation:
    """Rotations by nothing, of tokens (tokens, heads, head_dim)."""
    half = torch.ones(x.shape[0], x.shape[2] // 2, dtype=x.dtype, device=x.device)
    return Rotation(torch.cat((half, 0 * half), dim=1))


def reference(
    case: Case, window: int | None = None, cap: float = 0.0, sinks: Tensor | None = None
) -> Tensor:
    """After `run`: reads the pool by the rows' slots; plain scores, softmax, sum, in float64."""
    out = []
    token = 0
    for row in case.rows:
        slots = case.table[row.row, : row.stop].long()
        shared = case.q.shape[1] // case.k.shape[1]
        keys, values = (
            numbers.double().repeat_interleave(shared, dim=1)
            for numbers in case.pool.read(1, slots)
        )
        queries = case.q[token : token + row.n_new].double()
        scores = torch.einsum("nhd,thd->nht", queries, keys) * queries.shape[-1] ** -0.5
        if cap:
            scores = cap * (scores / cap).tanh()
        position = torch.arange(row.stop, device=slots.device)
        hidden = ~seen(position[row.start :], position, window)
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        weights = softmax_with(scores, sinks)
        out.append(torch.einsum("nht,thd->nhd", weights, values))
        token += row.n_new
    return torch.cat(out)


def seen(tokens: Tensor, context: Tensor, window: int | None) -> Tensor:
    """(tokens, context): which of the context's positions those at `tokens` see."""
    since = tokens[:, None] - context
    if isinstance(window, ChunkSize):
        return (since >= 0) & (tokens[:, None] // window == context // window)
    return (since >= 0) & (since < window) if window else since >= 0


# What a step of many rows over a tree may have beside them.
KINDS = ("plain", "cap and sinks", "window", "coded", "apart")


def worst_in_trees(
    kind: str,
    dtype: torch.dtype,
    device: str | torch.device,
    heads: Heads = HEADS,
    backend: str = "torch",
    most: int = 24,
) -> float:
    """How far attention is from the reference, in steps over random trees. most: rows of each."""
    window, found = 30 if kind in ("window", "apart") else None, []
    beside: dict[str, Any] = {}
    if kind == "cap and sinks":
        sinks = torch.tensor([-300.0, -1.0, 0.5, 4.0, 40.0, 300.0], device=device)
        beside = {"cap": 1.5, "sinks": sinks}
    for seed, page in enumerate((0, 1, 4)):
        paths = random_tree(np.random.default_rng(seed), depth=3, page=page)[:most]
        case = make_tree_case(paths, heads, dtype, device, seed=seed, page=page)
        case = in_codes(case) if kind == "coded" else case
        wanted = None
        if kind == "apart":
            run(case)
            wanted, case = reference(case, window), apart(case, window or 0)
        out = run(case, EVERYTHING, backend, window, **beside)
        wanted = reference(case, window, **beside) if wanted is None else wanted
        found.append((out.double() - wanted).abs().max().item())
    return max(found)


def softmax_with(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Of scores (tokens, heads, context), beside which each head has a sink, if there are any."""
    if sinks is None:
        return scores.softmax(-1)
    beside = sinks.to(scores)[None, :, None].expand(scores.shape[0], -1, 1)
    return torch.cat((scores, beside), dim=-1).softmax(-1)[..., :-1]


def random_shapes(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Decodes, whole prompts and continued chunks, some past the length of a query block."""
    shapes = []
    for _ in range(int(rng.integers(1, 9))):
        before = int(rng.choice([0, 1, 5, 60, 200]))
        new = int(rng.choice([1, 1, 1, 2, 7, 64, 300]))
        shapes.append((before, new))
    return shapes


def dense_for(model: CausalLM) -> DenseAttend | DenseLatents:
    """What a model's layers are to be given by attention."""
    config = model.config
    if model.expansions:
        return DenseLatents(model.expansions, config.traits.indexer)
    made = DenseAttend(config.n_kv_heads, config.windows, config.traits.score_cap)
    made.shapes = config.traits.shapes
    return made


class IndexInputs(NamedTuple):
    """What an index has of some tokens, in float64: queries (tokens, heads, size), keys (tokens,
    size) as they are kept, weights (tokens, heads).
    """

    queries: Tensor
    keys: Tensor
    weights: Tensor

    @classmethod
    def of(cls, sizes: IndexSizes, given: Tensor, rotation: Rotation) -> IndexInputs:
        """given: see `IndexSizes.parts`."""
        queries, keys, weights = given.split(sizes.parts(), dim=1)
        turned = rotation.table.shape[1]
        heads = torch.cat((queries.unflatten(1, (-1, sizes.size)), keys[:, None]), dim=1)
        heads = torch.cat((rotation.turned(heads[..., :turned]), heads[..., turned:]), dim=-1)
        return cls(heads[:, :-1].double(), heads[:, -1].double(), weights.double())

    def scores(self, keys: Tensor) -> Tensor:
        """(tokens, keys)."""
        of_heads = torch.einsum("nhd,td->nht", self.queries, keys.double()).relu()
        return torch.einsum("nh,nht->nt", self.weights, of_heads)


def chosen(count: int, scores: Tensor, seen: Tensor) -> Tensor:
    """Those of the best scores among what is seen, both (queries, keys)."""
    best = scores.masked_fill(~seen, float("-inf")).topk(min(count, scores.shape[1]), dim=1)
    return torch.zeros_like(seen).scatter_(1, best.indices, value=True) & seen


class DenseLatents:
    """As `DenseAttend`, of a model with latents: each head's keys and values are made, in float64,
    as its paper has it; what an index leaves out is not seen.
    """

    def __init__(self, expansions: Sequence[Expansion], index: IndexSizes | None = None) -> None:
        self._expansions, self._index = expansions, index
        self._seen = torch.ones(0)

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        up = self._expansions[layer]
        rank, turned, plain, values = up.sizes[:4]
        heads, count = up.n_heads, qkv.shape[0]
        width = heads * (plain + turned)
        queries, latents, key, of_index = qkv.tensor_split(
            (width, width + rank, width + rank + turned), dim=1
        )
        q = queries.reshape(count, heads, plain + turned)
        q = torch.cat((q[..., :plain], rotation.turned(q[..., plain:])), dim=-1)
        q = rotation.multiplied(q).double()
        key = rotation.turned(key[:, None]).double().expand(-1, heads, -1)
        weight = up.weight.double().view(heads, plain + values, rank)
        made = torch.einsum("tr,hdr->thd", latents.double(), weight)
        k = torch.cat((made[..., :plain], key), dim=-1)
        scores = torch.einsum("nhd,thd->nht", q, k) * up.scale
        if self._index is None or self._index.layers[layer]:
            self._seen = torch.ones(count, count, dtype=torch.bool).tril()
        if self._index is not None and self._index.layers[layer]:
            turning = IndexInputs.of(self._index, of_index, rotation)
            self._seen &= chosen(self._index.chosen, turning.scores(turning.keys), self._seen)
        weights = scores.masked_fill(~self._seen[:, None], float("-inf")).softmax(-1)
        answers = torch.einsum("nht,thd->nhd", weights, made[..., plain:])
        return answers.flatten(1).to(qkv.dtype)


class DenseAttend:
    """Causal attention among one sequence's tokens, each step all of them: no cache at all."""

    def __init__(
        self, n_kv_heads: int, windows: Sequence[int | None] = (), cap: float = 0.0
    ) -> None:
        self._n_kv_heads, self._windows, self._cap = n_kv_heads, windows, cap
        # Of layers that differ; what each one wrote, for those that read it.
        self.shapes: Sequence[LayerShape] = ()
        self._written: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        layer: int,
        qkv: Tensor,
        rotation: Rotation,
        norm: QueryKeyNorm | None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        shape = self.shapes[layer] if self.shapes else LayerShape(self._n_kv_heads, 0)
        source = shape.source
        q, k, v = parts_of(qkv, 0 if source is not None else shape.n_kv_heads, rotation, norm)
        k, v = self._written[layer] = self._written[source] if source is not None else (k, v)
        count = q.shape[0]
        at = torch.arange(count)
        hidden = ~seen(at, at, self._windows[layer] if self._windows else None)
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("nhd,thd->nht", q, k) * q.shape[-1] ** -0.5
        if self._cap:
            scores = self._cap * (scores / self._cap).tanh()
        scores = scores.masked_fill(hidden[:, None], float("-inf"))
        return torch.einsum("nht,thd->nhd", softmax_with(scores, sinks), v).flatten(1)
