"""Changes made to weights once, when they are read, so that layers need not know of them.

traits                        weights
interleaved, share of rope    rows of queries and keys: what turns together stands half a head apart
attention, residual, values   queries, or their norms, and what layers add are multiplied
norms.base                    is added
experts.stacked               one tensor is one for each expert
experts.paired                rows of gates come first, then those of up
gated_queries                 rows of gates come first, then those of queries
state                         rows come by kind, not by head
factors                       are multiplied
renamed                       names of layers here; see `stored_names`
spare_layers, spare           left out: they only propose tokens, which the model then would check
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.expansion import LatentSizes
from radixlm.layers.index_keys import IndexSizes
from radixlm.models.model_config import ModelConfig
from radixlm.models.safetensors_files import Checkpoint
from radixlm.models.stored_names import Renamed
from radixlm.products.quantized import QuantizedWeight

_OF_LAYER = re.compile(r"model\.layers\.(\d{1,9})\.", re.ASCII)


class Fold(NamedTuple):
    """order: of the first dimension, or of the last. factors: of all, or of each row."""

    factors: float | Tensor = 1.0
    base: float = 0.0
    order: Tensor | None = None
    last: bool = False

    def __call__(self, weight: Tensor | QuantizedWeight) -> Tensor | QuantizedWeight:
        if isinstance(weight, QuantizedWeight):
            return _multiplied(
                weight if self.order is None else weight.rows(self.order), self.factors
            )
        if self.order is not None:
            weight = weight.index_select(weight.dim() - 1 if self.last else 0, self.order)
        if isinstance(self.factors, Tensor):
            return weight.float() * self.factors.view(-1, *[1] * (weight.dim() - 1))
        if self.factors != 1 or self.base:
            return weight.float() * self.factors + self.base
        return weight


def _multiplied(weight: QuantizedWeight, factors: float | Tensor) -> QuantizedWeight:
    if isinstance(factors, float) and factors == 1:
        return weight
    by = factors.view(-1, 1) if isinstance(factors, Tensor) else factors
    offsets = None if weight.offsets is None else weight.offsets * by
    return replace(weight, scales=weight.scales * by, offsets=offsets, steps=None)


def folds_of(config: ModelConfig) -> dict[str, Fold]:
    """The changes by the names of weights; empty for Llama and its like."""
    traits, norms = config.traits, config.traits.norms
    of_layer: dict[str, Fold] = {}
    # What experts give is multiplied by their router.
    added = {f"{traits.mlp}.{traits.down}": traits.residual}
    added[f"self_attn.{traits.output}"] = traits.residual * traits.values
    if traits.state is not None:
        added[f"{traits.state.place}.out_proj"] = traits.residual
    if traits.experts is not None and traits.experts.shared:
        name = f"{traits.experts.shared_place}.{traits.experts.shared_names[-1]}"
        added[f"{traits.mlp}.{name}" if traits.mlp else name] = traits.residual
    for name, factor in added.items():
        if factor != 1:
            of_layer |= dict.fromkeys((f"{name}.weight", f"{name}.bias"), Fold(factor))
    for name, rows in traits.factors:
        each = torch.cat([torch.full((max(count, 1),), factor) for count, factor in rows])
        of_layer[name] = Fold(each if rows[0][0] else rows[0][1])
    if traits.experts is not None and traits.experts.paired:
        order = torch.arange(2 * traits.experts.size).view(-1, 2).t().flatten()
        for number, name in product(range(traits.experts.number), traits.experts.gate_up):
            place = f"{traits.mlp}.{name.format(number)}"
            of_layer |= dict.fromkeys((f"{place}.weight", f"{place}.bias"), Fold(order=order))
    made: dict[str, Fold] = {}
    of_shape = {shape[:2]: config.of_layer(n) for n, shape in enumerate(config.kv_shapes)}
    of_attention = {shape: _attention_folds(its) for shape, its in of_shape.items()}
    if traits.state is not None:
        place = traits.state.place
        of_layer |= {f"{place}.{n}.weight": Fold(order=o) for n, o in traits.state.orders().items()}
    if norms.base:
        names = (norms.attention, norms.after_attention, norms.mlp, norms.after_mlp)
        of_layer |= {f"{name}.weight": Fold(base=norms.base) for name in names if name}
        made[f"model.{norms.last}.weight"] = Fold(base=norms.base)
    for layer, mixer in enumerate(config.mixers):
        # A state's products may have the names of attention's.
        its = {} if mixer == "state" else of_attention[config.kv_shapes[layer][:2]]
        its = its | of_layer
        made |= {f"model.layers.{layer}.{name}": fold for name, fold in its.items()}
    return made


def _latent_folds(config: ModelConfig, sizes: LatentSizes) -> dict[str, Fold]:
    """The changes of latent models' weights: the dimensions that turn as pairs are put half a head
    apart.
    """
    turned = torch.arange(sizes.turned).view(-1, 2).t().flatten()
    made = _index_folds(config.traits.indexer, turned)
    if not config.traits.interleaved:
        return made

    def after(stays: int, heads: int, gates: int = 0) -> Fold:
        """gates: a head's last rows, which come after those of all heads."""
        order = torch.cat((torch.arange(stays), turned + stays))
        first = torch.arange(heads)[:, None] * (order.numel() + gates)
        last = first + order.numel() + torch.arange(gates)
        return Fold(order=torch.cat(((first + order).flatten(), last.flatten())))

    queries = "q_b_proj" if sizes.queries else "q_proj"
    gates = sizes.values if sizes.gated else 0
    rows = after(sizes.rank, 1)
    return made | {
        f"self_attn.{queries}.weight": after(sizes.plain, config.n_heads, gates),
        "self_attn.kv_a_proj_with_mqa.weight": rows,
        "self_attn.kv_a_proj_with_mqa.bias": rows,
    }


