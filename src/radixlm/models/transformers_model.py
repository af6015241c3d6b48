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
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.attention.attend import Attend
from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.weight_files import text_tensors
from radixlm.layers.expansion import Expansion
from radixlm.layers.lora import Multiply
from radixlm.layers.rotary import RopeConfig, Rotation
from radixlm.layers.step_states import NO_STATES, StepStates
from radixlm.models.adapter_config import CONFIG as ADAPTER
from radixlm.models.config_fields import read, unsupported
from radixlm.models.hf_config import EndTokens
from radixlm.models.model_config import ModelConfig
from radixlm.models.traits import Traits
from radixlm.models.transformers_modules import replace_modules
from radixlm.products.gemm_choice import Choose

# What it is called in transformers' table of attention functions.
NAME = "radixlm"
# Rotations that change with the longest position of a step: keys that are cached would be wrong.
_CHANGING = ("dynamic", "longrope")
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
# Of layers, all that attention here knows without a file of ours.
_KINDS = frozenset({"full_attention", "sliding_attention"})
# Of attention's arguments those tensors that change nothing here.
_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings"})


class _AttentionCall(NamedTuple):
    """The arguments with which a layer calls attention. heads: of queries, of keys; dims: of keys,
    of values.
    """

    layer: int
    heads: tuple[int, int]
    dims: tuple[int, int]
    window: int | None
    cap: float
    causal: bool
    others: tuple[str, ...]


