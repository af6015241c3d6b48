"""The layer that checkpoints bring to predict a further token (DeepSeek-V3, 2024), as a draft head;
it is of the model's own kind, of hybrids one with attention.

    the model's state, normed -> norm    token -> embedding -> norm
                                   |      side by side      |
                                   +--- joined -> layer ----+--> norm -> head -> token
                                                                  |
    the same state, for the next token <--------------------------+

Tokens come first, and states are normed by the model's last norm, as DeepSeek's own files have it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.core.errors import ConfigError
from radixlm.formats.weight_files import weight_files
from radixlm.layers.expansion import Expansion
from radixlm.layers.linear import Linear, Quantize, TokenEmbedding
from radixlm.layers.rotary import Rotary
from radixlm.memory.pools import LayerShape
from radixlm.models.decoder import EMBEDDING, HEAD, CausalLM, described
from radixlm.models.decoder_layer import DecoderLayer, under
from radixlm.models.folds import Fold, Folded, folds_of
from radixlm.models.layer_norms import make_norm
from radixlm.models.loader import filled, matching
from radixlm.models.model_config import ModelConfig
from radixlm.models.quantized_checkpoints import open_checkpoint
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import Choose


class MtpNames(NamedTuple):
    """Names in the files. place: where all begin. layer: where those of a decoder's layer do.
    joined: of what makes one of a token and a state. norms: of tokens, of states, and the last one.
    embedding, head: of copies of the model's; empty: there are none.
    """

    place: str
    layer: str
    joined: str
    norms: tuple[str, str, str]
    embedding: str = ""
    head: str = ""

    @classmethod
    def of(cls, config: ModelConfig) -> MtpNames | None:
        """The names of DeepSeek and GLM, or of Qwen3-Next and Qwen3.5; None: they are not known."""
        if config.traits.spare_layers:
            place = f"model.layers.{config.n_layers}"
            norms = f"{place}.enorm", f"{place}.hnorm", f"{place}.shared_head.norm"
            copies = f"{place}.embed_tokens", f"{place}.shared_head.head"
            return cls(f"{place}.", place, f"{place}.eh_proj", norms, *copies)
        if "mtp." in config.traits.spare:
            norms = "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"
            return cls("mtp.", "mtp.layers.0", "mtp.fc", norms)
        return None


class MtpLayer:
    """The layer and what is around it; the memory of its weights is filled by a loader.

    config: of a model of this layer alone. own: of embedding and head, what it has itself.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
        names: MtpNames,
        own: Collection[str],
    ) -> None:
        self.config, self._names = config, names
        options, size = TensorOptions(dtype, device), config.hidden_size

        def product(inputs: int, name: str, outputs: int) -> tuple[str, Linear]:
            place, _, last = name.rpartition(".")
            return f"{place}.", Linear(inputs, {last: outputs}, options, bias=False)

        self._joined = product(2 * size, names.joined, size)
        self._head = product(size, names.head, config.vocab_size) if names.head in own else None
        self.joined, self.head = self._joined[1], None if self._head is None else self._head[1]
        if self.head is not None:
            self.head.result = torch.float32
        self.norms = [make_norm(config, options) for _ in names.norms]
        self.layer = DecoderLayer(config, 0, options)
        self.rotary = Rotary(config.rope, config.turning_dim, config.context_length, options)
        self.embedding: TokenEmbedding | None = None
        if names.embedding in own:
            self.embedding = TokenEmbedding(config.vocab_size, size, options)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """See `CausalLM`."""
        yield self._joined
        for place, linear in self.layer.linears():
            yield f"{self._names.layer}.{place}", linear
        if self._head is not None:
            yield self._head

    def tables(self) -> Iterator[tuple[str, TokenEmbedding]]:
        """See `CausalLM`."""
        if self.embedding is not None:
            yield f"{self._names.embedding}.weight", self.embedding

    def weights(self) -> dict[str, Tensor]:
        """See `CausalLM`."""
        own = [self._joined] if self._head is None else [self._joined, self._head]
        norms = zip(self._names.norms, self.norms, strict=True)
        made = chain(
            *(under(place[:-1], linear.named_weights()) for place, linear in own),
            *(under(name, norm.named_weights()) for name, norm in norms),
            under(self._names.layer, self.layer.named_weights()),
        )
        return dict(made) | {name: table.weight for name, table in self.tables()}

    def pack(self, choose: Choose, quantize: Quantize | None = None) -> None:
        """See `CausalLM`."""
        for _, linear in self.linears():
            linear.pack(choose, quantize)


