"""Checkpoints in FP8, NVFP4 and MXFP4: what they hold, by every tool's names, and what is none.

Layouts are compared with compressed-tensors' own code, and with transformers' for blocks.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ModelError, UnsupportedModelError
from radixlm.models import open_checkpoint
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantized import QuantizedWeight
from radixlm.testing.float_folders import FloatRecipe, float_parts, write_floats
from radixlm.testing.quantized_folders import set_section, write_plain
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.quantized_checks import check_weights, load, logits

Tensors = dict[str, Tensor]
TOKENS = list(range(3, 60))
MODULE = "model.layers.1.mlp.up_proj."
BLOCKS = FloatRecipe("fp8", (128, 128))
ONE = FloatRecipe("fp8")
CHANNEL = FloatRecipe("float-quantized", (1, 0))
MODELOPT = FloatRecipe("modelopt")
NVFP4, MXFP4 = FloatRecipe("nvfp4"), FloatRecipe("mxfp4")
MODELOPT4 = FloatRecipe("modelopt_nvfp4")
RECIPES = [
    BLOCKS,
    FloatRecipe("fp8", (32, 48)),
    ONE,
    FloatRecipe("fbgemm_fp8", (1, 0)),
    FloatRecipe("float-quantized"),
    CHANNEL,
    FloatRecipe("float-quantized", (1, 32)),
    FloatRecipe("float-quantized", (128, 128)),
    MODELOPT,
    FloatRecipe("modelopt", (1, 0)),
    FloatRecipe("modelopt", (128, 128)),
    FloatRecipe("modelopt", beside=True),
    NVFP4,
    MODELOPT4,
    FloatRecipe("modelopt_nvfp4", beside=True),
    MXFP4,
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes of which one is cut by blocks of 128."""
    folder = tmp_path_factory.mktemp("plain") / "qwen3"
    return make_checkpoint(folder, "qwen3", hidden_size=96, intermediate_size=320, head_dim=32)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_weights_are_those_of_the_format(plain: Path, tmp_path: Path, recipe: FloatRecipe) -> None:
    whole = write_floats(plain, tmp_path / "q", recipe)
    check_weights(tmp_path / "q", whole)


@pytest.mark.parametrize("recipe", [BLOCKS, CHANNEL, NVFP4], ids=str)
def test_answers_are_those_of_the_weights(plain: Path, tmp_path: Path, recipe: FloatRecipe) -> None:
    """Rows are multiplied as they are, so nothing is lost but what sums round."""
    whole = write_floats(plain, tmp_path / "q", recipe)
    reference = load_reference(write_plain(plain, tmp_path / "whole", whole))
    expected = reference_logits(reference, TOKENS)
    assert (logits(load(tmp_path / "q"), TOKENS) - expected).abs().max() <= 1e-3
    found = logits(load(tmp_path / "q", one_way), TOKENS)
    # Scales of groups of 4-bit floats are kept in float16.
    assert (found - expected).abs().max() <= (2e-2 if recipe == NVFP4 else 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [BLOCKS, MODELOPT4], ids=str)
def test_an_engine_answers_alike_cold_and_cached(
    plain: Path, tmp_path: Path, recipe: FloatRecipe
) -> None:
    write_floats(plain, tmp_path / "q", recipe)
    greedy = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    with Engine(str(tmp_path / "q"), kv_tokens=2_000, deterministic=True) as engine:
        [cold] = engine.generate([TOKENS], greedy)
        [cached] = engine.generate([TOKENS], greedy)
    assert (cold.cached_tokens, cached.cached_tokens) == (0, len(TOKENS) - 1)
    assert cold.token_ids == cached.token_ids


@pytest.mark.parametrize("recipe", [r for r in RECIPES if "config_groups" in r.section], ids=str)
def test_compressed_tensors_itself_reads_the_same(recipe: FloatRecipe) -> None:
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    parts, whole = float_parts(weight, recipe)
    [group] = recipe.section["config_groups"].values()
    scheme = QuantizationScheme(targets=[], weights=QuantizationArgs(**group["weights"]))
    compressor = BaseCompressor.get_value_from_registry(recipe.section["format"])
    found = compressor.decompress(dict(parts), scheme)["weight"]
    # With two scales that are no powers of two it multiplies in bfloat16.
    torch.testing.assert_close(found.float(), whole, rtol=4e-3 if recipe == NVFP4 else 0, atol=0)


