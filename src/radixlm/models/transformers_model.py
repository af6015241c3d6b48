"""Architectures without a file of their own: transformers' modules, with attention over our pool.

    tokens of all rows, one after the other, as one sequence with positions of its own
      -> embeddings, norms, projections, rotary: transformers'
      -> its attention interface, once for each layer -> `Attend`: pool, tree, windows, caps, sinks
      -> logits of the rows that want them

What a model is is found by asking it: two tokens go through it once, and each layer says what it
calls attention with. Where a layer does not, or says what attention here does not know, it is
refused by name.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.core.errors import CheckpointError
from radixlm.layers.expansion import Expansion
from radixlm.layers.lora import Multiply
from radixlm.layers.rotary import RopeConfig
from radixlm.layers.step_states import NO_STATES, StepStates
from radixlm.memory.pools import LayerShape
from radixlm.models.config_fields import read, unsupported
from radixlm.models.decoder import PooledRows
from radixlm.models.hf_config import EndTokens
from radixlm.models.meta_numbers import NoNumbers
from radixlm.models.model_config import ModelConfig
from radixlm.models.traits import Traits
from radixlm.models.transformers_attention import MASKS, NAME, Bridge, attention
from radixlm.models.transformers_modules import replace_modules
from radixlm.models.transformers_scores import ASKED, MOST_POSITIONS, OWN, OwnAttention, no_mask
from radixlm.models.transformers_source import ENCODER, Source, refused, source_in
from radixlm.products.gemm_choice import Choose

_logger = logging.getLogger("radixlm.models")
# Rotations that change with the longest position of a step: keys that are cached would be wrong.
_CHANGING = ("dynamic", "longrope")
# Of models with ALiBi some do not say what they were trained with.
_LENGTHS, _LENGTH = ("max_position_embeddings", "max_seq_len", "seq_length"), 2048
# Doge attends to all keys up to this many, and then to those with the greatest numbers added.
_KEPT = "keep_window_size"
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


class TransformersModel:
    """One that transformers computes, but for attention. See `CausalLM` for the call."""

    def __init__(self, model: Any, config: ModelConfig, source: Source) -> None:
        """model: of transformers, with our attention. Raises UnsupportedModelError."""
        self._model, self._bridge = model, Bridge()
        self._own: OwnAttention | None = None
        if source.attends:
            self._own = OwnAttention(self._bridge, alibi=source.alibi, kv_heads=source.kv_heads)
        for module in model.modules():
            module.radixlm = self._bridge
            for name in filter(partial(hasattr, module), MASKS):
                setattr(module, name, MASKS[name])
        self._takes = inspect.signature(model.forward).parameters.keys() & {"position_ids"}
        if not self._takes and not source.alibi:
            raise refused(config.model_type, "it takes no positions")
        self._first = source.first_position
        self.config = self._asked(config)
        if self._own:
            model.config._attn_implementation = OWN
        self.expansions: tuple[Expansion, ...] = ()

    @torch.inference_mode()
    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        logit_rows: Tensor,
        adapted: Multiply | None = None,  # noqa: ARG002 - no adapter can be loaded for it
        states: StepStates = NO_STATES,  # noqa: ARG002 - nor has it states
        pooled: PooledRows | None = None,  # noqa: ARG002 - pooled requests are refused for it
    ) -> Tensor:
        """(tokens,), (tokens,), ..., (n,) int64 -> (n, vocab) float32 logits."""
        self._bridge.begin(attend)
        made: Tensor = self._run(token_ids, positions, logit_rows)
        return made

    def _run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        named = dict.fromkeys(self._takes, positions[None] + self._first)
        if self._own:
            self._own.begin(positions)
        with self._own or nullcontext():
            made = self._model(
                input_ids=token_ids[None], use_cache=False, logits_to_keep=rows, **named
            )
        logits: Tensor = made.logits[0].float()
        return logits

    @torch.inference_mode()
    def _asked(self, config: ModelConfig) -> ModelConfig:
        """The attributes that its layers have."""
        few = torch.arange(ASKED, device=self._model.device)
        try:
            with torch.cuda.device_of(few):  # where Triton launches
                self._run(few % config.vocab_size, few, few)
        except Exception as error:  # whatever modules raise that ask for more than attention
            why = f"its modules do not run: {type(error).__name__}: {error}"
            raise refused(config.model_type, why) from error
        calls = self._bridge.calls
        if len(calls) < config.n_layers:
            count = f"attention was asked {len(calls)} times by {config.n_layers} layers"
            raise refused(config.model_type, f"{count}; it has layers of another kind")
        if not all(call.causal for call in calls):
            raise refused(config.model_type, ENCODER)
        if len({(call.heads[0], call.cap) for call in calls}) > 1:
            raise refused(config.model_type, "its layers have different numbers of heads")
        (n_heads, n_kv_heads), head_dim, cap = calls[0].heads, max(calls[0].dims), calls[0].cap
        shapes = tuple(LayerShape(call.heads[1], max(call.dims)) for call in calls)
        if any(shape.head_dim % 2 for shape in shapes):
            raise refused(config.model_type, "its heads have odd sizes")
        others = sorted({name for call in calls for name in call.others})
        if others:
            raise refused(config.model_type, f"attention is to take {', '.join(others)}")
        windows = tuple(call.window for call in calls)
        if self._own:
            windows = config.traits.windows
        if not any(windows) and any(config.traits.windows):
            raise refused(config.model_type, "it has a window, but does not give it to attention")
        traits = Traits(
            windows=windows if any(windows) else (),
            score_cap=cap,
            shapes=shapes if len(set(shapes)) > 1 else (),
        )
        made = replace(config, n_layers=len(calls), traits=traits)
        return replace(made, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim)


def shape_of(source: Source, ends: Mapping[str, Any]) -> ModelConfig:
    """The shape that transformers' config of a text describes; heads are known when the model is
    loaded. ends: generation_config.json. Raises UnsupportedModelError.
    """
    config = source.text
    sizes = {size: getattr(config, size, None) for size in _SIZES}
    sizes["max_position_embeddings"] = next(
        (its for name in _LENGTHS if (its := getattr(config, name, None)) is not None),
        _LENGTH if source.alibi else None,
    )
    if hasattr(config, _KEPT):
        sizes[_KEPT] = getattr(config, _KEPT)
    for field, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise unsupported(field, value, "a positive integer")
    context_length = sizes["max_position_embeddings"] or 1
    if (kept := sizes.get(_KEPT) or context_length) < context_length:
        _logger.info("the context is %s tokens (%s): with more, keys are dropped", kept, _KEPT)
        context_length = kept
    if source.alibi and context_length > MOST_POSITIONS:
        _logger.info("the context is %s tokens: ALiBi is exact up to there", MOST_POSITIONS)
        context_length = MOST_POSITIONS
    _check_ropes(getattr(config, "rope_parameters", None))
    window = getattr(config, "sliding_window", None)
    if window and window >= context_length:
        window = None
    kinds = getattr(config, "layer_types", None)
    if kinds and "sliding_attention" not in kinds:
        window = None
    given = {field: getattr(config, field, None) for field in ("eos_token_id", "bos_token_id")}
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    n_heads = sizes["num_attention_heads"] or 1
    return ModelConfig(
        model_type=str(config.model_type),
        vocab_size=sizes["vocab_size"] or 1,
        hidden_size=sizes["hidden_size"] or 1,
        intermediate_size=0,
        # Layers that only look at images are passed over.
        n_layers=(sizes["num_hidden_layers"] or 1)
        - len(getattr(config, "cross_attention_layers", None) or ()),
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=(sizes["hidden_size"] or 1) // n_heads,
        context_length=context_length,
        norm_eps=0.0,
        rope=RopeConfig(10_000.0),
        ropes=(),
        traits=Traits(windows=_local(config) or ((window,) if window else ())),
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        dtype=dtype,
        eos_token_ids=read(EndTokens, given).ids | read(EndTokens, ends).ids,
        bos_token_id=given["bos_token_id"],
    )


def _local(config: Any) -> tuple[int | None, ...]:
    """The windows of GPT-Neo's layers, which mask them by themselves."""
    kinds = getattr(config, "attention_layers", ())
    return tuple(config.window_size if kind == "local" else None for kind in kinds)


