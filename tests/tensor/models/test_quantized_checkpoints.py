"""Checkpoints by compressed-tensors, GPTQ and AWQ: what they hold, and what is no such checkpoint.

Layouts are compared with compressed-tensors' own code, which reads AutoAWQ's too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm import Engine, SamplingParams
from radixlm.core.errors import CheckpointError, ConfigError, ModelError, UnsupportedModelError
from radixlm.formats.files import QUANTIZERS
from radixlm.models import PlainCheckpoint, open_checkpoint
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantized import MIDDLE, QuantizedWeight
from radixlm.testing.float_folders import FloatRecipe
from radixlm.testing.quantized_folders import (
    AWQ_ORDER,
    Recipe,
    Rounded,
    parts_of,
    quantize_folder,
    rounded,
    set_section,
    words_of,
    write_plain,
)
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.quantized_checks import load, logits

Tensors = dict[str, Tensor]
Section = dict[str, Any]
CPU = torch.device("cpu")
TOKENS = list(range(3, 60))
FLOATS: tuple[Literal["fp8", "fbgemm_fp8"], ...] = ("fp8", "fbgemm_fp8")
# What activations in 8 bits change of these logits, which random weights magnify; a wrong weight
# changes all of them.
ROUNDING = 0.12
MODULE = "model.layers.1.mlp.up_proj."
PACKED = Recipe("pack-quantized", symmetric=False)
INT8 = Recipe("int-quantized", bits=8, group=0, symmetric=False)
GPTQ = Recipe("gptq", symmetric=False)
AWQ = Recipe("awq", group=64, symmetric=False)
RECIPES = [
    Recipe("pack-quantized"),
    PACKED,
    Recipe("pack-quantized", group=128),
    Recipe("pack-quantized", group=0, symmetric=False),
    Recipe("pack-quantized", group=-1, symmetric=False),
    Recipe("pack-quantized", bits=8, group=64),
    Recipe("pack-quantized", bits=8, group=0, symmetric=False),
    Recipe("int-quantized", bits=8, group=0),
    INT8,
    Recipe("int-quantized", bits=8, group=64, symmetric=False),
    Recipe("int-quantized", group=128),
    Recipe("naive-quantized", bits=8, group=-1),
    Recipe("gptq"),
    GPTQ,
    Recipe("gptq", bits=8, group=128),
    Recipe("gptq", bits=8, group=64, symmetric=False),
    Recipe("gptq", group=0),
    Recipe("gptq_v2", group=64, symmetric=False),
    Recipe("gptq_v2", bits=8),
    AWQ,
    Recipe("awq", group=128, symmetric=False),
    Recipe("awq", group=64),
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Biases on q, k and v; sizes that groups of 128 divide."""
    folder = tmp_path_factory.mktemp("plain") / "qwen2"
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    return make_checkpoint(folder, "qwen2", **sizes)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_weights_are_those_of_the_format(plain: Path, tmp_path: Path, recipe: Recipe) -> None:
    whole = quantize_folder(plain, tmp_path / "q", recipe)
    checkpoint = open_checkpoint(tmp_path / "q")
    assert {name: tuple(weight.shape) for name, weight in whole.items()} == checkpoint.shapes
    for name, expected in whole.items():
        weight = checkpoint.read(name)
        if name.endswith("_proj.weight"):
            assert isinstance(weight, QuantizedWeight)
            assert weight.zero == MIDDLE[recipe.bits]
            assert (weight.offsets is None) == recipe.symmetric
            weight = weight.dequantized()
        assert torch.equal(weight, expected), name


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("form", ["pack-quantized", "int-quantized", "gptq", "awq"])
def test_weights_of_one_word(tmp_path: Path, form: Any, symmetric: bool) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "head_dim": 8}
    folder = make_checkpoint(tmp_path / "plain", "llama", **sizes, num_attention_heads=2)
    whole = quantize_folder(folder, tmp_path / "q", Recipe(form, group=0, symmetric=symmetric))
    for name, weight in load(tmp_path / "q").weights().items():
        assert torch.equal(weight, whole[name]), name


# Each has kernels of its own.
COMPILED = (INT8, GPTQ, AWQ, Recipe("gptq_v2", bits=8))


@pytest.mark.parametrize(
    "recipe",
    [PACKED, *(pytest.param(recipe, marks=pytest.mark.slow) for recipe in COMPILED)],
    ids=str,
)
def test_logits_are_those_of_the_weights(plain: Path, tmp_path: Path, recipe: Recipe) -> None:
    whole = quantize_folder(plain, tmp_path / "q", recipe)
    reference = load_reference(write_plain(plain, tmp_path / "whole", whole))
    expected = reference_logits(reference, TOKENS)
    assert (logits(load(tmp_path / "q"), TOKENS) - expected).abs().max() <= 1e-3
    rough = logits(load(tmp_path / "q", one_way), TOKENS)
    assert (rough - expected).norm() <= ROUNDING * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [PACKED, INT8, GPTQ, AWQ], ids=str)
