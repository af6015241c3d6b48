"""One rank's part of a model: its sizes, and which stretches of the stored weights it reads.

weights                          cut
queries, keys, values, sinks     by heads; keys and values are in several ranks where there are
                                 more ranks than heads of them; latents are in all ranks, and what
                                 makes keys and values of them is cut by heads
gate, up; of experts, too        by what comes between the products
output, down                     by their inputs; their biases are in rank 0
embedding, head                  by tokens
norms of all heads together      as queries and keys
others                           whole
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.layers.expansion import LatentSizes
from radixlm.layers.split import Split, stretch
from radixlm.models.cuts import Cut
from radixlm.models.decoder import EMBEDDING, HEAD
from radixlm.models.model_config import ModelConfig
from radixlm.models.safetensors_files import CutCheckpoint
from radixlm.models.traits import Experts
from radixlm.products.quantized import QuantizedWeight


class Heads(NamedTuple):
    """A rank's heads of queries, and of keys and values."""

    queries: tuple[int, int]
    keys: tuple[int, int]

    @classmethod
    def of(cls, config: ModelConfig, rank: int, size: int) -> Heads:
        """Heads of queries are with their heads of keys."""
        if config.traits.latents is not None:
            return cls(stretch(config.n_heads, rank, size), (0, 1))
        if size > config.n_kv_heads:
            key = rank * config.n_kv_heads // size
            return cls(stretch(config.n_heads, rank, size), (key, key + 1))
        start, stop = stretch(config.n_kv_heads, rank, size)
        each = config.n_heads // config.n_kv_heads
        return cls((start * each, stop * each), (start, stop))


def check_parts(config: ModelConfig, size: int) -> None:
    """Raise ConfigError, with the field, where a model can not be parted into this many ranks."""
    if config.traits.shapes:
        raise ConfigError(
            f"--tp-size {size} is for models whose layers all have the same heads of keys, which "
            f"those of {config.model_type} have not: leave it out"
        )
    keys, heads = config.n_kv_heads, config.n_heads
    if config.traits.latents is not None:
        if size > heads:
            raise ConfigError(
                f"--tp-size {size} is more than the model's {heads} heads (num_attention_heads)"
            )
    elif size > keys and (size % keys or heads % size):
        raise ConfigError(
            f"--tp-size {size} does not fit the model's {heads} heads (num_attention_heads) over "
            f"{keys} heads of keys (num_key_value_heads): take at most {keys} ranks, or a multiple "
            f"of {keys} that divides {heads}"
        )
    for field, whole in _between(config).items():
        if whole % size:
            raise ConfigError(
                f"--tp-size {size} does not divide the model's {field} of {whole}, which is what "
                "ranks have parts of"
            )


def _between(config: ModelConfig) -> dict[str, int]:
    """Sizes between products, by the config's field."""
    experts = config.traits.experts
    if experts is None:
        return {"intermediate_size": config.intermediate_size}
    own = experts.size == config.intermediate_size
    found = {"intermediate_size" if own else "moe_intermediate_size": experts.size}
    if experts.shared % experts.size:  # else it is cut where they are
        found["shared_expert_intermediate_size"] = experts.shared
    if experts.layers and not all(experts.layers):
        found["intermediate_size"] = config.intermediate_size
    return found


def part_of(config: ModelConfig, rank: int, size: int) -> ModelConfig:
    """The sizes of a rank's part."""
    if size == 1:
        return config
    heads, experts = Heads.of(config, rank, size), config.traits.experts
    if experts is not None:
        its, shared = experts.size // size, experts.shared // size
        experts = experts._replace(size=its, shared=shared)
    return replace(
        config,
        n_heads=_length(heads.queries),
        n_kv_heads=_length(heads.keys),
        intermediate_size=config.intermediate_size // size,
        vocab_size=_length(stretch(config.vocab_size, rank, size)),
        traits=config.traits._replace(experts=experts),
    )