def _check_ropes(rope: Any) -> None:
    """Check the rotations of all layers, or of each kind of layer."""
    if not isinstance(rope, Mapping):
        return
    if (kind := rope.get("rope_type")) in _CHANGING:
        raise unsupported("rope_parameters.rope_type", kind, "one that does not change the past")
    for of_some in rope.values():
        _check_ropes(of_some)


def _attention_of(source: Source) -> dict[str, Any]:
    """The attention that a model is made with: ours, in its text alone where that has a config."""
    if source.attends:
        return {}
    apart = source.config is not source.text and "text_config" in source.config.sub_configs
    return {"attn_implementation": {"": NAME, "text_config": NAME} if apart else NAME}


def register(library: Any) -> None:
    """Register our attention, and a mask that is none."""
    library.AttentionInterface.register(NAME, attention)
    library.AttentionMaskInterface.register(OWN, no_mask)


def asked_without_weights(library: Any, source: Source, ends: Mapping[str, Any]) -> ModelConfig:
    """The shape that a model says it has, with its heads, by its modules without memory. Raises
    UnsupportedModelError.
    """
    shape = shape_of(source, ends)
    register(library)
    try:
        with torch.device("meta"):
            model = source.kind._from_config(
                source.config, dtype=torch.bfloat16, **_attention_of(source)
            )
    except Exception as error:  # whatever modules raise
        why = f"its modules can not be made: {type(error).__name__}"
        raise refused(shape.model_type, why) from None
    with NoNumbers():
        return TransformersModel(model.eval(), shape, source).config


def load_transformers(
    library: Any,
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose,
) -> TransformersModel:
    """Load a folder with safetensors files. choose: how products are packed. Raises ModelError."""
    source = source_in(library, folder)
    register(library)
    try:
        model, found = source.kind.from_pretrained(
            str(folder),
            config=source.config,
            dtype=dtype,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            key_mapping=source.renamed(folder),
            **_attention_of(source),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"transformers can not load {str(folder)!r}: {error}") from None
    for what in ("missing_keys", "mismatched_keys"):
        if found.get(what):
            names = ", ".join(sorted(map(str, found[what]))[:5])
            raise CheckpointError(f"the checkpoint {str(folder)!r} has {what}: {names}")
    model = model.eval().to(device)
    replace_modules(model, choose)
    return TransformersModel(model, config, source)
