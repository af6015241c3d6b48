"""The class of transformers that computes a folder's text, and what it is made and loaded with."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.files import read_json_object
from radixlm.formats.text_part import is_of_text, text_config
from radixlm.formats.weight_files import text_tensors
from radixlm.models.adapter_config import CONFIG as ADAPTER
from radixlm.models.config_fields import unsupported

# Names of how many layers there are; transformers makes objects for each, however many.
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_MOST_LAYERS = 1_000
# Of layers, all that attention here knows without a file of ours.
_KINDS = frozenset({"full_attention", "sliding_attention"})
# Classes that call the attention that they are given, and do not say so.
_COMPATIBLE = frozenset({"biogpt"})
# Classes that compute attention by themselves, in the form that `OwnAttention` knows.
_OWN = frozenset(
    {
        *("blip_text_model", "bloom", "codegen", "falcon", "git", "gpt_neo", "gpt_neox_japanese"),
        *("gptj", "mpt", "openai-gpt", "xglm"),
    }
)
# Modules of classes that run with an image alone, which compute their text.
_TEXTS = {"blip": "text_decoder", "kosmos-2": "text_model"}
# Texts whose positions begin after that of padding, 1 in each that is published.
_PADDED, _PADDING = frozenset({"kosmos_2_text_model", "kosmos_2_5_text_model"}), 1
ENCODER = "it is an encoder, whose tokens see those after them"


class Source(NamedTuple):
    """kind: a class for text alone, or one for more whose other parts are left out. config: that it
    takes. text: the text's.
    """

    kind: Any
    config: Any
    text: Any

    @property
    def attends(self) -> bool:
        """Whether its modules compute attention by themselves."""
        return self.text.model_type in _OWN

    @property
    def alibi(self) -> bool:
        """Whether scores grow with a key's position, which is all that it knows of positions."""
        without = "position_ids" not in inspect.signature(self.kind.forward).parameters
        return self.attends and (without or bool(getattr(self.text, "alibi", False)))

    @property
    def lengthens(self) -> bool:
        """Whether keys have numbers beside them: what scores are to have added."""
        return self.alibi or self.text.model_type == "doge"

    @property
    def first_position(self) -> int:
        """The position of a sequence's first token, as its modules count."""
        return _PADDING + 1 if self.text.model_type in _PADDED else 0

    @property
    def kv_heads(self) -> int:
        """The heads of keys and values at most, whatever attention is given."""
        return getattr(self.text, "num_kv_heads", None) or int(self.text.num_attention_heads)

    def renamed(self, folder: Path) -> dict[str, str] | None:
        """Patterns of names that are a text's beside other parts, and what they become; None: all
        names stand as they are.
        """
        names = text_tensors(folder) if self.config is self.text else None
        return names and {f"^{re.escape(stored)}$": name for stored, name in names.items()}


def source_in(library: Any, folder: Path) -> Source:
    """The source of a folder's text. library: `transformers`. Raises UnsupportedModelError."""
    given = text_config(read_json_object(folder / "config.json"))
    for name in _LAYERS:
        if isinstance(count := given.get(name), int) and count > _MOST_LAYERS:
            raise unsupported(name, count, f"up to {_MOST_LAYERS}")
    try:
        config = library.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        source = source_of(library, config)
    except UnsupportedModelError:
        raise
    except Exception as error:  # whatever its classes raise for a field
        raise UnsupportedModelError(
            f"transformers {library.__version__} can not read {str(folder)!r}: {error}"
        ) from None
    if getattr(config, "quantization_config", None) is not None:
        raise refused(str(config.model_type), "its weights are quantized")
    _check_weights(config, folder)
    for name in ("tie_word_embeddings", "eos_token_id", "dtype"):
        if (said := getattr(config, name, None)) is not None:
            setattr(source.text, name, said)
    return source


def source_of(library: Any, config: Any) -> Source:
    """The source of what a config of transformers describes, if code and layers are of a kind that
    attention here knows. Raises UnsupportedModelError.
    """
    text = config.get_text_config(decoder=True)
    name = str(text.model_type)
    alone = library.MODEL_FOR_CAUSAL_LM_MAPPING
    more = library.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if type(text) in alone:
        source = Source(alone[type(text)], text, text)
    elif type(config) in more:
        source = Source(_for_text(more[type(config)], _TEXTS.get(config.model_type)), config, text)
    else:
        raise refused(name, "it has no causal language model of its text alone")
    kinds = set(getattr(text, "layer_types", None) or ()) - _KINDS
    if kinds:
        raise refused(name, f"it has layers of {', '.join(sorted(kinds))}")
    if name in _PADDED and text.pad_token_id != _PADDING:
        raise unsupported("pad_token_id", text.pad_token_id, str(_PADDING))
    if name == "doge" and text.is_moe:
        raise refused(name, "which experts a token gets depends on the others of a step")
    known = source.kind.is_backend_compatible() or name in _COMPATIBLE | _OWN
    if not known and getattr(text, "is_decoder", None) is False:
        raise refused(name, ENCODER)
    if not known:
        raise refused(name, "its attention can not be replaced")
    return source


def _for_text(kind: Any, part: str | None) -> Any:
    """A class of transformers without the modules of what is no text: nothing is read for them.
    part: the module that is called in its place.
    """

    def made(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        for name, _ in list(self.named_modules()):
            place, _, own = name.rpartition(".")
            if not is_of_text(own) and not re.search(r"layers\.\d", place):
                setattr(self.get_submodule(place), own, torch.nn.Identity())

    def of_part(self: Any, position_ids: Any, **more: Any) -> Any:
        return getattr(self, str(part))(position_ids=position_ids, **more)

    own = {"__init__": made, "__module__": kind.__module__} | ({"forward": of_part} if part else {})
    return type(kind.__name__, (kind,), own)


def _check_weights(config: Any, folder: Path) -> None:
    """Raises where transformers would read others than `weight_files` has."""
    if (named := getattr(config, "transformers_weights", None)) is not None:
        raise unsupported("transformers_weights", named, "weights with their usual names")
    if (folder / ADAPTER).exists():
        raise CheckpointError(
            f"{folder} has an {ADAPTER}: transformers would add that adapter to the model. Merge "
            "it into the weights (merge_and_unload of peft), or move it to a folder of its own"
        )


def refused(name: str, why: str) -> UnsupportedModelError:
    """The error for a model that is not served."""
    return UnsupportedModelError(f"model_type {name!r} is not served by transformers here: {why}")