def test_an_engine_answers_alike_cold_and_cached(
    plain: Path, tmp_path: Path, recipe: Recipe
) -> None:
    quantize_folder(plain, tmp_path / "q", recipe)
    greedy = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with Engine(str(tmp_path / "q"), kv_tokens=2_000, deterministic=True) as engine:
        [cold] = engine.generate([TOKENS], greedy)
        [cached] = engine.generate([TOKENS], greedy)
    assert cold.cached_tokens == 0
    assert cached.cached_tokens == len(TOKENS) - 1
    assert cold.token_ids == cached.token_ids
    assert len(set(cold.token_ids)) > 2


def compressor_of(recipe: Recipe) -> tuple[type[BaseCompressor], QuantizationScheme]:
    [group] = recipe.section["config_groups"].values()
    weights = QuantizationArgs(**group["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    return BaseCompressor.get_value_from_registry(recipe.format), scheme


def made_up(recipe: Recipe) -> Rounded:
    return rounded(np.random.default_rng(0).normal(size=(96, 256)).astype(np.float32), recipe)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "quantized" in r.format], ids=str)
def test_compressed_tensors_itself_reads_and_writes_the_same(recipe: Recipe) -> None:
    made, [compressor, scheme] = made_up(recipe), compressor_of(recipe)
    parts = parts_of(made, recipe)
    parts["weight_scale"] = parts["weight_scale"].float()
    assert torch.equal(compressor.decompress(parts, scheme)["weight"], made.whole())
    signed = torch.from_numpy(made.zero_points.astype(np.int16) - MIDDLE[recipe.bits])
    given = {
        "weight": made.whole(),
        "weight_scale": parts["weight_scale"],
        "weight_zero_point": (signed if recipe.group >= 0 else signed[:1, 0]).to(torch.int8),
    }
    written = compressor.compress(given, scheme)
    assert written.keys() == parts.keys()
    assert all(torch.equal(written[name], parts[name]) for name in parts)


def test_awq_has_the_order_that_its_converter_undoes() -> None:
    made = made_up(AWQ)
    parts = parts_of(made, AWQ)
    unpacked = AutoAWQConverter.unpack_awq(parts["qweight"], parts["qzeros"], 4)
    codes, points = AutoAWQConverter.reverse_awq_order(*unpacked, 4)
    assert torch.equal((codes & 15).t(), torch.from_numpy(made.codes))
    assert torch.equal((points & 15).t(), torch.from_numpy(made.zero_points))
    assert words_of(np.arange(8, dtype=np.uint8)[None], 4, AWQ_ORDER).item() == 0x75316420


def test_gptq_counts_codes_down_the_rows_of_words() -> None:
    codes = np.arange(16, dtype=np.uint8).reshape(1, 16).repeat(8, axis=0)
    points = np.arange(8, dtype=np.uint8).reshape(8, 1)
    parts = parts_of(Rounded(codes, np.ones((8, 1), np.float16), points), GPTQ)
    assert parts["qweight"].shape == (2, 8)
    assert parts["qweight"][:, 0].tolist() == [0x76543210, 0xFEDCBA98 - (1 << 32)]
    assert parts["qzeros"].tolist() == [[0x76543210 - 0x11111111]]


def test_what_is_not_quantized_is_plain(plain: Path, tmp_path: Path) -> None:
    """Modules that config.json leaves out are there in floats, and a layer may have both."""
    folder = tmp_path / "q"
    whole = quantize_folder(plain, folder, GPTQ)
    for module in ("model.layers.0.self_attn.k_proj.", MODULE):
        mixed = {f"{module}weight": load_file(plain / "model.safetensors")[f"{module}weight"]}
        edit(folder, without(module, "qweight", "qzeros", "scales", "g_idx"))
        edit(folder, lambda tensors, mixed=mixed: tensors.update(mixed))
        whole |= mixed
    reference = load_reference(write_plain(plain, tmp_path / "whole", whole))
    expected = reference_logits(reference, TOKENS)
    rough = logits(load(folder, one_way), TOKENS)
    assert (rough - expected).norm() <= ROUNDING * expected.norm()


def test_without_a_section_a_folder_is_plain(plain: Path) -> None:
    assert isinstance(open_checkpoint(plain), PlainCheckpoint)


