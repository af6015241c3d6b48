"""Writes which model_types are served, and why others are not: the table of
`radixlm.formats.model_types`, and docs/model-types.md.

Each type of transformers' causal and image-text mapping is made as its config class is without
fields, without memory, and asked as when it is loaded.

    python -m scripts.model_types
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from radixlm.core.errors import RadixLMError
from radixlm.formats.model_types import FOREIGN, NATIVE, TABLE_PATH, ModelType
from radixlm.models.families import ARCHITECTURES
from radixlm.models.transformers_model import asked_without_weights
from radixlm.models.transformers_source import ENCODER, source_of
from scripts.code_size import ROOT

PAGE = ROOT / "docs" / "model-types.md"
MAPPED = sorted(
    {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    }
)
# Published configs have fields that the class does not have by itself.
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_ROPES = {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}}
_PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "lfm2": {"full_attn_idxs": [2]},
    "lfm2_vl": {"text_config": {"model_type": "lfm2", "full_attn_idxs": [2]}},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "minimax_m3_vl": {"text_config": {"layer_types": ["minimax_m3_sparse"] * 60}},
    "minimax_m3_vl_text": {"layer_types": ["minimax_m3_sparse"] * 60},
    "ministral": {"head_dim": 128},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {"text_config": _ROPES},
    "cohere_compass_text": _ROPES,
    "dbrx": {"attn_config": {"rope_theta": 500_000.0, "clip_qkv": 8}},
    "deepseek_ocr2": {
        "text_config": {
            "num_experts_per_tok": 6,
            "moe_intermediate_size": 896,
            "mlp_layer_types": ["dense"] + ["sparse"] * 31,
        }
    },
    "dots1": {"n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2},
}
_LONGEST = 150
_DRAFTS = "it proposes tokens for another model, whose keys and values it reads"
_RECURRENT = "it has no attention: its layers carry states of a kind of their own"
# Said in words, where classes have no text, or raise something about another matter.
_REASONS = {
    "blt": "its tokens are bytes, in patches that a model of its own cuts",
    "cpmant": "tokens of its prompts see those after them",
    "diffusion_gemma": "it fills in its answers' tokens in any order (diffusion)",
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "idefics": "its layers between look at images, and it does not run without one",
    "paligemma": "tokens of its prompts see those after them",
    "pi0": "it gives a robot's movements, not text",
    "reformer": "its tokens see others by hashes of the whole prompt",
    "rwkv": _RECURRENT,
    "trocr": "its modules count positions by themselves",
    "xlm": ENCODER,
    "xlnet": "it predicts tokens in other orders than it reads them",
    "xlstm": _RECURRENT,
    "xmod": f"{ENCODER}, with weights for a language that requests do not name",
}
_BOTH = "it is an encoder and a decoder: its answers do not follow on prompts"


def row_of(name: str) -> ModelType:
    """A row of the table, by asking transformers and our families."""
    if name in _REASONS:
        return ModelType(why=_REASONS[name])
    try:
        outer = transformers.AutoConfig.for_model(name, **_PUBLISHED.get(name, {}))
        text = outer.get_text_config(decoder=True)
    except Exception as error:  # whatever a class raises without fields
        return ModelType(why=f"its config has no text of its own ({type(error).__name__})")
    inner = "" if text is outer else str(text.model_type)
    tied = bool(inner and getattr(outer, "tie_word_embeddings", False))
    if outer.is_encoder_decoder:
        return ModelType(why=_BOTH)
    if (inner or name) in ARCHITECTURES:
        return ModelType(NATIVE, text=inner, tied=tied)
    why = _refusal(outer)
    return ModelType("" if why else FOREIGN, why, inner, tied)


def _refusal(config: Any) -> str:
    try:
        asked_without_weights(transformers, source_of(transformers, config), {})
    except RadixLMError as error:
        return str(error).rpartition(" here: ")[2].partition("\n")[0][:_LONGEST]
    return ""


def table_of(names: Iterable[str]) -> dict[str, ModelType]:
    """The rows of these types and of the types of their texts, and those of ours."""
    rows = {name: ModelType(NATIVE) for name in ARCHITECTURES}
    rows |= {name: row_of(name) for name in names}
    inner = {row.text for row in rows.values() if row.text} - rows.keys()
    rows |= {name: row_of(name) for name in sorted(inner)}
    return dict(sorted(rows.items()))


def written(rows: Mapping[str, ModelType]) -> str:
    """The table, a line for each type."""
    usual = ModelType()._asdict()
    lines = [
        f"{json.dumps(name)}: "
        + json.dumps({field: its for field, its in row._asdict().items() if its != usual[field]})
        for name, row in rows.items()
    ]
    made_with = json.dumps(transformers.__version__)
    return f'{{"made_with": {made_with}, "types": {{\n' + ",\n".join(lines) + "\n}}\n"


def page_of(rows: Mapping[str, ModelType]) -> str:
    """The list for readers."""
    mapped = {name: rows[name] for name in MAPPED}
    served = {name for name, row in mapped.items() if row.by}
    lines = [
        "# Model types",
        "",
        (
            f"Of the {len(mapped)} in the mappings of causal and of image-text models of "
            f"transformers {transformers.__version__}, {len(served)} are served, of models of more "
            "than text the text."
        ),
        "",
        "<!-- types: made by python -m scripts.model_types -->",
        "| `model_type` | text | computed by, or why not |",
        "|---|---|---|",
        *(f"| `{name}` | {row.text} | {row.by or row.why} |" for name, row in mapped.items()),
        "<!-- /types -->",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    transformers.logging.set_verbosity_error()
    rows = table_of(MAPPED)
    TABLE_PATH.write_text(written(rows), encoding="utf-8")
    PAGE.write_text(page_of(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