class _Bridge:
    """A bridge from transformers' attention interface to one step's `Attend`; with none it takes
    notes, and answers with zeros.
    """

    def __init__(self) -> None:
        self.attend: Attend | None = None
        self.calls: list[_AttentionCall] = []
        self._unturned: Rotation | None = None

    def __call__(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float, more: Mapping[str, Any]
    ) -> Tensor:
        """q, k, v: (1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim). v's may be less:
        zeros fill it up.
        """
        (tokens, head_dim), of_values = q.shape[2:], v.shape[3]
        if self.attend is None:
            self.calls.append(_noted(layer, q, k, v, more))
            return q.new_zeros(1, tokens, q.shape[1], of_values)
        factor = scale * math.sqrt(head_dim)
        q = q if factor == 1 else q * factor
        v = v if of_values == head_dim else functional.pad(v, (0, head_dim - of_values))
        qkv = torch.cat([each[0].transpose(0, 1) for each in (q, k, v)], dim=1).flatten(1)
        sinks = more.get("s_aux")
        sinks = None if sinks is None else sinks.detach().float()
        answers = self.attend(layer, qkv, self._rotation(q), None, sinks)
        return answers.view(1, tokens, -1, head_dim)[..., :of_values]

    def _rotation(self, q: Tensor) -> Rotation:
        """The rotation of nothing: transformers has turned them."""
        tokens, head_dim = q.shape[2:]
        known = self._unturned
        if known is None or known.table.shape[0] < tokens:
            table = q.new_zeros(tokens, head_dim)
            table[:, : head_dim // 2] = 1
            self._unturned = known = Rotation(table)
        return Rotation(known.table[:tokens])


def _noted(layer: int, q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Any]) -> _AttentionCall:
    others = (
        name
        for name, value in more.items()
        if isinstance(value, Tensor) and name not in _HARMLESS and name != "s_aux"
    )
    return _AttentionCall(
        layer,
        (q.shape[1], k.shape[1]),
        (k.shape[3], v.shape[3]),
        more.get("sliding_window"),
        float(more.get("softcap") or 0),
        more.get("is_causal") is not False,
        tuple(others),
    )


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend, called as transformers calls attention. A mask is one that the model made by
    itself.
    """
    if attention_mask is not None:
        more["attention_mask"] = attention_mask
    more.setdefault("is_causal", getattr(module, "is_causal", True))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    bridge: _Bridge = module.radixlm
    return bridge(module.layer_idx, query, key, value, scale, more), None


class TransformersModel:
    """One that transformers computes, but for attention. See `CausalLM` for the call."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        """model: of transformers, with our attention. Raises UnsupportedModelError."""
        self._model, self._bridge = model, _Bridge()
        for module in model.modules():
            module.radixlm = self._bridge
        if "position_ids" not in inspect.signature(model.forward).parameters:
            raise _refused(config.model_type, "it takes no positions")
        self.config = self._asked(config)
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
    ) -> Tensor:
        """(tokens,), (tokens,), ..., (n,) int64 -> (n, vocab) float32 logits."""
        self._bridge.attend = attend
        made: Tensor = self._run(token_ids, positions, logit_rows)
        return made

    def _run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        made = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
        )
        logits: Tensor = made.logits[0].float()
        return logits

    @torch.inference_mode()
    def _asked(self, config: ModelConfig) -> ModelConfig:
        """The attributes that its layers have."""
        two = torch.arange(2, device=self._model.device)
        try:
            self._run(two % config.vocab_size, two, two)
        except Exception as error:  # whatever modules raise that ask for more than attention
            why = f"its modules do not run: {type(error).__name__}: {error}"
            raise _refused(config.model_type, why) from error
        calls = self._bridge.calls
        if [call.layer for call in calls] != list(range(config.n_layers)):
            count = f"attention was asked {len(calls)} times by {config.n_layers} layers"
            raise _refused(config.model_type, f"{count}; it has layers of another kind")
        if not all(call.causal for call in calls):
            raise _refused(config.model_type, "it is an encoder, whose tokens see those after them")
        if len({(call.heads, call.dims, call.cap) for call in calls}) > 1:
            raise _refused(config.model_type, "its layers have heads of different sizes")
        heads, (head_dim, of_values), cap = calls[0].heads, calls[0].dims, calls[0].cap
        if head_dim < of_values or head_dim % 2:
            raise _refused(config.model_type, f"keys have {head_dim} numbers, values {of_values}")
        others = sorted({name for call in calls for name in call.others})
        if others:
            raise _refused(config.model_type, f"attention is to take {', '.join(others)}")
        windows = tuple(call.window for call in calls)
        if not any(windows) and any(config.traits.windows):
            raise _refused(config.model_type, "it has a window, but does not give it to attention")
        traits = Traits(windows=windows if any(windows) else (), score_cap=cap)
        return replace(
            config, n_heads=heads[0], n_kv_heads=heads[1], head_dim=head_dim, traits=traits
        )


def transformers_config(library: Any, folder: Path, ends: Mapping[str, Any]) -> ModelConfig:
    """Read config.json as transformers does; heads are known when the model is loaded.

    library: the module `transformers`. ends: generation_config.json. Raises UnsupportedModelError.
    """
    return shape_of(library, hf_text(library, folder), ends)


def shape_of(library: Any, config: Any, ends: Mapping[str, Any]) -> ModelConfig:
    """The shape that transformers' config of a text describes; see `transformers_config`."""
    _check_kind(library, config)
    sizes = {size: getattr(config, size, None) for size in _SIZES}
    sizes["max_position_embeddings"] = getattr(config, "max_position_embeddings", None)
    for field, value in sizes.items():
        if not isinstance(value, int) or value < 1:
            raise unsupported(field, value, "a positive integer")
    _check_ropes(getattr(config, "rope_parameters", None))
    window = getattr(config, "sliding_window", None)
    given = {field: getattr(config, field, None) for field in ("eos_token_id", "bos_token_id")}
    dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    n_heads = sizes["num_attention_heads"] or 1
    return ModelConfig(
        model_type=str(config.model_type),
        vocab_size=sizes["vocab_size"] or 1,
        hidden_size=sizes["hidden_size"] or 1,
        intermediate_size=0,
        n_layers=sizes["num_hidden_layers"] or 1,
        n_heads=n_heads,
        n_kv_heads=n_heads,
        head_dim=(sizes["hidden_size"] or 1) // n_heads,
        context_length=sizes["max_position_embeddings"] or 1,
        norm_eps=0.0,
        rope=RopeConfig(10_000.0),
        ropes=(),
        traits=Traits(windows=(window,) if window else ()),
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        dtype=dtype,
        eos_token_ids=read(EndTokens, given).ids | read(EndTokens, ends).ids,
        bos_token_id=given["bos_token_id"],
    )