def test_older_versions_wrote_plain_zero_points(plain: Path, tmp_path: Path) -> None:
    whole = quantize_folder(plain, tmp_path / "q", PACKED)
    name = f"{MODULE}weight"
    made = rounded(load_file(plain / "model.safetensors")[name].numpy(), PACKED)
    points = torch.from_numpy(made.zero_points.astype(np.int16) - 8).to(torch.int8)
    edit(tmp_path / "q", lambda tensors: tensors.update({f"{MODULE}weight_zero_point": points}))
    weight = open_checkpoint(tmp_path / "q").read(name)
    assert isinstance(weight, QuantizedWeight)
    assert torch.equal(weight.dequantized(), whole[name])


def test_biases_of_zeros_that_no_weight_has_are_left_out(plain: Path, tmp_path: Path) -> None:
    quantize_folder(plain, tmp_path / "q", GPTQ)
    name = f"{MODULE}bias"
    edit(tmp_path / "q", lambda tensors: tensors.update({name: torch.zeros(256)}))
    load(tmp_path / "q")
    edit(tmp_path / "q", lambda tensors: tensors[name].fill_(1))
    with pytest.raises(CheckpointError, match=r"holds 1 tensor: .*up_proj\.bias"):
        load(tmp_path / "q")


def test_nothing_is_quantized_twice(plain: Path, tmp_path: Path) -> None:
    quantize_folder(plain, tmp_path / "q", AWQ)
    with pytest.raises(ConfigError, match=r"--quantization int8 .* quantized already"):
        Engine(str(tmp_path / "q"), kv_tokens=2_000, quantization="int8")


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def without(module: str, *parts: str) -> Callable[[Tensors], object]:
    return lambda tensors: [tensors.pop(module + part) for part in parts]


def put(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], object]:
    """Change a part of one module."""
    name = MODULE + part
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def filled(part: str, value: float) -> Callable[[Tensors], object]:
    return put(part, lambda tensor: torch.full_like(tensor, value))


DAMAGES: list[tuple[Recipe, Callable[[Tensors], object], str]] = [
    (PACKED, without(MODULE, "weight_scale"), r"up_proj\.weight_scale' is missing"),
    (PACKED, without(MODULE, "weight_shape"), r"up_proj\.weight_shape' is missing"),
    (PACKED, without(MODULE, "weight_zero_point"), r"up_proj\.weight_zero_point' is missing"),
    (PACKED, without(MODULE, "weight_packed"), r"up_proj\.weight_.* is of type I.*, and no part"),
    (INT8, without(MODULE, "weight"), r"up_proj\.weight_zero_point' is of type I8, and no part"),
    (GPTQ, without(MODULE, "qzeros"), r"up_proj\.qzeros' is missing"),
    (GPTQ, without(MODULE, "qweight"), r"up_proj\.g_idx' is of type I32, and no part"),
    (AWQ, without(MODULE, "scales"), r"up_proj\.scales' is missing"),
    (PACKED, put("weight_packed", Tensor.float), r"weight_packed' is of type F32; supported: I32"),
    (PACKED, put("weight_packed", lambda t: t[0]), r"shape \(16,\), not two sizes"),
    (PACKED, put("weight_packed", lambda t: t[1:]), r"weight_scale' has shape \(256, 4\).*\(255, "),
    (PACKED, put("weight_packed", lambda t: t[:, 1:]), "120 inputs .* groups of 32"),
    (PACKED, put("weight_scale", lambda t: t[:, 1:]), r"shape \(256, 3\).* \(256, 4\)"),
    (PACKED, put("weight_scale", Tensor.long), "weight_scale' is of type I64; supported: F16"),
    (PACKED, put("weight_scale", Tensor.t), r"shape \(4, 256\).* \(256, 4\)"),
    (PACKED, put("weight_shape", lambda t: t + 1), r"weight_shape says \(257, 129\)"),
    (PACKED, put("weight_shape", lambda t: t - 2**62), r"weight_shape says \(-46"),
    (PACKED, put("weight_shape", lambda t: t[:1]), r"weight_shape' has shape \(1,\).* \(2,\)"),
    (PACKED, put("weight_zero_point", lambda t: t[1:]), r"shape \(31, 4\).* \(32, 4\)"),
    (INT8, put("weight", lambda t: t.to(torch.int32)), "weight' is of type I32; supported: I8"),
    (INT8, put("weight_zero_point", lambda t: t.to(torch.int32)), "is of type I32; supported: I8"),
    (GPTQ, put("qweight", lambda t: t[:, 1:]), "255 outputs do not fill whole words"),
    (GPTQ, put("qweight", lambda t: t.to(torch.int64)), "qweight' is of type I64; supported: I32"),
    (GPTQ, put("qzeros", lambda t: t[:1]), r"qzeros' has shape \(1, 32\).* \(4, 32\)"),
    (GPTQ, put("g_idx", lambda t: t[1:]), r"g_idx' has shape \(127,\).* \(128,\)"),
    (GPTQ, put("g_idx", lambda t: t.flip(0)), "up_proj.weight' are no stretches of its inputs"),
    (GPTQ, put("scales", lambda t: t[:, 1:]), r"scales' has shape \(4, 255\)"),
    (AWQ, put("qweight", lambda t: t[1:]), "127 inputs .* groups of 64"),
    (AWQ, put("qzeros", lambda t: t.to(torch.int8)), "qzeros' is of type I8; supported: I32"),
    (PACKED, filled("weight_scale", 0), r"scales of tensor .*up_proj\.weight' are all 0"),
    (INT8, filled("weight_scale", float("nan")), r"scales of tensor .*up_proj\.weight' are not"),
    (GPTQ, filled("scales", float("inf")), r"scales of tensor .*up_proj\.weight' are not all"),
    (Recipe("gptq"), filled("qzeros", 0), r"zero points .*up_proj\.weight' are not all 8"),
    (Recipe("awq"), filled("qzeros", 0), r"zero points .*up_proj\.weight' are not all 8"),
    (Recipe("int-quantized"), filled("weight", 8), "holds numbers of more than 4 bits"),
    (AWQ, lambda t: t.update({f"{MODULE}weight": torch.zeros(256, 128)}), "floats and quantized"),
    (AWQ, lambda t: t.update({f"{MODULE}w_scale": torch.zeros(1)}), r"holds .*up_proj\.w_scale"),
    (AWQ, lambda t: t.update({"model.norm.weight": torch.zeros(128).char()}), "norm.* type I8"),
]


