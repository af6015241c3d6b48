"""The configs of a GGUF file's model, as Hugging Face's JSON files would have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import MODEL_TENSOR, TENSOR_NAMES

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats import gguf_fields as fields
from radixlm.formats.gguf_fields import ATTENTION, FAMILIES, LLM, ROPE, SSM, Family
from radixlm.formats.gguf_file import GGUFFile
from radixlm.formats.gguf_keys import SLIDING, Entries
from radixlm.formats.gguf_tokens import special_id, tokens_of

_FACTORS = f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FREQS]}.weight"
_LONG_FACTORS = {
    "short_factor": f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_SHORT]}.weight",
    "long_factor": f"{TENSOR_NAMES[MODEL_TENSOR.ROPE_FACTORS_LONG]}.weight",
}
# DeepSeek V3's files of 2025 do not say in which groups its 256 experts are.
_GROUPED = {256: (8, 4)}
_UNTURNED = 1e29
_VALUES = ATTENTION.VALUE_LENGTH, ATTENTION.VALUE_LENGTH_SWA
_YARN = {
    "attention_factor": ROPE.SCALING_YARN_ATTN_FACTOR,
    "beta_fast": ROPE.SCALING_YARN_BETA_FAST,
    "beta_slow": ROPE.SCALING_YARN_BETA_SLOW,
}


def family_of(file: GGUFFile) -> Family:
    """Raises UnsupportedModelError for an architecture that is not served."""
    architecture = file.get("general.architecture", str)
    if architecture not in FAMILIES:
        raise UnsupportedModelError(
            f"{file.path}: general.architecture is {architecture!r:.80}, which is not supported; "
            f"supported: {', '.join(FAMILIES)}"
        )
    return FAMILIES[architecture]


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config as config.json has it. Raises CheckpointError that names the key,
    UnsupportedModelError.
    """
    family = family_of(file)
    entries = Entries(file, layered=bool(family.layered))
    layers, spare = entries.needed(LLM.BLOCK_COUNT), entries.count(LLM.NEXTN_PREDICT_LAYERS) or 0
    plain = all(tensor.type.name == "F32" for tensor in file.tensors.values())
    config = {
        "vocab_size": entries.size(LLM.VOCAB_SIZE) or len(tokens_of(file)),
        "num_hidden_layers": layers - spare,
        "num_nextn_predict_layers": spare,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "dtype": "float32" if plain else "bfloat16",
        "bos_token_id": special_id(file, "bos_token"),
        "max_window_layers": 0,
        **family.fields,
        **entries.fields(),
        **_tensors(file),
        **_states(entries),
    }
    if "rms_norm_eps" not in config:
        raise file.wrong(entries.key(ATTENTION.LAYERNORM_RMS_EPS), "missing")
    config["use_sliding_window"] = "sliding_window" in config
    config["model_type"] = next(
        (name for field, name in family.instead.items() if config.get(field)), family.model_type
    )
    match family.layered:
        case "sizes":
            config |= _layers(config, entries)
        case "windows":
            config |= _windows(config, entries)
        case "":
            make = _latents if "kv_lora_rank" in config else _heads
            config |= make(config, entries)
        case kind:
            config |= _heads(config, entries) | _mixers(config, entries, kind)
    if family.unnormed:
        config["use_qk_norm"] = config.get("num_experts") != family.unnormed
    if layers == family.deep:
        config["query_pre_attn_scalar"] = config["hidden_size"] / config["num_attention_heads"]
    return config | {"rope_scaling": _rope(entries, family, config)}


def _tensors(file: GGUFFile) -> dict[str, Any]:
    """The fields that tensors say by being there."""
    found: dict[str, Any] = {}
    own = {name.split(".", 2)[-1] for name in file.tensors if name.startswith("blk.")}
    for tensor, names in fields.TENSORS.items():
        found |= {name: tensor in own or found.get(name, False) for name in names}
    return found


def _states(entries: Entries) -> dict[str, Any]:
    """The fields of layers with states that two entries say together."""
    inner, heads = entries.size(SSM.INNER_SIZE), entries.size(SSM.TIME_STEP_RANK)
    if inner is None or heads is None:
        return {}
    if inner % heads:
        raise entries.file.wrong(entries.key(SSM.INNER_SIZE), f"{inner}, of {heads} heads")
    return {
        "linear_value_head_dim": inner // heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": max(inner // entries.needed(LLM.EMBEDDING_LENGTH), 1),
    }


