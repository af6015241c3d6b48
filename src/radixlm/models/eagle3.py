"""EAGLE-3 heads (Li et al., 2025), in the format in which SpecForge and others publish them: one
layer that goes on from states of a model, and proposes tokens of a vocabulary of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.attention.backends import CpuAttention
from radixlm.core.errors import CheckpointError, ConfigError
from radixlm.formats.model_files import files_of
from radixlm.layers.few_tokens import MOST_TOKENS, FewTokens
from radixlm.layers.linear import Linear, RMSNorm, TokenEmbedding
from radixlm.layers.mlps import MLP
from radixlm.layers.rotary import Rotary
from radixlm.layers.taken_states import TakenStates
from radixlm.memory.pools import LayerShape
from radixlm.models.config_fields import Count, Fields, Flag, Size, read, supported, unsupported
from radixlm.models.decoder import CausalLM
from radixlm.models.decoder_layer import under
from radixlm.models.model_config import ModelConfig
from radixlm.models.safetensors_files import FLOATS, StoredTensor, listed, surveyed
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import Choose

ARCHITECTURE = "LlamaForCausalLMEagle3"
# States that are taken of a model.
_TAKEN = 3
_TABLES = ("d2t", "t2d")
_EMBEDDING = "embed_tokens.weight"


class _Taken(Fields):
    eagle_aux_hidden_state_layer_ids: Annotated[
        list[Count] | None,
        Field(min_length=_TAKEN, max_length=_TAKEN),
        supported(f"{_TAKEN} numbers of layers"),
    ] = None


class _HeadFields(Fields):
    """Fields of a head's config.json that a model has not."""

    architectures: Annotated[list[str], supported("a list of names")] = Field([])
    draft_vocab_size: Size | None = None
    target_hidden_size: Size | None = None
    num_hidden_layers: Size = 1
    eagle_config: _Taken = _Taken()
    norm_before_residual: Flag = False
    norm_before_fc: Flag = False