@pytest.mark.parametrize(("recipe", "damage", "message"), DAMAGES)
def test_damage_is_told_with_the_tensor(
    plain: Path,
    tmp_path: Path,
    recipe: Recipe,
    damage: Callable[[Tensors], object],
    message: str,
) -> None:
    quantize_folder(plain, tmp_path / "q", recipe)
    edit(tmp_path / "q", damage)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "q")


def test_shapes_are_checked_against_the_config_before_data_is_read(
    plain: Path, tmp_path: Path
) -> None:
    quantize_folder(plain, tmp_path / "q", PACKED)
    path = tmp_path / "q" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"intermediate_size": 512}))
    edit(tmp_path / "q", filled("weight_scale", 0))
    with pytest.raises(CheckpointError, match=r"has shape \(.*the model's config asks for"):
        load(tmp_path / "q")


def compressed(**weights: Any) -> Section:
    section = PACKED.section
    section["config_groups"]["group_0"]["weights"] |= weights
    return section


def group(**fields: Any) -> Section:
    section = PACKED.section
    section["config_groups"]["group_0"] |= fields
    return section


FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": True}
STATIC = {"num_bits": 8, "type": "int", "dynamic": False}
REFUSED: list[tuple[Any, str]] = [
    ([], "'quantization_config' is .*an object or null"),
    ({}, "quant_method' is 'none'.*compressed-tensors, gptq, awq"),
    ({"quant_method": "hqq"}, "quant_method' is 'hqq'.*compressed-tensors, gptq, awq"),
    (PACKED.section | {"format": "marlin-24"}, "format' is 'marlin-24'.*pack-quantized, int-"),
    (PACKED.section | {"config_groups": {}}, "config_groups' is {}.*one group"),
    (PACKED.section | {"config_groups": {"a": {}, "b": {}}}, "config_groups' is .*one group"),
    (PACKED.section | {"config_groups": {"W4A16": ["Linear"]}}, "an object or null"),
    (PACKED.section | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity.*dense"),
    (PACKED.section | {"transform_config": {"config_groups": {}}}, "transform_config' is .*null"),
    (compressed(num_bits=3), "group_0.weights.num_bits' is 3.*4, 8"),
    (compressed(num_bits=True), "weights.num_bits' is True"),
    (compressed(type="float"), "weights.type' is 'float'.*int"),
    (compressed(strategy="block"), "strategy' is 'block'.*group, channel, tensor"),
    (compressed(group_size=0), "group_size' is 0.*-1"),
    (compressed(group_size=None), "group_size' is None.*strategy group"),
    (compressed(strategy="channel"), "group_size' is 32.*strategy channel"),
    (compressed(actorder="group"), "actorder' is 'group'.*weight, static"),
    (compressed(dynamic=True), "weights.dynamic' is True"),
    (group(weights=None), "group_0.weights' is missing"),
    (group(input_activations=FLOAT8), "input_activations.type' is 'float'.*int"),
    (group(input_activations=STATIC), "input_activations.dynamic' is False.*true"),
    (group(output_activations=STATIC), "output_activations' is .*null"),
    (group(format="mxfp8-quantized"), "group_0.format' is 'mxfp8-quantized'"),
    (group(format="mxfp4-pack-quantized"), "group_0.weights.type' is 'int'.*float"),
    (GPTQ.section | {"bits": 3}, "quantization_config.bits' is 3.*4, 8"),
    (GPTQ.section | {"bits": None}, "quantization_config.bits' is missing"),
    (GPTQ.section | {"group_size": 2**40}, "group_size' is 1099511627776"),
    (GPTQ.section | {"sym": "yes"}, "sym' is 'yes'.*true or false"),
    (GPTQ.section | {"checkpoint_format": "marlin"}, "checkpoint_format' is 'marlin'.*gptq_v2"),
    (GPTQ.section | {"is_marlin_format": True}, "is_marlin_format' is True"),
    (GPTQ.section | {"dynamic": {"+:.*down.*": {"bits": 8}}}, "dynamic.*not quantized"),
    (GPTQ.section | {"pack_dtype": "int64"}, "pack_dtype' is 'int64'.*int32"),
    (AWQ.section | {"bits": 8}, "bits' is 8.*4"),
    (AWQ.section | {"version": "gemv"}, "version' is 'gemv'.*gemm"),
    (AWQ.section | {"version": "exllama"}, "version' is 'exllama'.*gemm"),
    (AWQ.section | {"backend": "llm-awq"}, "backend' is 'llm-awq'.*autoawq"),
    (AWQ.section | {"zero_point": 1}, "zero_point' is 1.*true or false"),
]


@pytest.mark.parametrize(("section", "message"), REFUSED)
def test_other_schemes_are_refused_with_field_and_value(
    plain: Path, tmp_path: Path, section: Any, message: str
) -> None:
    shutil.copytree(plain, tmp_path / "q")
    set_section(tmp_path / "q", section)
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(tmp_path / "q")


ACCEPTED: list[tuple[Recipe, Section]] = [
    (PACKED, PACKED.section | {"kv_cache_scheme": {"num_bits": 8}}),
    (PACKED, compressed(actorder="static", strategy=None, observer="minmax")),
    (PACKED, group(input_activations={"num_bits": 8, "type": "int", "dynamic": True})),
    (PACKED, group(format=None) | {"sparsity_config": {"format": "dense"}, "transform_config": {}}),
    (GPTQ, GPTQ.section | {"desc_act": True, "static_groups": True, "lm_head": False}),
    (GPTQ, GPTQ.section | {"dynamic": {"-:lm_head": {}}, "meta": {"quantizer": ["x:1"]}}),
    (GPTQ, GPTQ.section | {"quant_method": "GPTQ", "checkpoint_format": None}),
    (AWQ, AWQ.section | {"version": "GEMM", "backend": "autoawq", "do_fuse": False}),
    (AWQ, {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": True}),
]


@pytest.mark.parametrize(("recipe", "section"), ACCEPTED)
def test_what_tools_write_besides_is_accepted(
    plain: Path, tmp_path: Path, recipe: Recipe, section: Section
) -> None:
    whole = quantize_folder(plain, tmp_path / "q", recipe)
    set_section(tmp_path / "q", section)
    weight = open_checkpoint(tmp_path / "q").read(f"{MODULE}weight")
    assert isinstance(weight, QuantizedWeight)
    assert torch.equal(weight.dequantized(), whole[f"{MODULE}weight"])


def test_a_missing_g_idx_means_no_order_of_its_own(plain: Path, tmp_path: Path) -> None:
    folder = tmp_path / "q"
    quantize_folder(plain, folder, GPTQ)
    edit(folder, without(MODULE, "g_idx"))
    load(folder)
    set_section(folder, GPTQ.section | {"desc_act": True})
    with pytest.raises(CheckpointError, match=r"up_proj\.g_idx' is missing"):
        load(folder)


def test_the_methods_are_those_that_are_named_elsewhere() -> None:
    of_integers = {recipe.section["quant_method"] for recipe in (PACKED, GPTQ, AWQ)}
    of_floats = {FloatRecipe(name).section["quant_method"] for name in FLOATS}
    others = {"mxfp4", "modelopt", "modelopt_fp4", "bitsandbytes"}
    assert of_integers | of_floats | others == set(QUANTIZERS)