def _mixers(config: Mapping[str, Any], entries: Entries, kind: str) -> dict[str, Any]:
    """Layers without heads of keys carry a state, kind."""
    heads = entries.each(ATTENTION.HEAD_COUNT_KV, least=0)
    if len({*heads} - {0}) > 1:
        raise entries.file.wrong(entries.key(ATTENTION.HEAD_COUNT_KV), "not 0 or one number")
    heads = heads[: config["num_hidden_layers"]]
    return {
        "layer_types": ["full_attention" if its else kind for its in heads],
        "attn_layer_indices": [layer for layer, its in enumerate(heads) if its],
        "position_embedding_type": None,
    }


def _windows(config: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """The fields of a model whose layers with a window have heads of keys of their own number."""
    file, layers = entries.file, config["num_hidden_layers"]
    heads, kinds = entries.each(ATTENTION.HEAD_COUNT_KV), config.get("layer_types", ())[:layers]
    windowed = {its for its, kind in zip(heads, kinds, strict=False) if kind == SLIDING}
    others = {its for its, kind in zip(heads, kinds, strict=False) if kind != SLIDING}
    if len(kinds) != layers or len(windowed) != 1 or len(others) != 1:
        said = "not one number for layers with a window, and one for the others"
        raise file.wrong(entries.key(ATTENTION.HEAD_COUNT_KV), said)
    sparse = (f"blk.{layer}.ffn_gate_inp.weight" in file.tensors for layer in range(layers))
    values = entries.needed(ATTENTION.VALUE_LENGTH)
    return _heads(config, entries, values) | {
        "layer_types": kinds,
        "num_key_value_heads": others.pop(),
        "swa_num_key_value_heads": windowed.pop(),
        # The published field, which leaves the token itself out.
        "sliding_window_size": entries.needed(ATTENTION.SLIDING_WINDOW),
        "mlp_layer_types": ["sparse" if its else "dense" for its in sparse],
        "v_head_dim": values,
    }


def _check_values(entries: Entries, template: str, head_dim: int) -> None:
    """Heads of values have the size of those of keys."""
    if entries.size(template) not in (None, head_dim):
        raise entries.file.wrong(entries.key(template), f"not the keys', {head_dim}")


def _layers(config: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """The fields of models whose layers with a window have heads of another size than the others,
    and whose last layers may be wider.
    """
    file, layers, kinds = entries.file, config["num_hidden_layers"], config.get("layer_types", ())
    if len(kinds) != layers:
        said = f"not one for each of {layers} layers"
        raise file.wrong(entries.key(ATTENTION.SLIDING_WINDOW_PATTERN), said)
    own = layers - config["num_kv_shared_layers"]
    wide, heads = entries.each(LLM.FEED_FORWARD_LENGTH), entries.each(ATTENTION.HEAD_COUNT_KV)
    twice = wide[-1] == 2 * wide[0]
    if wide != [wide[0] * (1 + (twice and layer >= own)) for layer in range(layers)]:
        raise UnsupportedModelError(
            f"{file.path}: {entries.key(LLM.FEED_FORWARD_LENGTH)} is {wide!r:.200}, which is not "
            "supported; supported: layers that share keys and values may have twice the others'"
        )
    sizes = entries.needed(ATTENTION.KEY_LENGTH), entries.needed(ATTENTION.KEY_LENGTH_SWA)
    for template, size in zip(_VALUES, sizes, strict=True):
        _check_values(entries, template, size)
    windowed = [kind == SLIDING for kind in kinds]
    without = (f"blk.{n}.attn_v.weight" not in file.tensors for n in range(own) if not windowed[n])
    return {
        "head_dim": sizes[1],
        "global_head_dim": sizes[0],
        "per_layer_config": {
            str(n): {"head_dim": sizes[its], "num_key_value_heads": heads[n]}
            for n, its in enumerate(windowed)
        },
        "attention_k_eq_v": any(without),
        "use_double_wide_mlp": twice,
        "enable_moe_block": bool(config.get("num_experts")),
        "vocab_size_per_layer_input": config["vocab_size"],
    }


def _heads(
    config: Mapping[str, Any], entries: Entries, values: int | None = None
) -> dict[str, Any]:
    """values: size of a head of them; None: that of keys."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_dim = entries.size(ATTENTION.KEY_LENGTH) or hidden // heads
    if not head_dim:
        raise entries.file.wrong(entries.key(ATTENTION.HEAD_COUNT), f"{heads}, of {hidden} numbers")
    _check_values(entries, ATTENTION.VALUE_LENGTH, values or head_dim)
    turned = entries.size(ROPE.DIMENSION_COUNT) or head_dim
    return {
        "head_dim": head_dim,
        "query_pre_attn_scalar": float(head_dim),
        "partial_rotary_factor": turned / head_dim,
    }


def _latents(config: Mapping[str, Any], entries: Entries) -> dict[str, Any]:
    """The fields of models whose keys and values are latents. Newer files have the sizes of heads
    under keys of their own: the others are those of what all heads read.
    """
    turned = entries.needed(ROPE.DIMENSION_COUNT)
    is_new = entries.count(ATTENTION.KEY_LENGTH_MLA) is not None
    key, value = (
        entries.needed(template)
        for template in (
            (ATTENTION.KEY_LENGTH_MLA, ATTENTION.VALUE_LENGTH_MLA)
            if is_new
            else (ATTENTION.KEY_LENGTH, ATTENTION.VALUE_LENGTH)
        )
    )
    if key <= turned:
        raise entries.file.wrong(entries.key(ROPE.DIMENSION_COUNT), f"{turned}, of {key}")
    groups, chosen = _GROUPED.get(config.get("n_routed_experts", 0), (1, 1))
    groups = config.get("n_group", groups)
    grouped = groups > 1 and not config["corrected"]
    ways = {"topk_method": "group_limited_greedy"} if grouped else {}
    return ways | {
        "num_key_value_heads": None,
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": key - turned,
        "v_head_dim": value,
        "n_group": groups,
        "topk_group": config.get("topk_group", chosen),
    }


def _rope(entries: Entries, family: Family, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`factors`, which files of Llama 3.1 and later have, are what frequencies are divided by;
    1e30 leaves nothing of one.
    """
    file = entries.file
    turned = (
        config.get("qk_rope_head_dim")
        or config.get("global_head_dim")
        or round(config["head_dim"] * config["partial_rotary_factor"])
    )
    alpha = entries.number(ROPE.SCALING_ALPHA)
    if alpha is not None:
        return {"rope_type": "dynamic", "alpha": alpha}
    kind = entries.get(ROPE.SCALING_TYPE, str) or "none"
    factor = entries.number(ROPE.SCALING_FACTOR)
    if kind == "none" or factor is None:
        factor = entries.number("{arch}.rope.scale_linear")
        kind = kind if factor is None else "linear"
    if all(name in file.tensors for name in _LONG_FACTORS.values()):
        lists = {name: _factors(file, its, turned) for name, its in _LONG_FACTORS.items()}
        by = {"attention_factor": entries.number(ROPE.SCALING_ATTN_FACTOR)}
        return {"rope_type": "longrope", **lists, **by}
    if _FACTORS in file.tensors:
        if kind != "none":
            raise UnsupportedModelError(
                f"{file.path} has both {_FACTORS} and {entries.key(ROPE.SCALING_TYPE)} "
                f"{kind!r:.80}, which is not supported; supported: one of them"
            )
        factors = _factors(file, _FACTORS, turned)
        turning = sum(factor < _UNTURNED for factor in factors)
        if 0 < turning < len(factors) and len({*factors[:turning]}) == 1:
            share = turning / len(factors)
            by = {"factor": factors[0], "partial_rotary_factor": share}
            return {"rope_type": "proportional", **by}
        return {"rope_type": "factors", "factors": factors}
    if kind == "none":
        return {"rope_type": "default"} if family.layered == "sizes" else None
    scale = entries.number(ROPE.SCALING_YARN_LOG_MUL)
    scale = None if scale is None else round(scale * family.log_scale, 6)
    return {
        "rope_type": kind,
        "factor": factor,
        "original_max_position_embeddings": entries.size(ROPE.SCALING_ORIG_CTX_LEN),
        **{name: entries.number(template) for name, template in _YARN.items()},
        **({"mscale": scale, "mscale_all_dim": scale} if scale else {}),
        **({"llama_4_scaling_beta": config["growing"]} if "growing" in config else {}),
        **family.rope,
    }


def _factors(file: GGUFFile, name: str, turned: int) -> list[float]:
    tensor = file.tensors[name]
    if tensor.type.name != "F32" or tensor.shape != (turned // 2,):
        raise CheckpointError(
            f"tensor {name!r} has type {tensor.type.name} and shape {tensor.shape}; "
            f"supported: F32, {(turned // 2,)}"
        )
    factors: list[float] = file.data(name).view("<f4").tolist()
    return factors
