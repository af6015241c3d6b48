"""The decoder that all architectures share: layers between an embedding and a head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Protocol

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.attention.backends import CpuAttention
from radixlm.core.errors import CheckpointError
from radixlm.layers.expansion import Expansion
from radixlm.layers.few_tokens import ANYWHERE, MOST_TOKENS, FewTokens, StepBuffers
from radixlm.layers.layer_inputs import LayerInputs
from radixlm.layers.linear import Linear, LMHead, Quantize, TokenEmbedding
from radixlm.layers.lora import Adapted
from radixlm.layers.rotary import Rotary, Rotation
from radixlm.layers.split import Split, SplitEmbedding
from radixlm.layers.step_states import NO_STATES, StepStates
from radixlm.layers.taken_states import TakenStates
from radixlm.models.decoder_layer import DecoderLayer, under
from radixlm.models.layer_norms import make_norm
from radixlm.models.model_config import ModelConfig
from radixlm.models.shared_blocks import block_uses
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import Choose, GemmShape

# Modules at both ends, by the names that checkpoints and adapters have for them.
EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(slots=True)
class PooledRows:
    """Tokens of a step whose states after the last norm are wanted. states: set by `forward`."""

    rows: Tensor
    states: Tensor | None = None


class CausalLM:
    """A decoder with its head. The memory of its weights is allocated here and filled by a loader.

    dtype: type of weights and activations; norms and logits are float32 whatever it is. split:
    config is that of one rank's part of a model; logits are whole in rank 0 alone. in_turn: see
    `TensorOptions`.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        split: Split | None = None,
        in_turn: bool = False,
    ) -> None:
        self.config = config
        self._split = split
        self._options = options = TensorOptions(dtype, device, in_turn)
        sizes = config.vocab_size, config.hidden_size
        self.embedding = (
            TokenEmbedding(*sizes, options)
            if split is None
            else SplitEmbedding(*sizes, options, split)
        )
        ropes = config.ropes or (config.rope,) * config.n_layers
        turned = [(rope, config.of_layer(n).turning_dim) for n, rope in enumerate(ropes)]
        kinds = list(dict.fromkeys(turned))
        self.rotaries = [Rotary(*kind, config.context_length, options) for kind in kinds]
        self._turning = [kinds.index(its) for its in turned]
        self.layers = [
            DecoderLayer(config, layer, options, split, block)
            for layer, block in enumerate(block_uses(config, options))
        ]
        self.inputs: LayerInputs | None = None
        if config.traits.layer_inputs:
            shape = *sizes, config.n_layers, config.traits.layer_inputs
            self.inputs = LayerInputs(shape, config.norm_eps, options)
        self.norm = make_norm(config, options)
        self.head = LMHead(self.embedding, tied=config.tie_word_embeddings)
        self._few_tokens: FewTokens | None = None
        self._taken: TakenStates | None = None

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        logit_rows: Tensor,
        adapted: Adapted | None = None,
        states: StepStates = NO_STATES,
        pooled: PooledRows | None = None,
    ) -> Tensor:
        """Compute one step's new tokens, whichever requests they belong to.

        token_ids, positions: (tokens,) int64; positions as `Rotary` knows them.
        attend: called once per layer, in order.
        logit_rows: (n,) int64, the tokens whose next token is wanted.
        adapted: the layers' products, where adapters add to them.
        states: of the rows, where layers have some. pooled: takes the states of its rows.
        Returns (n, vocab_size) float32 logits.
        """
        small = token_ids.numel() <= MOST_TOKENS and (adapted is None or adapted.is_compiled)
        few, multiply = self._few_tokens if small else None, adapted or Linear.__call__
        at = ANYWHERE if few is None else few.places(token_ids.numel())
        traits = self.config.traits
        hidden = self.embedding(token_ids, at.hidden)
        if traits.embedding != 1:
            hidden.mul_(traits.embedding)
        rotations = self._rotations(positions, at)
        given: Iterable[Tensor] = repeat(hidden.clone() if traits.shared else hidden)
        if self.inputs is not None:
            given = self.inputs(token_ids, hidden)

        taken = self._taken
        if taken is not None:
            taken.begin(token_ids.numel())

        def through() -> Tensor | None:
            part: Tensor | None = None
            each = zip(self.layers, self._turning, given, strict=False)
            for index, (layer, kind, its) in enumerate(each):
                part = layer(hidden, its, part, rotations[kind], attend, at, multiply, states)
                if taken is not None:
                    taken.take(index, hidden, part)
            return part

        if few is not None and isinstance(attend, CpuAttention):
            part = few.run(attend, at, through, None if adapted is None else adapted.chains)
        else:
            part = through()
        if pooled is not None:
            pooled.states = self._normed(hidden, part, pooled.rows)
        logits = self.head(self._normed(hidden, part, logit_rows))
        if self._split is not None:
            logits = self._split.gather(logits, self._split.widths)
        if traits.logits != 1:
            logits.mul_(traits.logits)
        cap = traits.logits_cap
        return logits.div_(cap).tanh_().mul_(cap) if cap else logits

    def _normed(self, hidden: Tensor, part: Tensor | None, rows: Tensor) -> Tensor:
        """The states of some tokens after the last norm."""
        last = None if part is None else part.index_select(0, rows)
        return self.norm(hidden.index_select(0, rows), last)

    def _rotations(self, positions: Tensor, at: StepBuffers) -> list[Rotation]:
        """The rotations of each kind of layer."""
        tables: list[Tensor | None] = [None] * len(self.rotaries)
        if at.rotation is not None:
            tables = [*at.rotation.view(len(self.rotaries), positions.numel(), -1)]
        return [
            rotary.at(positions, table) for rotary, table in zip(self.rotaries, tables, strict=True)
        ]

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None:
        """Lay the weights out for this machine, one matrix at a time. Once, after loading."""
        for _, linear in self.linears():
            linear.pack(choose, quantize)
        # On a GPU experts are joined by this, before memory for keys and values is counted.
        by_host = [layer.experts_by_host for layer in self.layers]
        if not any(by_host) and all(layer.is_compiled for layer in self.layers):
            config, hidden = self.config, self.config.hidden_size
            heads, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
            gated = config.intermediate_size
            turning = len(self.rotaries) * config.head_dim
            sizes = hidden, turning, hidden, heads + 2 * kv, heads, gated, hidden
            self._few_tokens = FewTokens(sizes, self._options)

    @property
    def on_host(self) -> tuple[str, ...]:
        """Name what makes its calls others for other tokens: experts that are chosen by the host,
        states are taken row by row, ranks wait for each other, and a draft head reads what calls of
        the step have taken.
        """
        parts = {
            "experts": any(layer.experts_by_host for layer in self.layers),
            "states": any(layer.state is not None for layer in self.layers),
            "ranks": self._split is not None,
            "a draft head": self._taken is not None,
        }
        return tuple(name for name, there in parts.items() if there)

    def take(self, layers: Sequence[int]) -> TakenStates:
        """Take in each step from now on what tokens are after these layers. Once."""
        self._taken = TakenStates(layers, self.config.hidden_size, MOST_TOKENS, self._options)
        return self._taken

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """All products, in the order in which they are computed, and where their names begin."""
        if self.inputs is not None:
            for place, linear in self.inputs.linears():
                yield f"model.{place}", linear
        for index, layer in enumerate(self.layers):
            for place, linear in layer.linears():
                yield f"model.layers.{index}.{place}", linear
        yield "", self.head

    def tables(self) -> Iterator[tuple[str, TokenEmbedding]]:
        """Tables with a row per token of the vocabulary, by the stored name of their weight."""
        yield f"{EMBEDDING}.weight", self.embedding
        if self.inputs is not None:
            yield f"{EMBEDDING}_per_layer.weight", self.inputs.table

    @property
    def expansions(self) -> list[Expansion]:
        """The matrices with which attention makes keys and values, of each layer (some other's
        where it has no attention); empty: it is given them.
        """
        mixers = (layer.attention for layer in self.layers)
        found = [None if mixer is None else mixer.expansion for mixer in mixers]
        known = [expansion for expansion in found if expansion is not None]
        return [expansion or known[0] for expansion in found] if known else []

    def adaptable(self) -> Iterator[tuple[str, Linear]]:
        """Products that adapters may add to, and where their names begin."""
        for index, layer in enumerate(self.layers):
            for place, linear in layer.adaptable():
                yield f"model.layers.{index}.{place}", linear

    def weights(self) -> dict[str, Tensor]:
        """Every weight by its checkpoint name, as the (view of) memory to be filled."""
        layers = (
            under(f"model.layers.{index}", layer.named_weights())
            for index, layer in enumerate(self.layers)
        )
        return dict(
            chain(
                under(EMBEDDING, self.embedding.named_weights()),
                under("model", iter(()) if self.inputs is None else self.inputs.named_weights()),
                *layers,
                under(f"model.{self.config.traits.norms.last}", self.norm.named_weights()),
                self.head.named_weights(),
            )
        )