def _check_ropes(rope: Any) -> None:
    """Check the rotations of all layers, or of each kind of layer."""
    if not isinstance(rope, Mapping):
        return
    if (kind := rope.get("rope_type")) in _CHANGING:
        raise unsupported("rope_parameters.rope_type", kind, "one that does not change the past")
    for of_some in rope.values():
        _check_ropes(of_some)


def register(library: Any) -> None:
    """Register our attention under NAME."""
    library.AttentionInterface.register(NAME, _attention)


def asked_without_weights(library: Any, config: Any, ends: Mapping[str, Any]) -> ModelConfig:
    """The shape that a model of transformers' config of a text says it has, with its heads, by its
    modules without memory. Raises UnsupportedModelError.
    """
    shape = shape_of(library, config, ends)
    register(library)
    try:
        with torch.device("meta"):
            model = library.AutoModelForCausalLM.from_config(
                config, attn_implementation=NAME, dtype=torch.bfloat16
            )
    except Exception as error:  # whatever modules raise
        why = f"its modules can not be made: {type(error).__name__}"
        raise _refused(shape.model_type, why) from None
    return TransformersModel(model.eval(), shape).config


def load_transformers(
    library: Any,
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose,
) -> TransformersModel:
    """Load a folder with safetensors files. choose: how products are packed. Raises ModelError."""
    of_model = hf_text(library, folder)
    kind = library.MODEL_FOR_CAUSAL_LM_MAPPING[type(of_model)]
    register(library)
    try:
        model, found = kind.from_pretrained(
            str(folder),
            config=of_model,
            dtype=dtype,
            attn_implementation=NAME,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            key_mapping=_renamed(folder),
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"transformers can not load {str(folder)!r}: {error}") from None
    for what in ("missing_keys", "mismatched_keys"):
        if found.get(what):
            names = ", ".join(sorted(map(str, found[what]))[:5])
            raise CheckpointError(f"the checkpoint {str(folder)!r} has {what}: {names}")
    model = model.eval().to(device)
    replace_modules(model, choose)
    return TransformersModel(model, config)


def _renamed(folder: Path) -> dict[str, str] | None:
    """Patterns of names that are a text's beside other parts, and what they become; None: all
    names stand as they are.
    """
    names = text_tensors(folder)
    return names and {f"^{re.escape(stored)}$": name for stored, name in names.items()}


def hf_text(library: Any, folder: Path) -> Any:
    """The config of a folder's text, as transformers has it. Raises UnsupportedModelError."""
    try:
        config = library.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        text = config.get_text_config(decoder=True)
    except (OSError, ValueError, KeyError) as error:
        raise UnsupportedModelError(
            f"transformers {library.__version__} can not read {str(folder)!r}: {error}"
        ) from None
    if getattr(config, "quantization_config", None) is not None:
        raise _refused(str(config.model_type), "its weights are quantized")
    _check_weights(config, folder)
    for name in ("tie_word_embeddings", "eos_token_id", "dtype"):
        if (said := getattr(config, name, None)) is not None:
            setattr(text, name, said)
    return text


def _check_kind(library: Any, config: Any) -> None:
    """Check what its code and its layers are. Raises UnsupportedModelError."""
    name = str(config.model_type)
    if type(config) not in library.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refused(name, "it has no causal language model of its text alone")
    kinds = set(getattr(config, "layer_types", None) or ()) - _KINDS
    if kinds:
        raise _refused(name, f"it has layers of {', '.join(sorted(kinds))}")
    if not library.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].is_backend_compatible():
        raise _refused(name, "its attention can not be replaced")


def _check_weights(config: Any, folder: Path) -> None:
    """Raises where transformers would read others than `weight_files` has."""
    if (named := getattr(config, "transformers_weights", None)) is not None:
        raise unsupported("transformers_weights", named, "weights with their usual names")
    if (folder / ADAPTER).exists():
        raise CheckpointError(
            f"{folder} has an {ADAPTER}: transformers would add that adapter to the model. Merge "
            "it into the weights (merge_and_unload of peft), or move it to a folder of its own"
        )


def _refused(name: str, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"model_type {name!r} is not served by transformers here: {why}")