def _index_folds(index: IndexSizes | None, turned: Tensor) -> dict[str, Fold]:
    """The same of an index, in which the first numbers of a head turn. turned: their order."""
    if index is None or not index.interleaved:
        return {}
    order = torch.cat((turned, torch.arange(turned.numel(), index.size)))
    key = Fold(order=order)
    return {
        "self_attn.indexer.wq_b.weight": Fold(order=_of_heads(order, index.size, index.heads)),
        "self_attn.indexer.wk.weight": key,
        "self_attn.indexer.k_norm.weight": key,
        "self_attn.indexer.k_norm.bias": key,
    }


def _attention_folds(config: ModelConfig) -> dict[str, Fold]:
    if config.traits.latents is not None:
        return _latent_folds(config, config.traits.latents)
    traits, heads = config.traits, (config.n_heads, config.n_kv_heads)
    order, factor = _order(config), 1.0
    if traits.attention is not None:
        factor = traits.attention * math.sqrt(config.head_dim)
    gated = traits.gated_queries
    if order is None and factor == 1 and not (traits.qk_norm and traits.norms.base) and not gated:
        return {}
    made: dict[str, Fold]
    at_norms = traits.qk_norm is not None
    rows = [_of_heads(order, config.head_dim, count) for count in heads]
    if gated:
        rows[0] = _gates_first(order, config.head_dim, config.n_heads)
    factors = [1.0 if at_norms else factor, 1.0]
    if len(traits.qkv) == 1:
        made = {traits.qkv[0]: _together(rows, factors, config)}
    else:
        made = {
            name: Fold(by, 0, its) for name, by, its in zip(traits.qkv, factors, rows, strict=False)
        }
    found = {
        f"self_attn.{name}.{kind}": fold
        for name, fold in made.items()
        for kind in ("weight", "bias")
    }
    return found | _norm_folds(config, order, rows, factor)


def _norm_folds(
    config: ModelConfig, order: Tensor | None, rows: list[Tensor | None], factor: float
) -> dict[str, Fold]:
    norms = config.traits.qk_norm
    if norms is None or not norms.names:
        return {}
    made: dict[str, Fold] = {}
    for name, count, its, by in zip(
        norms.names, (config.n_heads, config.n_kv_heads), rows, (factor, 1.0), strict=True
    ):
        fold = Fold(
            by, by * config.traits.norms.base, its if norms.kind == "row" else order, last=True
        )
        each = [name.format(head) for head in range(count)] if "{}" in name else [name]
        made |= {f"self_attn.{one}": fold for one in each}
    return made


def _order(config: ModelConfig) -> Tensor | None:
    """The order in which the stored dimensions of a head are put; None: they stay."""
    head_dim, turned = config.head_dim, config.rope.turned(config.head_dim)
    if config.traits.interleaved:
        pairs = torch.arange(turned).view(-1, 2).t()
    else:
        pairs = torch.arange(turned).view(2, -1)
    rest = torch.arange(turned, head_dim).view(2, -1)
    order = torch.cat((pairs, rest), dim=1).flatten()
    return None if torch.equal(order, torch.arange(head_dim)) else order


def _of_heads(order: Tensor | None, head_dim: int, heads: int) -> Tensor | None:
    """The order of all rows of `heads` heads."""
    if order is None:
        return None
    return (torch.arange(heads)[:, None] * head_dim + order).flatten()


def _gates_first(order: Tensor | None, head_dim: int, heads: int) -> Tensor:
    """The order of rows that are stored as each head's queries, then its gates."""
    own = torch.arange(head_dim) if order is None else order
    first = 2 * head_dim * torch.arange(heads)[:, None]
    gates = first + head_dim + torch.arange(head_dim)
    return torch.cat((gates.flatten(), (first + own).flatten()))


