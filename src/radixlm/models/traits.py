"""The ways in which a decoder may differ from Llama, as its family's file reads it from the
config.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from radixlm.layers.expansion import LatentSizes
from radixlm.layers.gated_delta import DeltaSizes
from radixlm.layers.grouped_router import GroupedRouting
from radixlm.layers.index_keys import IndexSizes
from radixlm.layers.kimi_delta import KimiSizes
from radixlm.layers.lightning import LightningSizes
from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.mamba2 import MambaSizes
from radixlm.layers.mlps import Clamped
from radixlm.layers.rg_lru import LruSizes
from radixlm.layers.short_conv import ConvSizes
from radixlm.memory.pools import LayerShape


class Norms(NamedTuple):
    """The names of a layer's norms, before and after attention and the MLP; empty: there is none.

    kind: by root mean square, or by mean and variance. bias: they have one. base: what is added to
    their stored weights. mlp is left empty where attention and MLP are parallel. last: that after
        all layers. gates: numbers between, of those before attention and experts, see `GatedNorm`.
    kept: factors of those before attention and the MLP, see `KeptNorm`; empty: they are plain.
    """

    attention: str = "input_layernorm"
    after_attention: str = ""
    mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    kind: Literal["rms", "layer"] = "rms"
    bias: bool = False
    base: float = 0.0
    last: str = "norm"
    gates: int = 0
    kept: tuple[float, ...] = ()


class QueryKeyNorms(NamedTuple):
    """The norms of queries and keys before they turn.

    kind: of each head, one weight for all (head); of each head with a weight of its own, by mean
        and variance (heads); of all heads together (row).
    names: with {} where each head's weight is a tensor; empty: weights of a head are 1.
    after: they come after they turn. layers: that have them; empty: all.
    """

    kind: Literal["head", "heads", "row"] = "head"
    names: tuple[str, ...] = ("q_norm.weight", "k_norm.weight")
    after: bool = False
    layers: tuple[bool, ...] = ()


class Experts(NamedTuple):
    """The experts of layers that choose some of many MLPs for each token.

    number, chosen: how many there are, and how many a token gets. size: of each.
    renormalised: the chosen ones' weights sum to 1.
    shared: the size of one more, which all tokens get; 0: none. shared_place, shared_gate: names of
        it and of the gate that weighs it; empty: nothing does. shared_names: of its weights, the
        last that of `down`. scale: of the chosen ones' weights.
    layers: which ones have experts; empty: all.
    router, gate_up, down: names of weights, with {} for an expert's number. bias: all have one.
    stacked: one tensor has all experts' of a name, perhaps without `.weight`: (experts, out, in) in
        rows; (experts, in, out), and biases beside it with `_bias`, in columns; the shapes tell
        which, in either. Or one by one: as in rows, gate and up together, or each expert's by the
        names here.
    latent: what all experts take and give has this size, see `LatentSpace`; 0: the model's.
    paired: rows of gate and up take turns. weighs_inputs: see `ExpertMLP`. beside: they are beside
        the layer's MLP, see `ExpertsBeside`.
    """

    number: int
    chosen: int
    size: int
    renormalised: bool
    shared: int = 0
    shared_place: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"
    shared_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    scale: float = 1.0
    routing: GroupedRouting | None = None
    layers: tuple[bool, ...] = ()
    router: str = "gate"
    gate_up: tuple[str, ...] = ("experts.{}.gate_proj", "experts.{}.up_proj")
    down: str = "experts.{}.down_proj"
    bias: bool = False
    stacked: Literal["", "rows", "columns", "either", "or one by one"] = ""
    latent: int = 0
    paired: bool = False
    weighs_inputs: bool = False
    beside: bool = False


StateSizes = (
    DeltaSizes | KimiSizes | LightningSizes | LruSizes | Mamba1Sizes | MambaSizes | ConvSizes
)


class SharedBlocks(NamedTuple):
    """Blocks of attention and an MLP before the states of layers that have both, see `BlockUse`.

    number: of blocks, which those layers use in turn. rank: of what each layer adds to the MLP's
    first product, and in_attention to queries, keys and values; 0: nothing.
    """

    number: int
    rank: int = 0
    in_attention: bool = False


# What a layer has before its MLP.
Mixer = Literal["attention", "state", "both", "none"]


class Traits(NamedTuple):
    """The traits that set an architecture apart.

    qkv_bias, output_bias, mlp_bias: which projections add a bias.
    qkv, output, mlp, gate_up, down: names; mlp may be empty. gate_up: two, or one tensor with both.
    gated: the MLP's first half is a gate of the second; otherwise gate_up is one, and there is no
        gate.
    qk_norm: None: there is none.
    windows: of each layer how many tokens a token sees, itself included, or a `ChunkSize`; None:
        all before it. Empty: no layer has one.
    interleaved: neighbours (2i, 2i + 1) turn together, not i and i + half.
    parallel: attention and MLP take the same input.
    embedding, residual, logits: what they are multiplied by; residual: what layers add.
    attention: what scores are multiplied by; None: 1 / sqrt(head_dim).
    score_cap, logits_cap: neither is above it, see `capped` of `kernels.dots`; 0: there is none.
    sinks: layers in which each head has a score that gives its weight to nothing, sinks_name.
    latents: keys and values are made of a row that all heads have together; None: they are not.
    indexer: what each token reads of them is chosen; None: it reads all.
    spare_layers: layers that checkpoints have after the last one, which predict further tokens.
        spare: where names of such weights begin that are elsewhere.
    shapes: heads of keys and values of each layer; empty: all have those of the config. mlp_sizes:
        of each layer's MLP; empty: as the config says.
    values_are_keys: layers, from 0, whose values are their keys before norm and rotation.
    value_dim: size of a head of values; 0: that of keys. values: what they are multiplied by.
    value_norm: values are divided by their root mean square, each head.
    layer_inputs: numbers that a layer is given of each token, see `LayerInputs`; 0: none.
    layer_scale: what a layer gives is multiplied by a number of its own.
    state: of layers that carry one from token to token. mixers: of each layer; empty: attention.
    state_norms: of layers with a state; None: those of all. mlps: layers that have an MLP or
        experts; empty: all.
    renamed: patterns of names in the files, and what takes their place, one after the other.
    head_gates: the name of a product that gives each head a gate, see `gated_queries`; empty: none.
    factors: what rows of a layer's weights are multiplied by, by name: of a number of rows at a
        time; 0: of all.
    gated_queries: each head of queries has as many gates, whose sigmoid multiplies what it reads.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: QueryKeyNorms | None = None
    windows: tuple[int | None, ...] = ()
    norms: Norms = Norms()
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    output: str = "o_proj"
    mlp: str = "mlp"
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True
    activation: str | Clamped = "silu"
    experts: Experts | None = None
    interleaved: bool = False
    parallel: bool = False
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention: float | None = None
    score_cap: float = 0.0
    logits_cap: float = 0.0
    sinks: frozenset[int] = frozenset()
    sinks_name: str = "sinks"
    latents: LatentSizes | None = None
    indexer: IndexSizes | None = None
    spare_layers: int = 0
    spare: tuple[str, ...] = ()
    shapes: tuple[LayerShape, ...] = ()
    mlp_sizes: tuple[int, ...] = ()
    values_are_keys: frozenset[int] = frozenset()
    value_dim: int = 0
    values: float = 1.0
    value_norm: bool = False
    layer_inputs: int = 0
    layer_scale: bool = False
    state: StateSizes | None = None
    mixers: tuple[Mixer, ...] = ()
    state_norms: Norms | None = None
    mlps: tuple[bool, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    gated_queries: bool = False
    head_gates: str = ""
    shared: SharedBlocks | None = None
    factors: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = ()
