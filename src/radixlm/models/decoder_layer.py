"""One layer of a decoder: attention and an MLP or experts, put together as its traits say."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.attention.attend import Attend
from radixlm.layers.experts import ExpertMLP, ExpertsBeside
from radixlm.layers.few_tokens import ANYWHERE, StepBuffers
from radixlm.layers.layer_inputs import LayerInput
from radixlm.layers.linear import Linear, QueryKeyNorm
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import MLP, sigmoid
from radixlm.layers.norms import HeadNorms, RowNorm, ValueNorm
from radixlm.layers.rotary import Rotation
from radixlm.layers.split import Split, SplitRowNorm
from radixlm.layers.step_states import NO_STATES, StepStates
from radixlm.models.latent_projections import LatentProjections
from radixlm.models.layer_norms import make_norm, norm_before
from radixlm.models.layer_parts import StateLayer, make_beside, make_mlp, make_state
from radixlm.models.model_config import ModelConfig
from radixlm.models.shared_blocks import BlockUse
from radixlm.products.compiled import TensorOptions

NamedWeights = Iterator[tuple[str, Tensor]]


class SelfAttention:
    """Projections around the attention of one layer. split: it gives a summand of each rank's."""

    expansion = None

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        options: TensorOptions,
        split: Split | None = None,
    ) -> None:
        self.layer = layer
        q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
        traits, hidden = config.traits, config.hidden_size
        reads = config.kv_shapes[layer].source is not None
        sizes: tuple[int, ...] = (q, kv, kv) if len(traits.qkv) == 3 else (q + 2 * kv,)
        # A layer that reads another's keys and values has none; values that are keys no product.
        self._repeated = kv if layer in traits.values_are_keys and not reads else 0
        self._head_dim, self._value_dim = config.head_dim, traits.value_dim
        if traits.value_dim:
            sizes = q, kv, config.n_kv_heads * traits.value_dim
        sizes = sizes[: 1 if reads else 2 if self._repeated else 3]
        # What is read of a token is weighed by gates that stand before its queries.
        self._gates = q if traits.gated_queries else 0
        sizes = (sizes[0] + self._gates, *sizes[1:])
        parts = dict(zip(traits.qkv, sizes, strict=False))
        self._head_gates = config.n_heads if traits.head_gates else 0
        if traits.head_gates:
            parts[traits.head_gates] = config.n_heads
        self.qkv = Linear(hidden, parts, options, bias=traits.qkv_bias)
        made = config.n_heads * (traits.value_dim or config.head_dim)
        self.output = Linear(made, {traits.output: hidden}, options, bias=traits.output_bias)
        # The norm that attention knows, and what is done before it.
        self.norm: QueryKeyNorm | None = None
        self.before: RowNorm | HeadNorms | ValueNorm | None = None
        if traits.value_norm and not reads:
            self.before = ValueNorm(kv, config.head_dim, config.norm_eps)
        exact = TensorOptions(torch.float32, options.device)
        self.sinks = exact.empty(config.n_heads) if layer in traits.sinks else None
        self._sinks_name = traits.sinks_name
        heads, size, eps = (config.n_heads, config.n_kv_heads), config.head_dim, config.norm_eps
        norms = traits.qk_norm
        if norms is None or (norms.layers and not norms.layers[layer]):
            return
        match norms.kind:
            case "head":
                names, after = norms.names[: 1 if reads else 2], norms.after
                self.norm = QueryKeyNorm(heads[0], size, eps, options, names, after=after)
            case "row" if split is not None:
                self.before = SplitRowNorm((q, kv), eps, options, norms.names, split)
            case "row":
                self.before = RowNorm((q, kv), eps, options, norms.names)
            case "heads":
                self.before = HeadNorms(heads, size, eps, options, norms.names)

    @property
    def is_compiled(self) -> bool:
        """Whether it is nothing but calls of workers, attention left out."""
        changed = self._repeated or self._value_dim or self._gates or self._head_gates
        alone = self.before is None and not changed
        return alone and self.qkv.is_compiled and self.output.is_compiled

    def __call__(
        self,
        x: Tensor,
        rotation: Rotation,
        attend: Attend,
        at: StepBuffers = ANYWHERE,
        multiply: Multiply = Linear.__call__,
    ) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size). at: where it computes. multiply: what
        computes products.
        """
        qkv = multiply(self.qkv, x, at.qkv)
        if self._head_gates:
            qkv, gates = qkv.tensor_split((-self._head_gates,), dim=1)
            gates = gates.repeat_interleave(self._head_dim, dim=1)
        if self._gates:
            gates, qkv = qkv.tensor_split((self._gates,), dim=1)
        if self._repeated:
            qkv = torch.cat((qkv, qkv[:, -self._repeated :]), dim=1)
        if self.before is not None:
            self.before(qkv)
        if self._value_dim:
            qkv = self._with_zeros(qkv)
        answers = attend(self.layer, qkv, rotation, self.norm, self.sinks)
        if self._value_dim:
            answers = answers.unflatten(1, (-1, self._head_dim))[..., : self._value_dim].flatten(1)
        if self._gates or self._head_gates:
            answers = answers * sigmoid(gates)
        return multiply(self.output, answers, at.part)

    def _with_zeros(self, qkv: Tensor) -> Tensor:
        """Append zeros to each head of values, which is then as large as one of keys."""
        *before, width = self.qkv.parts.values()
        rest, values = qkv.split((sum(before), width), dim=1)
        values = values.unflatten(1, (-1, self._value_dim))
        values = functional.pad(values, (0, self._head_dim - self._value_dim))
        return torch.cat((rest, values.flatten(1)), dim=1)

    def linears(self) -> list[Linear]:
        """The projections in the order in which they are computed."""
        return [self.qkv, self.output]

    def named_weights(self) -> NamedWeights:
        yield from self.qkv.named_weights()
        yield from self.output.named_weights()
        for norm in (self.norm, self.before):
            if norm is not None:
                yield from norm.named_weights()
        if self.sinks is not None:
            yield self._sinks_name, self.sinks


class DecoderLayer:
    """x + attention(norm(x)), then x + mlp(norm(x)); or both at once, x + attention(y) + mlp(y) of
    y = norm(x). What they give may have a norm, too. At the end x may take in a third part, of the
    layer's input, and be multiplied. split: config is that of this rank's part, and what attention
    and MLP give is added up over all ranks. block: gives a summand of a state's input alone.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        options: TensorOptions,
        split: Split | None = None,
        block: BlockUse | None = None,
    ) -> None:
        config = config.of_layer(layer)
        self._traits = traits = config.traits
        names, mixer = traits.norms, config.mixers[layer]
        self._reduce = None if split is None else split.reduce
        self.attention: SelfAttention | LatentProjections | None = None
        self.block = block
        if mixer in ("attention", "both") and block is None:
            self.attention = (
                SelfAttention(config, layer, options, split)
                if traits.latents is None
                else LatentProjections(config, layer, options)
            )
        self.state: StateLayer | None = None
        if mixer in ("state", "both"):
            self.state = make_state(config, layer, options)
        self.mlp = make_mlp(config, layer, options)
        self.beside = make_beside(config, options)
        self.input: LayerInput | None = None
        if traits.layer_inputs:
            sizes = config.hidden_size, traits.layer_inputs
            self.input = LayerInput(*sizes, str(traits.activation), config.norm_eps, options)
        self.scale = options.empty(1) if traits.layer_scale else None
        self._mixes = mixer != "none"
        before = names.attention if self._mixes else ""
        after = names.mlp if self.mlp is not None else ""
        chosen = isinstance(self.mlp, ExpertMLP)
        self.attention_norm = norm_before(config, before, options, place=0, gated=True)
        self.mlp_norm = norm_before(config, after, options, place=1, gated=chosen)
        self.after_attention, self.after_mlp = (
            make_norm(config, options) if name else None
            for name in (names.after_attention, names.after_mlp)
        )
        self._parallel = traits.parallel

    @property
    def experts_by_host(self) -> bool:
        """Whether the host has to know which of many MLPs tokens choose."""
        parts = self.mlp, self.beside
        return any(part.by_host for part in parts if isinstance(part, ExpertMLP | ExpertsBeside))

    @property
    def is_compiled(self) -> bool:
        """Whether it is nothing but calls of workers, attention left out."""
        norms = (self.attention_norm, self.mlp_norm, self.after_attention, self.after_mlp)
        alone = not self._parallel and self._reduce is None and self.scale is None
        if not alone or self.state is not None or self.attention is None or self.mlp is None:
            return False
        parts = (self.attention, self.mlp, *(norm for norm in norms if norm is not None))
        return all(part.is_compiled for part in parts)

    def __call__(
        self,
        hidden: Tensor,
        given: Tensor,
        part: Tensor | None,
        rotation: Rotation,
        attend: Attend,
        at: StepBuffers = ANYWHERE,
        multiply: Multiply = Linear.__call__,
        states: StepStates = NO_STATES,
    ) -> Tensor | None:
        """Take `part`, which the layer before computed, into `hidden` (tokens, hidden_size), in
        place; the same for attention's. Returns the MLP's part, for the next to take in: a norm
        adds on the way. given: the layer's input, (tokens, traits.layer_inputs), or of a block what
        tokens began with. at: where it computes, if it is compiled. multiply: what computes
        products, but for those of experts. states: of the step's rows.
        """
        if self._mixes:
            normed = self.attention_norm(hidden, part, at.normed)
            if self.block is not None:
                added = self.block(hidden, given, rotation, attend, multiply)
                normed = self.attention_norm(added.add_(hidden))
            part = self._mixed(normed, rotation, attend, at, multiply, states)
            if self._parallel and self.mlp is not None:
                part = self.mlp(normed, multiply=multiply).add_(part)
            if self._reduce is not None:
                self._reduce(part)
            if self.after_attention is not None:
                part = self.after_attention(part, None, at.part)
        if self._parallel or self.mlp is None:
            return part
        normed = self.mlp_norm(hidden, part, at.normed)
        part = self.mlp(normed, at.gated, at.part, multiply)
        if self._reduce is not None:
            self._reduce(part)
        if self.beside is not None:
            part = self.beside(hidden, part)
        if self.after_mlp is not None:
            part = self.after_mlp(part, None, at.part)
        if self.scale is None:
            return part
        hidden.add_(part)
        if self.input is not None:
            hidden.add_(self.input(hidden, given))
        hidden.mul_(self.scale)
        return None

    def _mixed(
        self,
        normed: Tensor,
        rotation: Rotation,
        attend: Attend,
        at: StepBuffers,
        multiply: Multiply,
        states: StepStates,
    ) -> Tensor:
        mixed = [] if self.state is None else [self.state(normed, states, multiply)]
        if self.attention is not None:
            mixed.append(self.attention(normed, rotation, attend, at, multiply))
        return mixed[0] if len(mixed) == 1 else mixed[0].add_(mixed[1])

    def _mixers(self) -> Iterator[tuple[str, SelfAttention | LatentProjections | StateLayer]]:
        """List what is before the MLP, and where its names begin."""
        if self.attention is not None:
            yield "self_attn", self.attention
        if self.state is not None and self._traits.state is not None:
            yield self._traits.state.place, self.state

    def adaptable(self) -> Iterator[tuple[str, Linear]]:
        """Products that adapters may add to, see `linears`."""
        known = [] if self.attention is None else self.attention.linears()
        if isinstance(self.mlp, MLP):
            known += [self.mlp.gate_up, self.mlp.down]
        return ((place, linear) for place, linear in self.linears() if linear in known)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """All products, in the order in which they are computed, and where their names begin."""
        for place, mixer in self._mixers():
            for linear in mixer.linears():
                yield f"{place}.", linear
        for place, linear in () if self.mlp is None else self.mlp.linears():
            yield joined(self._traits.mlp, place), linear
        for part in (self.block, self.beside, self.input):
            if part is not None:
                yield from part.linears()

    def named_weights(self) -> NamedWeights:
        names = self._traits.norms
        yield from under(names.attention, self.attention_norm.named_weights())
        for place, mixer in self._mixers():
            yield from under(place, mixer.named_weights())
        if self.after_attention is not None:
            yield from under(names.after_attention, self.after_attention.named_weights())
        yield from under(names.mlp, self.mlp_norm.named_weights())
        if self.mlp is not None:
            yield from under(self._traits.mlp, self.mlp.named_weights())
        if self.after_mlp is not None:
            yield from under(names.after_mlp, self.after_mlp.named_weights())
        for part in (self.block, self.beside, self.input):
            if part is not None:
                yield from part.named_weights()
        if self.scale is not None:
            yield "layer_scalar", self.scale


def under(prefix: str, weights: NamedWeights) -> NamedWeights:
    """Named as what lies under `prefix`."""
    return ((joined(prefix, name), tensor) for name, tensor in weights)


def joined(place: str, name: str) -> str:
    """A name in a place, which may be empty."""
    return f"{place}.{name}" if place else name