class Fillable(Protocol):
    """A part that a loader fills, see `CausalLM`. head: None: it has none of its own."""

    @property
    def head(self) -> Linear | None: ...

    def weights(self) -> dict[str, Tensor]: ...

    def tables(self) -> Iterable[tuple[str, TokenEmbedding]]: ...

    def linears(self) -> Iterable[tuple[str, Linear]]: ...

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None: ...


def described(
    config: ModelConfig, stored: int, make: Callable[..., Fillable] = CausalLM
) -> dict[str, Tensor]:
    """The weights that `config` asks for, without memory, so that whatever it says costs nothing.

    stored: how many tensors there are, of which each layer and expert has some.
    """
    if config.n_layers > stored:
        raise CheckpointError(
            f"the model's config asks for {config.n_layers} layers (num_hidden_layers), "
            f"but the files hold {stored} tensors"
        )
    experts = config.traits.experts
    layers = sum(experts.layers) if experts and experts.layers else config.n_layers
    if experts is not None and experts.number * layers > stored:
        raise CheckpointError(
            f"the model's config asks for {experts.number * layers} experts in all layers, but the "
            f"files hold weights of at most {stored}"
        )
    nowhere = torch.device("meta")
    try:
        with nowhere:
            return make(config, dtype=torch.float32, device=nowhere).weights()
    except RuntimeError as error:
        raise CheckpointError(
            f"the model's config asks for weights that can not be: {error}"
        ) from None


def product_shapes(config: ModelConfig, dtype: str) -> list[GemmShape]:
    """The shapes of a model's products, each once; no memory is taken for them."""
    model = CausalLM(config, dtype=getattr(torch, dtype), device=torch.device("meta"))
    shapes = (
        GemmShape.of(linear.weight, linear.result, gated=linear.gate is not None)
        for _, linear in model.linears()
    )
    return list(dict.fromkeys(shapes))
