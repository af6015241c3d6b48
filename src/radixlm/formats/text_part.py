"""The text of a model of text and more: its config, and which tensors are its.

config.json   {"model_type": "gemma3", "text_config": {...}, "vision_config": {...}}
tensors       language_model.model.layers.0...  or  model.language_model.layers.0...  or ...
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from radixlm.formats.model_types import MODEL_TYPES, ModelType

# Where a config has that of its text; each may lie in one of the others.
_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
# What is said outside of it.
_OUTSIDE = (
    *("quantization_config", "transformers_version", "dtype", "torch_dtype"),
    *("eos_token_id", "bos_token_id"),
)
# Their weights, or a part of them: a scale beside its codes. Nemotron-H calls a decoder a backbone,
# BLIP's text has BERT's names.
_EMBEDDING, _HEAD = (
    re.compile(rf"((?:.*\.)?)(?:{names})\.(.+)")
    for names in (
        r"embed_tokens|(?<=backbone\.)embeddings|(?<=text_decoder\.bert\.)embeddings\.word_embeddings",
        r"lm_head|(?<=text_decoder\.)cls\.predictions",
    )
)
# Parts with embeddings of their own.
_OTHERS = re.compile(r"(^|\.)(talker|code2wav|code_predictor|mtp|vision|visual|audio)")
_LAYER = re.compile(r"((?:.*?\.)?)layers\.\d")
# Parts of names that Cosmos 3 has from Diffusers.
_DIFFUSERS = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "o_proj"}
_DIFFUSERS |= {"norm_q": "q_norm", "norm_k": "k_norm"}
_DECODER = re.compile(r"(layers\.\d|norm\.|embed_tokens\.)")


def has_other_parts(config: Mapping[str, Any]) -> bool:
    """Whether a config is of a model that has more than text."""
    if any(isinstance(config.get(name), Mapping) for name in _SECTIONS):
        return True
    return bool(MODEL_TYPES.get(str(config.get("model_type")), ModelType()).text)


def text_config(config: Mapping[str, Any], sections: Collection[str] = _SECTIONS) -> dict[str, Any]:
    """The config of a model's text, as a model of text alone has it; of such a one the config
    itself. sections: names of what may hold it; none lies in another of its own name.
    """
    outer = dict(config)
    known = MODEL_TYPES.get(str(config.get("model_type")), ModelType())
    given = [name for name in sections if isinstance(config.get(name), Mapping)]
    section = config[given[0]] if given else None
    if section is None and not known.text:
        return outer
    # Older files have the text's fields beside the other parts.
    rest = [name for name in sections if name not in given[:1]]
    inner = text_config(section, rest) if section is not None else outer
    made = {name: its for name, its in inner.items() if name != "architectures"}
    own = str(made.get("model_type") or known.text)
    # transformers 4 wrote Glm4vMoe_text, where 5 has glm4v_moe_text.
    if section is None or own.replace("_", "").lower() == known.text.replace("_", ""):
        made["model_type"] = known.text or None
    made |= {name: outer[name] for name in _OUTSIDE if outer.get(name) is not None}
    tied = [each.get("tie_word_embeddings") for each in (outer, inner)]
    said = [each for each in tied if each is not None]
    made["tie_word_embeddings"] = next(filter(None, said), False) if said else known.tied
    return made


def text_names(names: Collection[str]) -> dict[str, str]:
    """The tensors of a model's text: names in the files, and as a model of text alone has them.

    >>> text_names(["language_model.model.embed_tokens.weight", "language_model.lm_head.weight"])
    {'language_model.model.embed_tokens.weight': 'model.embed_tokens.weight', \
'language_model.lm_head.weight': 'lm_head.weight'}
    """
    own = [name for name in names if is_of_text(name)]
    found = [match[1] for name in own if (match := _EMBEDDING.fullmatch(name))]
    if not found:
        return {}
    prefix = min(found, key=len)
    heads = [match for name in own if (match := _HEAD.fullmatch(name))]
    heads = [head for head in heads if prefix.startswith(head[1])]
    kept = "decoder." if prefix.endswith(".decoder.") else ""  # OPT's own
    made = {}
    for name in names:
        rest = name.removeprefix(prefix)
        # Beside other parts, whose names it would have to know.
        if name.startswith(prefix) and (prefix not in ("", "model.") or _DECODER.match(rest)):
            parts = (_DIFFUSERS.get(part, part) for part in rest.split("."))
            made[name] = f"model.{kept}{'.'.join(parts)}"
    nearest = max((head[1] for head in heads), key=len, default="")
    return made | {head[0]: f"lm_head.{head[2]}" for head in heads if head[1] == nearest}


def is_of_text(name: str) -> bool:
    """Whether a tensor or module is of none of a model's other parts, by its name."""
    return not _OTHERS.search(name)


def text_start(modules: Collection[str]) -> str:
    """The part of names before those of a text's layers.

    >>> text_start(["model.vision_tower.layers.0.mlp", "model.language_model.layers.0.mlp"])
    'model.language_model.'
    """
    own = filter(is_of_text, modules)
    return min((m[1] for name in own if (m := _LAYER.match(name))), key=len, default="model.")
