"""config.json, or what a GGUF file says in its place, read once into a frozen ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from radixlm.core.errors import UnsupportedModelError
from radixlm.formats.model_files import ModelFiles, files_of
from radixlm.layers.rotary import FactorScaling, LongScaling, RopeConfig
from radixlm.memory.pools import LayerShape
from radixlm.memory.state_pool import StateShape
from radixlm.models.config_defaults import with_defaults
from radixlm.models.config_fields import read, unsupported
from radixlm.models.families import ARCHITECTURES
from radixlm.models.hf_config import EndTokens, HFConfig
from radixlm.models.hf_rope import read_rope
from radixlm.models.traits import Mixer, Traits

# `do_sample` is not among them: requests say what they want by `temperature`.
_SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder's shape. Sizes are in elements, `context_length` is in tokens.

    n_kv_heads, head_dim: of what the pool keeps; with latents their one row. Where layers differ
        (`Traits.shapes`, `.mlp_sizes`) `of_layer` has a layer's own sizes.
    ropes: of each layer, as `HFConfig.ropes`; empty: all have `rope`.
    dtype: the checkpoint's own type; what the weights are loaded as is the caller's choice.
    eos_token_ids: any of them ends an answer; from generation_config.json and config.json alike.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    ropes: tuple[RopeConfig | None, ...]
    traits: Traits
    tie_word_embeddings: bool
    dtype: torch.dtype
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    @property
    def turning_dim(self) -> int:
        """Numbers of a head that positions are encoded in, or could be."""
        latents = self.traits.latents
        return self.head_dim if latents is None else latents.turned

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The windows of `traits` that hide something of this context; empty where none does."""
        length = self.context_length
        windows = tuple(w if w is not None and w < length else None for w in self.traits.windows)
        return windows if any(windows) else ()

    @property
    def kv_shapes(self) -> tuple[LayerShape, ...]:
        """The heads of keys and values of each layer, 0 without attention, and whose it reads."""
        if self.traits.shapes:
            return self.traits.shapes
        heads = {"attention": self.n_kv_heads, "both": self.n_kv_heads}
        index = self.traits.indexer
        keys = (0,) * self.n_layers
        if index is not None:
            keys = tuple(index.size if its else 0 for its in index.layers)
        return tuple(
            LayerShape(heads.get(mixer, 0), self.head_dim, None, key)
            for mixer, key in zip(self.mixers, keys, strict=True)
        )

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """Kinds of what each layer has before its MLP."""
        attention: tuple[Mixer, ...] = ("attention",)
        return self.traits.mixers or attention * self.n_layers

    @property
    def state_shapes(self) -> tuple[StateShape, ...]:
        """The states of each layer; empty: none has any."""
        sizes, none = self.traits.state, StateShape()
        if sizes is None:
            return ()
        one = StateShape((sizes.width - 1, sizes.channels), sizes.matrix)
        return tuple(one if mixer in ("state", "both") else none for mixer in self.mixers)

    def of_layer(self, layer: int) -> ModelConfig:
        """The sizes that one layer has."""
        traits, made = self.traits, self
        if traits.shapes or traits.mlp_sizes:
            n_kv_heads, head_dim = self.kv_shapes[layer][:2]
            size = traits.mlp_sizes[layer] if traits.mlp_sizes else self.intermediate_size
            made = replace(self, n_kv_heads=n_kv_heads, head_dim=head_dim, intermediate_size=size)
        if traits.state_norms is not None and self.mixers[layer] == "state":
            made = replace(made, traits=traits._replace(norms=traits.state_norms))
        return made

    @property
    def short_length(self) -> int | None:
        """See `RopeConfig.short_length`."""
        return self.rope.short_length(self.context_length)

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None
    ) -> ModelConfig:
        """Translate the parsed config.json (transformers 4 or 5) and generation_config.json.

        Raises UnsupportedModelError that names the field, its value and what is supported.
        """
        name = config.get("model_type")
        architecture = ARCHITECTURES.get(str(name))
        if architecture is None:
            others = "; for others there is --model-impl transformers"
            raise unsupported("model_type", name, ", ".join(ARCHITECTURES) + others)
        hf: HFConfig = read(architecture, with_defaults(architecture, config))
        if hf.architectures and not any(n.endswith("ForCausalLM") for n in hf.architectures):
            raise unsupported("architectures", hf.architectures, "...ForCausalLM")
        if hf.hidden_act is not None and hf.hidden_act not in hf.activations:
            raise unsupported("hidden_act", hf.hidden_act, ", ".join(hf.activations))
        traits, (rope, context_length) = hf.traits(), read_rope(hf)
        _check_experts(hf, traits)
        n_heads = hf.num_attention_heads
        n_kv_heads = hf.num_key_value_heads or n_heads
        for number in (n_kv_heads, *(shape.n_kv_heads for shape in traits.shapes)):
            if n_heads % number:
                divisor = f"a divisor of {n_heads} attention heads"
                raise unsupported("num_key_value_heads", number, divisor)
        head_dim = hf.head_dim or hf.hidden_size // n_heads
        turning = head_dim
        if traits.latents is not None:
            # What all heads read.
            n_kv_heads, head_dim, turning = 1, traits.latents.row, traits.latents.turned
        for size in (head_dim, *(shape.head_dim for shape in traits.shapes)):
            if size % 2 and traits.latents is None:
                raise unsupported("head_dim", hf.head_dim, f"an even number, but it is {size}")
        _check_rope(rope, turning)
        return cls(
            model_type=str(name),
            vocab_size=hf.vocab_size,
            hidden_size=hf.hidden_size,
            intermediate_size=hf.intermediate_size,
            n_layers=hf.num_hidden_layers,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            context_length=context_length,
            norm_eps=hf.rms_norm_eps,
            rope=rope,
            ropes=hf.ropes(rope),
            traits=traits,
            tie_word_embeddings=hf.tie_word_embeddings,
            dtype=getattr(torch, hf.dtype),
            eos_token_ids=hf.ids | read(EndTokens, generation_config).ids,
            bos_token_id=hf.bos_token_id,
        )