def _length(part: tuple[int, int]) -> int:
    return part[1] - part[0]


class _Parts(NamedTuple):
    """The parts of a rank by the names of stored weights. cuts: what is read of them. once: in rank
    0 alone. renamed: own names of those that are there for each head, which others' are not.
    """

    cuts: dict[str, Cut]
    once: set[str]
    renamed: dict[str, str]
    others: set[str]


def _parts_of(config: ModelConfig, rank: int, size: int) -> _Parts:
    whole = Cut(0, (stretch(config.vocab_size, rank, size),))
    made = _Parts({f"{name}.weight": whole for name in (EMBEDDING, HEAD)}, set(), {}, set())
    of_layer = _Parts({}, set(), {}, set())
    _cut_attention(of_layer, config, Heads.of(config, rank, size))
    for cut in _mlps(config, rank, size):
        of_layer.cuts.update(cut.cuts)
        of_layer.once.update(cut.once)
    for layer in range(config.n_layers):
        place = f"model.layers.{layer}."
        made.cuts.update({place + name: cut for name, cut in of_layer.cuts.items()})
        made.once.update(place + name for name in of_layer.once)
        made.renamed.update({place + old: place + new for old, new in of_layer.renamed.items()})
        made.others.update(place + name for name in of_layer.others)
    return made


def _cut_latents(made: _Parts, sizes: LatentSizes, heads: tuple[int, int]) -> None:
    name = "q_b_proj" if sizes.queries else "q_proj"
    queries = _times(heads, sizes.key + (sizes.values if sizes.gated else 0))
    made.cuts[f"self_attn.{name}.weight"] = Cut(0, (queries,))
    made.cuts["self_attn.kv_b_proj.weight"] = Cut(0, (_times(heads, sizes.plain + sizes.values),))
    made.cuts["self_attn.o_proj.weight"] = Cut(1, (_times(heads, sizes.values),))
    made.once.add("self_attn.o_proj.bias")


def _cut_attention(made: _Parts, config: ModelConfig, heads: Heads) -> None:
    if config.traits.latents is not None:
        _cut_latents(made, config.traits.latents, heads.queries)
        return
    traits, dim = config.traits, config.head_dim
    queries, keys = (_times(part, dim) for part in heads)
    sizes = config.n_heads * dim, config.n_kv_heads * dim
    rows: list[tuple[tuple[int, int], ...]]
    if len(traits.qkv) == 1:
        values = _beyond(keys, sum(sizes))
        rows = [(queries, _beyond(keys, sizes[0]), values)]
    else:
        rows = [(queries,), (keys,), (keys,)]
    for name, stretches in zip(traits.qkv, rows, strict=True):
        for kind in ("weight", "bias"):
            made.cuts[f"self_attn.{name}.{kind}"] = Cut(0, stretches)
    made.cuts["self_attn.o_proj.weight"] = Cut(1, (queries,))
    made.once.add("self_attn.o_proj.bias")
    made.cuts["self_attn.sinks"] = Cut(0, (heads.queries,))
    norms = traits.qk_norm
    if norms is None or norms.kind == "head":
        return
    counts = config.n_heads, config.n_kv_heads
    for name, part, count in zip(norms.names, heads, counts, strict=True):
        place = f"self_attn.{name}"
        if "{}" not in name:
            made.cuts[place] = Cut(0, (_times(part, dim) if norms.kind == "row" else part,))
            continue
        for head in range(count):
            if part[0] <= head < part[1]:
                made.renamed[place.format(head)] = place.format(head - part[0])
            else:
                made.others.add(place.format(head))


def _times(part: tuple[int, int], by: int) -> tuple[int, int]:
    return part[0] * by, part[1] * by


def _beyond(part: tuple[int, int], first: int) -> tuple[int, int]:
    return part[0] + first, part[1] + first