class Eagle3Config:
    """A head's config.json, beside the model that it is for.

    shape: of its one layer. vocabulary: tokens that it proposes. taken: layers of the model after
    which states are taken. Raises UnsupportedModelError, and ConfigError where it is for another
    model.
    """

    def __init__(self, given: Mapping[str, Any], model: ModelConfig) -> None:
        fields = read(_HeadFields, given)
        if fields.architectures != [ARCHITECTURE]:
            raise unsupported("architectures", fields.architectures, ARCHITECTURE)
        if fields.num_hidden_layers != 1:
            raise unsupported("num_hidden_layers", fields.num_hidden_layers, "1, in a draft head")
        for name in ("norm_before_residual", "norm_before_fc"):
            if getattr(fields, name):
                raise unsupported(name, True, "false")
        as_model = {**given, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        shape = ModelConfig.from_hf(as_model)
        # Positions are the model's, however many the head was trained with.
        self.shape = replace(shape, context_length=model.context_length)
        self.vocabulary = fields.draft_vocab_size or model.vocab_size
        self.target_size = model.hidden_size
        layers = model.n_layers
        ids = fields.eagle_config.eagle_aux_hidden_state_layer_ids
        # As EAGLE-3's authors have it, unless the config says otherwise.
        self.taken = tuple(ids or (1, layers // 2 - 1, layers - 4))
        if sorted(set(self.taken)) != [*self.taken] or not 0 <= self.taken[0] < self.taken[-1]:
            raise unsupported("eagle_aux_hidden_state_layer_ids", [*self.taken], "rising numbers")
        wanted = {
            "vocab_size": (shape.vocab_size, model.vocab_size),
            "target_hidden_size": (fields.target_hidden_size or self.target_size, self.target_size),
            "eagle_aux_hidden_state_layer_ids": (min(self.taken[-1], layers - 1), self.taken[-1]),
        }
        for name, (its, theirs) in wanted.items():
            if its != theirs:
                raise ConfigError(
                    f"this head is for another model: its config field {name!r} does not go with "
                    f"the model's {layers} layers of {self.target_size} numbers and "
                    f"{model.vocab_size} tokens"
                )


class Eagle3Head:
    """The head of a model, see `DraftHead`.

        states of the model  -> fc -> given        token -> embedding
                                        |  norms, side by side  |
                                        +--- attention, MLP ----+--> state -> norm -> head -> token
                                                                       |
                                        given, for the next token <----+

    taken: the states of the model. embedding: the model's, where the head has none.
    """

    source = "eagle3"
    expansions = ()

    def __init__(
        self,
        config: Eagle3Config,
        taken: TakenStates,
        embedding: TokenEmbedding | None,
        options: TensorOptions,
    ) -> None:
        self._taken = taken
        its, size = config.shape, config.shape.hidden_size
        self.config = config
        self._own_embedding = TokenEmbedding(its.vocab_size, size, options)
        self.embedding = embedding or self._own_embedding
        q, kv = its.n_heads * its.head_dim, its.n_kv_heads * its.head_dim
        parts = {"q_proj": q, "k_proj": kv, "v_proj": kv}
        self.fc = Linear(_TAKEN * config.target_size, {"fc": size}, options, bias=False)
        self.qkv = Linear(2 * size, parts, options, bias=False)
        self.output = Linear(q, {"o_proj": size}, options, bias=False)
        self.mlp = MLP(size, its.intermediate_size, options, bias=False)
        self.head = Linear(size, {"lm_head": config.vocabulary}, options, bias=False)
        self.head.result = torch.float32
        self.norms = {
            name: RMSNorm(size, its.norm_eps, options)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")
        }
        self.rotary = Rotary(its.rope, its.head_dim, its.context_length, options)
        self._tokens: Tensor | None = None
        self._options = options
        self._few: FewTokens | None = None
        self._inputs: list[Tensor] = []

    @property
    def shape(self) -> LayerShape:
        """See `HeadRows`."""
        its = self.config.shape
        return LayerShape(its.n_kv_heads, its.head_dim, None, its.hidden_size)

    @property
    def n_heads(self) -> int:
        return self.config.shape.n_heads

    def given(self) -> Tensor:
        """See `DraftHead`."""
        return self.fc(self._taken.rows)

    def state(
        self, tokens: Tensor, given: Tensor, positions: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """See `DraftHead`."""
        if (
            self._few is not None
            and len(tokens) <= MOST_TOKENS
            and isinstance(attend, CpuAttention)
        ):
            return self._few_states(self._few, tokens, given, positions, attend)
        norms, embedded = self.norms, self.embedding(tokens)
        both = torch.cat((norms["input_layernorm"](embedded), norms["hidden_norm"](given)), dim=1)
        answers = attend(0, self.qkv(both), self.rotary.at(positions, None), None)
        hidden = given.clone()
        normed = norms["post_attention_layernorm"](hidden, self.output(answers))
        normed = norms["norm"](hidden, self.mlp(normed))
        return hidden, normed

    def _few_states(
        self,
        few: FewTokens,
        tokens: Tensor,
        given: Tensor,
        positions: Tensor,
        attend: CpuAttention,
    ) -> tuple[Tensor, Tensor]:
        """The same by calls that were recorded, in memory that is always the same."""
        at, norms, size = few.places(len(tokens)), self.norms, given.shape[1]
        both, embedded, hidden, normed = (memory[: len(tokens)] for memory in self._inputs)
        self.embedding(tokens, embedded)
        hidden.copy_(given)
        rotation = self.rotary.at(positions, at.rotation)

        def through() -> None:
            norms["input_layernorm"](embedded, None, both[:, :size])
            norms["hidden_norm"](hidden, None, both[:, size:])
            answers = attend(0, self.qkv(both, at.qkv), rotation, None)
            part = self.output(answers, at.part)
            norms["post_attention_layernorm"](hidden, part, normed)
            part = self.mlp(normed, at.gated, at.part)
            norms["norm"](hidden, part, normed)

        few.run(attend, at, through)
        return hidden, normed

    def likeliest(self, normed: Tensor) -> Tensor:
        """See `DraftHead`."""
        best = self.head(normed).argmax(-1)
        return best if self._tokens is None else self._tokens[best]

    def pack(self, choose: Choose) -> None:
        """Lay the weights out for this machine. Once, after loading."""
        for linear in self.linears():
            linear.pack(choose)
        products = self.qkv.is_compiled and self.output.is_compiled and self.mlp.is_compiled
        if products and all(norm.is_compiled for norm in self.norms.values()):
            its = self.config.shape
            size, q = its.hidden_size, its.n_heads * its.head_dim
            kv = its.n_kv_heads * its.head_dim
            sizes = size, its.head_dim, size, q + 2 * kv, q, its.intermediate_size, size
            self._few = FewTokens(sizes, self._options)
            self._inputs = [
                self._options.empty(MOST_TOKENS, width * size) for width in (2, 1, 1, 1)
            ]

    def propose(self, tokens: Tensor | None) -> None:
        """Propose these tokens; None: all of the model, in order."""
        self._tokens = tokens

    def linears(self) -> list[Linear]:
        return [self.fc, self.qkv, self.output, *(its for _, its in self.mlp.linears()), self.head]

    def weights(self) -> dict[str, Tensor]:
        """Every weight by its name, as the (view of) memory to be filled."""
        middle, layer = {**self.norms}, "midlayer"
        last = middle.pop("norm")
        return dict(
            chain(
                self.fc.named_weights(),
                under(f"{layer}.self_attn", self.qkv.named_weights()),
                under(f"{layer}.self_attn", self.output.named_weights()),
                under(f"{layer}.mlp", self.mlp.named_weights()),
                *(under(f"{layer}.{name}", norm.named_weights()) for name, norm in middle.items()),
                under("norm", last.named_weights()),
                self.head.named_weights(),
                self._embedded(),
            )
        )

    def _embedded(self) -> Iterator[tuple[str, Tensor]]:
        own = self.embedding is self._own_embedding
        return under("embed_tokens", self.embedding.named_weights() if own else iter(()))


def load_eagle3(
    folder: Path,
    model: CausalLM,
    *,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose | None = None,
) -> Eagle3Head:
    """The head in a folder, for a model that is loaded. Raises ModelError that names the tensor,
    the field or the file; ConfigError where it is for another model.
    """
    config = Eagle3Config(files_of(folder).config(), model.config)
    stored, stray = surveyed(folder)
    own = _EMBEDDING in stored
    size = config.shape.hidden_size
    if not own and size != config.target_size:
        raise CheckpointError(
            f"the draft head has states of {size} numbers, the model's have {config.target_size}: "
            f"it needs {_EMBEDDING}"
        )
    taken, embedding = model.take(config.taken), None if own else model.embedding
    # Sizes that a config makes up take no memory before they are those of the tensors.
    shapes = Eagle3Head(config, taken, embedding, TensorOptions(dtype, torch.device("meta")))
    wanted = {name: tuple(weight.shape) for name, weight in shapes.weights().items()}
    if "d2t" in stored or config.vocabulary != model.config.vocab_size:
        wanted |= {"d2t": (config.vocabulary,), "t2d": (model.config.vocab_size,)}
    _check(stored, stray, wanted)
    head = Eagle3Head(config, taken, embedding, TensorOptions(dtype, device))
    for name, weight in head.weights().items():
        weight.copy_(stored[name].read())
    if "d2t" in wanted:
        head.propose(_proposed(stored, device))
    if choose is not None:
        head.pack(choose)
    return head


def _check(
    stored: Mapping[str, StoredTensor], stray: list[str], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    if missing := [name for name in wanted if name not in stored]:
        raise CheckpointError(f"the draft head lacks {listed(missing)}")
    if more := [name for name in (*stored, *stray) if name not in wanted]:
        raise CheckpointError(f"the draft head holds {listed(more)}, which EAGLE-3's have not")
    for name, shape in wanted.items():
        its = stored[name]
        kinds = ("I64", "I32", "BOOL") if name in _TABLES else FLOATS
        if its.shape != shape or its.dtype not in kinds:
            raise CheckpointError(
                f"tensor {name!r} of the draft head is {its.dtype} of shape {its.shape}, its "
                f"config asks for one of {', '.join(kinds)} of shape {shape}"
            )


def _proposed(stored: Mapping[str, StoredTensor], device: torch.device) -> Tensor:
    """The model's token of each one of the draft vocabulary."""
    ahead, known = stored["d2t"].read().long(), stored["t2d"].read().bool()
    tokens = ahead + torch.arange(ahead.numel())
    if not torch.equal(tokens.sort().values, known.nonzero().flatten()):
        raise CheckpointError("d2t and t2d of the draft head name different tokens")
    return tokens.to(device)