@pytest.mark.parametrize("recipe", [NVFP4, MXFP4], ids=str)
def test_compressed_tensors_itself_unpacks_the_same_codes(recipe: FloatRecipe) -> None:
    parts, whole = float_parts(torch.randn(64, 96), recipe)
    numbers = unpack_fp4_from_uint8(parts["weight_packed"], 64, 96, dtype=torch.float32)
    scales = parts["weight_scale"]
    if recipe == NVFP4:
        scales = scales.float() / parts["weight_global_scale"]
    else:
        scales = torch.exp2(scales.float() - 127)
    assert torch.equal(numbers * scales.repeat_interleave(96 // scales.shape[1], 1), whole)


def test_transformers_itself_takes_blocks_apart_alike() -> None:
    weight = torch.randn(256, 384, generator=torch.Generator().manual_seed(0))
    parts, whole = float_parts(weight, BLOCKS)
    both = parts["weight"], parts["weight_scale_inv"]
    assert torch.equal(_dequantize_fp8_weight(*both, [128, 128], torch.float32), whole)


def edit(folder: Path, change: Callable[[Tensors], object]) -> None:
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def put(part: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], object]:
    name = MODULE + part
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


def without(part: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(MODULE + part)


def no_number(codes: Tensor) -> Tensor:
    codes.view(torch.uint8)[3, 5] = 255
    return codes


DAMAGES: list[tuple[FloatRecipe, Callable[[Tensors], object], str]] = [
    (BLOCKS, without("weight_scale_inv"), r"up_proj\.weight_scale_inv' is missing"),
    (BLOCKS, without("weight"), r"weight_scale_inv|lacks .*up_proj\.weight"),
    (BLOCKS, put("weight", no_number), r"up_proj\.weight' holds codes that are no numbers"),
    (BLOCKS, put("weight", lambda t: t.view(torch.uint8)), "of type U8; supported: F8_E4M3"),
    (BLOCKS, put("weight", lambda t: t.float().to(torch.float8_e5m2)), "F8_E5M2"),
    (BLOCKS, put("weight_scale_inv", lambda t: t[1:]), r"shape \(2, 1\).* \(3, 1\)"),
    (BLOCKS, put("weight_scale_inv", lambda t: t * float("nan")), "not all finite"),
    (BLOCKS, put("weight_scale_inv", lambda t: t * 0), "are all 0"),
    (ONE, without("weight_scale"), "up_proj.weight_scale_inv there are 0: the weight needs one"),
    (ONE, put("weight_scale", lambda t: t.repeat(2)), r"shape \(2,\)"),
    (CHANNEL, put("weight_scale", lambda t: t[1:]), r"shape \(319, 1\).* \(320, 1\)"),
    (NVFP4, without("weight_global_scale"), "weight_global_scale' is missing"),
    (NVFP4, put("weight_global_scale", lambda t: t * 0), "not all finite"),
    (NVFP4, put("weight_packed", lambda t: t[:, 1:]), "94 inputs .* groups of 16"),
    (NVFP4, put("weight_scale", lambda t: t.float()), "type F32; supported: F8_E4M3"),
    (MODELOPT4, put("weight", lambda t: t.view(torch.int8)), "type I8; supported: U8"),
    (MODELOPT4, without("weight_scale_2"), "weight_scale_2' is missing"),
    (MXFP4, put("weight_scale", lambda t: t.fill_(255)), "not all finite"),
]


@pytest.mark.parametrize(("recipe", "damage", "message"), DAMAGES)
def test_damage_is_told_with_the_tensor(
    plain: Path,
    tmp_path: Path,
    recipe: FloatRecipe,
    damage: Callable[[Tensors], object],
    message: str,
) -> None:
    write_floats(plain, tmp_path / "q", recipe)
    edit(tmp_path / "q", damage)
    with pytest.raises(ModelError, match=message):
        load(tmp_path / "q")


def compressed(**weights: Any) -> dict[str, Any]:
    section = CHANNEL.section
    section["config_groups"]["group_0"]["weights"] |= weights
    return section


REFUSED: list[tuple[Any, str]] = [
    (BLOCKS.section | {"weight_block_size": [128]}, "weight_block_size' is .*two sizes"),
    (BLOCKS.section | {"weight_block_size": [0, 128]}, "weight_block_size' is .*two sizes"),
    (BLOCKS.section | {"fmt": "e5m2"}, "fmt' is 'e5m2'.*e4m3"),
    (MODELOPT.section | {"quant_algo": "MIXED_PRECISION"}, "quant_algo' is 'MIXED_PREC.*NVFP4"),
    (MODELOPT.section | {"quant_algo": None}, "quant_algo' is missing"),
    (MODELOPT4.section | {"group_size": 32}, "group_size' is 32.*16"),
    (compressed(num_bits=4), "num_bits' is 4.*8"),
    (compressed(type="int"), "type' is 'int'.*float"),
    (compressed(symmetric=False), "symmetric' is False.*true"),
    (compressed(strategy="block"), "strategy' is 'block'.*sizes"),
    (compressed(strategy="attn_head"), "strategy' is 'attn_head'.*tensor, channel"),
]


@pytest.mark.parametrize(("section", "message"), REFUSED)
def test_other_schemes_are_refused_with_field_and_value(
    plain: Path, tmp_path: Path, section: Any, message: str
) -> None:
    shutil.copytree(plain, tmp_path / "q")
    set_section(tmp_path / "q", section)
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(tmp_path / "q")


def test_scales_as_powers_of_two_and_names_of_transformers(plain: Path, tmp_path: Path) -> None:
    """DeepSeek's later folders keep scales in E8M0; transformers writes one scale under the name
    of blocks.
    """
    name = f"{MODULE}weight"
    write_floats(plain, tmp_path / "blocks", BLOCKS)
    edit(
        tmp_path / "blocks",
        put("weight_scale_inv", lambda t: torch.full_like(t, 0.25).to(torch.float8_e8m0fnu)),
    )
    weight = open_checkpoint(tmp_path / "blocks").read(name)
    assert isinstance(weight, QuantizedWeight)
    assert (weight.scales == 0.25).all()
    whole = write_floats(plain, tmp_path / "one", ONE)
    edit(tmp_path / "one", lambda t: t.update({f"{name}_scale_inv": t.pop(f"{name}_scale")}))
    path = tmp_path / "one" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text())))
    weight = open_checkpoint(tmp_path / "one").read(name)
    assert isinstance(weight, QuantizedWeight)
    assert torch.equal(weight.dequantized(), whole[name])