class MtpHead:
    """The layer on a model, see `DraftHead`; it is chained over itself for further tokens."""

    source = "mtp"

    def __init__(self, layer: MtpLayer, model: CausalLM) -> None:
        self._taken, self._norm = model.take((model.config.n_layers - 1,)), model.norm
        self.layer = layer
        self._embedding, self._head = layer.embedding or model.embedding, layer.head or model.head

    @property
    def n_heads(self) -> int:
        return self.layer.config.n_heads

    @property
    def expansions(self) -> list[Expansion]:
        """See `DraftHead`."""
        attention = self.layer.layer.attention
        return [] if attention is None or attention.expansion is None else [attention.expansion]

    @property
    def shape(self) -> LayerShape:
        """See `HeadRows`."""
        its = self.layer.config
        return LayerShape(its.n_kv_heads, its.head_dim, None, its.hidden_size)

    def given(self) -> Tensor:
        """See `DraftHead`."""
        return self._norm(self._taken.rows)

    def state(
        self, tokens: Tensor, given: Tensor, positions: Tensor, attend: Attend
    ) -> tuple[Tensor, Tensor]:
        """See `DraftHead`."""
        its = self.layer
        of_tokens, of_states, last = its.norms
        both = of_tokens(self._embedding(tokens)), of_states(given)
        hidden = its.joined(torch.cat(both, dim=1))
        part = its.layer(hidden, hidden, None, its.rotary.at(positions, None), attend)
        normed = last(hidden, part)
        return normed, normed

    def likeliest(self, normed: Tensor) -> Tensor:
        """See `DraftHead`."""
        return self._head(normed).argmax(-1)


class MtpWeights:
    """The layer's weights in a checkpoint, of several such layers the first's. files: with them."""

    def __init__(self, folder: Path, config: ModelConfig) -> None:
        """config: of the model in there. Raises ConfigError where there is no such layer,
        CheckpointError that names the tensor where it is not as the model's others.
        """
        names = MtpNames.of(config)
        if names is None:
            raise ConfigError(
                "--speculative-algorithm mtp knows no layer of "
                f"{config.model_type} that predicts a further token"
            )
        self._names, traits, experts = names, config.traits, config.traits.experts
        alone = traits._replace(
            experts=experts and experts._replace(layers=()),
            spare_layers=0,
            spare=(),
            mixers=(),
            state=None,
        )
        self._config = replace(config, n_layers=1, traits=alone)
        self.files = weight_files(folder, (names.place,))
        checkpoint = open_checkpoint(folder, (names.place,))
        self._folded = Folded(checkpoint, self._config, self._folds)
        stored = [name for name in self._folded.shapes if name.startswith(names.place)]
        if not stored:
            raise ConfigError(
                "--speculative-algorithm mtp needs the layer that predicts a further token, but "
                f"{str(folder)!r} holds no tensor {names.place}*"
            )
        copies = names.embedding, names.head
        self._own = [name for name in copies if f"{name}.weight" in stored]
        make = partial(MtpLayer, names=names, own=self._own)
        wanted = described(self._config, len(stored), make)
        self._stored = matching(self._folded, stored, wanted)

    def load(
        self,
        model: CausalLM,
        *,
        dtype: torch.dtype,
        device: torch.device,
        choose: Choose | None = None,
        quantize: Quantize | None = None,
    ) -> MtpHead:
        """The layer on its model, which is loaded. Raises CheckpointError."""
        copies = [name for name in self._own if self._is_copy(name)]
        own = [name for name in self._own if name not in copies]
        stored = [name for name in self._stored if name.removesuffix(".weight") not in copies]
        kinds: dict[str, Any] = {"dtype": dtype, "device": device, "names": self._names}
        make = partial(MtpLayer, self._config, **kinds, own=own)
        layer = filled(make, self._folded, stored, choose, quantize, progress=False)
        return MtpHead(layer, model)

    def _is_copy(self, name: str) -> bool:
        """Whether it is the same as the model's, bit by bit, as published ones are."""
        theirs = HEAD if name == self._names.head else EMBEDDING
        if f"{theirs}.weight" not in self._folded.shapes:  # a tied head
            theirs = EMBEDDING
        one, other = (self._folded.read(f"{each}.weight") for each in (name, theirs))
        if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
            return False
        return one.dtype == other.dtype and torch.equal(one, other)

    def _folds(self, alone: ModelConfig) -> dict[str, Fold]:
        """Changes of a layer's weights, by its names, and of the norms around it."""
        first, names = "model.layers.0", self._names
        made = folds_of(alone).items()
        folds = {n.replace(first, names.layer, 1): its for n, its in made if n.startswith(first)}
        if base := alone.traits.norms.base:
            folds |= dict.fromkeys((f"{name}.weight" for name in names.norms), Fold(base=base))
        return folds