def _mlps(config: ModelConfig, rank: int, size: int) -> Iterator[_Parts]:
    """The parts of MLPs, and of experts: stacked or one by one, by the names of either."""
    traits, experts = config.traits, config.traits.experts
    whole = config.intermediate_size
    part = stretch(whole, rank, size)
    rows = _rows(part, whole, together=traits.gated and len(traits.gate_up) == 1)
    yield _mlp(f"{traits.mlp}.", traits.gate_up, traits.down, rows, part)
    if experts is None:
        return
    part = stretch(experts.size, rank, size)
    rows = _rows(part, experts.size, together=len(experts.gate_up) == 1, in_turns=experts.paired)
    yield _stacked(experts, f"{traits.mlp}.", rows, part)
    for number in range(experts.number):
        gate_up = tuple(name.format(number) for name in experts.gate_up)
        yield _mlp(f"{traits.mlp}.", gate_up, experts.down.format(number), rows, part)
    if experts.shared:
        part = stretch(experts.shared, rank, size)
        place = f"{traits.mlp}.{experts.shared_place}."
        yield _mlp(place, ("gate_proj", "up_proj"), "down_proj", (part,), part)


def _rows(
    part: tuple[int, int], whole: int, *, together: bool, in_turns: bool = False
) -> tuple[tuple[int, int], ...]:
    """The rows of a tensor with gate or up, or with both together."""
    if not together:
        return (part,)
    return (_times(part, 2),) if in_turns else (part, _beyond(part, whole))


def _mlp(
    place: str,
    gate_up: tuple[str, ...],
    down: str,
    rows: tuple[tuple[int, int], ...],
    part: tuple[int, int],
) -> _Parts:
    cuts = {f"{place}{name}.{kind}": Cut(0, rows) for name in gate_up for kind in _KINDS}
    cuts[f"{place}{down}.weight"] = Cut(1, (part,))
    return _Parts(cuts, {f"{place}{down}.bias"}, {}, set())


_KINDS = ("weight", "bias")


def _stacked(
    experts: Experts, place: str, rows: tuple[tuple[int, int], ...], part: tuple[int, int]
) -> _Parts:
    """The parts of tensors with all experts' weights, see `Experts.stacked`."""
    gate_up = [place + name.removesuffix(".{}") for name in experts.gate_up]
    down = place + experts.down.removesuffix(".{}")
    if experts.stacked == "rows":
        cuts = {name: Cut(1, rows) for name in gate_up} | {down: Cut(2, (part,))}
        return _Parts(
            cuts | {f"{name}.weight": cut for name, cut in cuts.items()}, set(), {}, set()
        )
    if experts.stacked == "columns":
        cuts = {name: Cut(2, rows) for name in gate_up}
        cuts |= {f"{name}_bias": Cut(1, rows) for name in gate_up}
        return _Parts(cuts | {down: Cut(1, (part,))}, {f"{down}_bias"}, {}, set())
    return _Parts({}, set(), {}, set())


class PartCheckpoint:
    """See `Checkpoint`: a rank's part of one whose weights are all there, in the right shapes."""

    def __init__(self, checkpoint: CutCheckpoint, config: ModelConfig, split: Split) -> None:
        self.where, self.is_quantized = checkpoint.where, checkpoint.is_quantized
        self._checkpoint, self._rank = checkpoint, split.rank
        parts = _parts_of(config, split.rank, split.size)
        self._cuts, self._once = parts.cuts, parts.once
        self._stored: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for stored, shape in checkpoint.shapes.items():
            if stored in parts.others:
                continue
            own, cut = parts.renamed.get(stored, stored), self._cuts.get(stored)
            self._stored[own] = stored
            self.shapes[own] = shape if cut is None else cut.shape(shape)

    def read(self, name: str) -> Tensor | QuantizedWeight:
        stored = self._stored[name]
        if self._rank and stored in self._once:
            return torch.zeros(self.shapes[name])
        cut = self._cuts.get(stored)
        if cut is None:
            return self._checkpoint.read(stored)
        return self._checkpoint.read_cut(stored, cut)