def _check_experts(hf: HFConfig, traits: Traits) -> None:
    experts = traits.experts
    if experts is None:
        if hf.num_experts:
            raise unsupported("num_experts", hf.num_experts, "a model without experts")
        return
    if not experts.number:
        raise UnsupportedModelError("config field 'num_experts' is missing")
    if experts.chosen > experts.number:
        at_most = f"at most its {experts.number} experts"
        raise unsupported("num_experts_per_tok", experts.chosen, at_most)


def _check_rope(rope: RopeConfig, head_dim: int) -> None:
    turned = rope.turned(head_dim)
    if turned % 2 or not turned:
        even = f"an even number of a head's {head_dim} dimensions, but it is {turned}"
        raise unsupported("partial_rotary_factor", rope.share, even)
    lists: dict[str, tuple[float, ...]] = {}
    match rope.scaling:
        case FactorScaling(factors):
            lists["factors"] = factors
        case LongScaling(short, long):
            lists = {"short_factor": short, "long_factor": long}
    for name, factors in lists.items():
        if len(factors) != turned // 2:
            raise unsupported(f"rope_scaling.{name}", factors, f"{turned // 2} numbers")


def load_config(model: Path | ModelFiles) -> ModelConfig:
    """Read config.json, and generation_config.json where there is one, or what a GGUF file has.

    Raises CheckpointError when they cannot be read, UnsupportedModelError as `from_hf`.
    """
    files = files_of(model)
    return ModelConfig.from_hf(files.config(), files.generation_config())


def recommended_sampling(model: Path | ModelFiles) -> dict[str, Any]:
    """The sampling that generation_config.json recommends, as it stands there; null is left out.

    Raises CheckpointError when the file cannot be read.
    """
    given = files_of(model).generation_config()
    return {name: given[name] for name in _SAMPLING_FIELDS if given.get(name) is not None}