def _together(rows: list[Tensor | None], factors: list[float], config: ModelConfig) -> Fold:
    """The changes of one tensor with queries, keys and values."""
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    order = None
    if rows[0] is not None and rows[1] is not None:
        order = torch.cat((rows[0], rows[1] + q, torch.arange(q + kv, q + 2 * kv)))
    if factors[0] == 1:
        return Fold(order=order)
    each = torch.ones(q + 2 * kv)
    each[:q] = factors[0]
    return Fold(each, 0, order)


class _Stack(NamedTuple):
    """A kind of tensors with all experts' weights: what each one's is, how many sizes there are,
    and whether each is (in, out): these sizes, where only they tell. halves: experts can be stored
    one by one, too; then gate and up are apart.
    """

    kind: str
    sizes: int
    turned: bool | tuple[int, int]
    halves: bool = False


def _stacks(config: ModelConfig) -> dict[str, _Stack]:
    """The stacked tensors by the ends of their names."""
    experts = config.traits.experts
    if experts is None or not experts.stacked:
        return {}
    names = [name.removesuffix(".{}") for name in (*experts.gate_up, experts.down)]
    if experts.stacked == "or one by one":
        either = _Stack("weight", 3, turned=False, halves=True)
        return dict.fromkeys((".experts.gate_up_proj", ".experts.down_proj"), either)
    if experts.stacked == "rows":
        rows = _Stack("weight", 3, turned=False)
        return dict.fromkeys((f".{name}{end}" for name in names for end in ("", ".weight")), rows)
    if experts.stacked == "either":
        ways = [(config.hidden_size, 2 * experts.size), (experts.size, config.hidden_size)]
        return {f".{name}": _Stack("weight", 3, way) for name, way in zip(names, ways, strict=True)}
    weights = {f".{name}": _Stack("weight", 3, turned=True) for name in names}
    return weights | {f".{name}_bias": _Stack("bias", 2, turned=False) for name in names}


class Folded:
    """See `Checkpoint`: one whose weights are what the layers of this model expect."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: ModelConfig,
        folds: Callable[[ModelConfig], dict[str, Fold]] = folds_of,
    ) -> None:
        checkpoint = Renamed(checkpoint, config.traits.renamed)
        self.where, self.is_quantized = checkpoint.where, checkpoint.is_quantized
        self._checkpoint, self._config, self._of = checkpoint, config, folds
        stacks = _stacks(config)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._parts: dict[str, tuple[str, int | tuple[int, slice], bool]] = {}
        # What was read last, of which more may be wanted.
        self._stack: tuple[str, Tensor | QuantizedWeight] | None = None
        for name, shape in checkpoint.shapes.items():
            layer = _OF_LAYER.match(name)
            beyond = -1 if layer is None else int(layer[1]) - config.n_layers
            if 0 <= beyond < config.traits.spare_layers or name.startswith(config.traits.spare):
                continue
            end = next((end for end in stacks if name.endswith(end)), None)
            if end is None or len(shape) != stacks[end].sizes:
                self.shapes[name] = shape
                continue
            kind, _, way, halves = stacks[end]
            turned = way if isinstance(way, bool) else shape[1:] == way
            place = name.removesuffix(".weight").removesuffix("_bias")
            if halves:
                self._add_halves(name, shape, place.removesuffix("gate_up_proj"))
                continue
            for part in range(shape[0]):
                own = f"{place}.{part}.{kind}"
                self.shapes[own] = shape[:0:-1] if turned else shape[1:]
                self._parts[own] = name, part, turned

    def _add_halves(self, name: str, shape: tuple[int, ...], place: str) -> None:
        """A stack whose rows are an expert's gate, then its up; or of `down_proj`, that alone."""
        whole = place.endswith("down_proj")
        own = ("down_proj",) if whole else ("gate_proj", "up_proj")
        place, size = place.removesuffix("down_proj"), shape[1] // len(own)
        for part, (half, kind) in product(range(shape[0]), enumerate(own)):
            its = f"{place}{part}.{kind}.weight"
            self.shapes[its] = size, shape[2]
            self._parts[its] = name, (part, slice(half * size, (half + 1) * size)), False

    def read(self, name: str) -> Tensor | QuantizedWeight:
        weight = self._checkpoint.read(name) if name not in self._parts else self._part(name)
        fold = self._folds.get(name)
        return weight if fold is None else fold(weight)

    @cached_property
    def _folds(self) -> dict[str, Fold]:
        """The changes, made when something is first read: until its shapes are checked, a config
        can say anything.
        """
        return self._of(self._config)

    def _part(self, name: str) -> Tensor | QuantizedWeight:
        stored, part, turned = self._parts[name]
        if self._stack is None or self._stack[0] != stored:
            self._stack = None
            self._stack = stored, self._checkpoint.read(stored)
        weight = self._stack[1]
        if not isinstance(weight, Tensor):
            return weight
        return weight[part].t() if turned else weight[part]
