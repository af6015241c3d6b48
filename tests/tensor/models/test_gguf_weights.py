"""Weights from GGUF files: what the blocks stand for, and models that compute with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.gguf_file import TYPES, GGUFFile
from radixlm.layers.rotary import Llama3Scaling, plain_frequencies
from radixlm.models import CausalLM, GGUFCheckpoint, load_config, load_model
from radixlm.models.gguf_blocks import DECODERS, bytes_per_number, quantized_weight, widened
from radixlm.products.gemm_choice import Choose, one_way
from radixlm.products.quantized import QuantizedWeight
from radixlm.products.quantized_products import kind_of, laid_out
from radixlm.testing.gguf_writer import HALVES, write_gguf
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.attention_cases import DenseAttend

CPU = torch.device("cpu")
KINDS = ["F32", "F16", "BF16", *DECODERS]
QUICK = ["F32", "Q8_0", "Q4_K"]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2}
# What rounding activations to bytes may change, as a part of all logits' size.
ROUNDING = 0.06
_BY_NAME = {kind.name: kind for kind in TYPES.values()}


Make = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a folder with a model of these fields, once for all tests, which only read it."""
    folders: dict[str, Path] = {}

    def find(architecture: str, **fields: Any) -> Path:
        key = repr((architecture, sorted(fields.items())))
        if key not in folders:
            place = tmp_path_factory.mktemp(architecture)
            folders[key] = make_checkpoint(place, architecture, **SIZES | fields)
        return folders[key]

    return find


def load(path: Path, choose: Choose | None = None) -> CausalLM:
    config = load_config(path)
    checkpoint = GGUFCheckpoint(GGUFFile(path), config)
    return load_model(
        checkpoint, config, dtype=torch.float32, device=CPU, choose=choose, progress=False
    )


@torch.inference_mode()
def logits(model: CausalLM, token_ids: list[int]) -> Tensor:
    rows = torch.arange(len(token_ids))
    return model.forward(torch.tensor(token_ids), rows, DenseAttend(model.config.n_kv_heads), rows)


def tokens(n: int) -> list[int]:
    return torch.randint(0, 320, (n,), generator=torch.Generator().manual_seed(1)).tolist()


def expected_logits(folder: Path, weights: dict[str, Tensor]) -> Tensor:
    model = load_reference(folder)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert not set(missing) - {"lm_head.weight"}
    model.tie_weights()
    return reference_logits(model, tokens(40))


def any_blocks(kind: str, count: int) -> NDArray[np.uint8]:
    """Blocks of a type of all patterns of bytes, but that their scales are numbers."""
    type_ = gguf.GGMLQuantizationType[kind]
    data = np.random.default_rng(1).integers(0, 256, (count, _BY_NAME[kind].nbytes), np.uint8)
    if kind == "MXFP4":
        data[:, 0] %= 250  # float32 ends there
    last = {"TQ1_0": (52,), "TQ2_0": (64,)}
    for place in last.get(kind) or HALVES.get(type_, (0, 2)):
        data[:, place + 1] &= 0xBB  # exponents below the largest
    return data


@pytest.mark.parametrize("kind", DECODERS)
def test_any_block_is_what_llama_cpp_reads_in_it(kind: str) -> None:
    """To the bit: all patterns of bytes, but for scales that are no numbers."""
    block, outputs, inputs = _BY_NAME[kind], 64, 512
    data = any_blocks(kind, outputs * inputs // block.values)
    made = quantized_weight(block, data.reshape(-1), outputs, inputs)
    theirs = gguf.dequantize(data.reshape(outputs, -1), gguf.GGMLQuantizationType[kind])
    assert np.isfinite(theirs).all()
    assert torch.equal(made.dequantized(), torch.from_numpy(theirs))
    assert int(made.codes.max()) < 1 << made.bits


@pytest.mark.parametrize("kind", sorted(DECODERS.keys() - {"Q2_K", "Q3_K", "MXFP4"}))
def test_products_read_as_many_bytes_as_the_file_has(kind: str) -> None:
    block, outputs, inputs = _BY_NAME[kind], 64, 512
    each = bytes_per_number(block, torch.float32)
    assert each <= 1.03 * block.nbytes / block.values
    data = any_blocks(kind, outputs * inputs // block.values)
    weight = quantized_weight(block, data.reshape(-1), outputs, inputs)
    panels, _ = laid_out(weight, None, kind_of(weight, torch.float32, torch.float32))
    assert panels.nbytes == outputs * inputs * each


@pytest.mark.parametrize("kind", sorted({kind.name for kind in TYPES.values()} - DECODERS.keys()))
def test_all_other_types_are_made_floats(kind: str, checkpoint: Make, tmp_path: Path) -> None:
    """Those without codes of ours: to the bit, too, and one that is no number is found."""
    if kind in ("F32", "F16", "BF16", "IQ1_M"):  # the last one's scale is in parts
        return
    block = _BY_NAME[kind]
    data = any_blocks(kind, 8)
    theirs = gguf.dequantize(data, gguf.GGMLQuantizationType[kind])
    assert torch.equal(widened(block, data.reshape(-1), "x"), torch.from_numpy(theirs).flatten())
    data[:] = 0xFF
    with pytest.raises(CheckpointError, match="tensor 'x' are not all finite"):
        widened(block, data.reshape(-1), "x")


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(
            pytest.param("llama", kind, marks=[] if kind in QUICK else pytest.mark.slow)
            for kind in KINDS
        ),
        *((name, kind) for name in ("mistral", "qwen2", "qwen3") for kind in ("F16", "Q8_0")),
    ],
)
def test_each_weight_is_the_file_s(
    checkpoint: Make, tmp_path: Path, architecture: str, kind: str
) -> None:
    folder = checkpoint(architecture)
    wanted = write_gguf(folder, tmp_path / "m.gguf", kind)
    weights = load(tmp_path / "m.gguf").weights()
    assert weights.keys() == wanted.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, wanted[name]), name


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-2}),
        ("mistral", {}),
        ("qwen2", {"rope_theta": 1e6}),
        ("qwen3", {"tie_word_embeddings": True}),
        ("qwen3", {"attention_bias": True}),
    ],
)
def test_logits_equal_transformers(
    checkpoint: Make, tmp_path: Path, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = checkpoint(architecture, **overrides)
    weights = write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    made = logits(load(tmp_path / "m.gguf"), tokens(40))
    assert torch.allclose(made, expected_logits(folder, weights), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "tied"),
    [
        ("Q8_0", True),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("Q4_0", False), ("Q4_K", True), ("Q5_K", False), ("Q6_K", True))
        ),
    ],
)
def test_packed_products_differ_by_rounding(
    checkpoint: Make, tmp_path: Path, kind: str, tied: bool
) -> None:
    folder = checkpoint("qwen3", tie_word_embeddings=tied)
    weights = write_gguf(folder, tmp_path / "m.gguf", kind)
    made = logits(load(tmp_path / "m.gguf", one_way), tokens(40))
    wanted = expected_logits(folder, weights)
    assert (made - wanted).norm() < ROUNDING * wanted.norm()


def test_a_tied_head_takes_the_embedding_s_codes(checkpoint: Make, tmp_path: Path) -> None:
    """In full precision it would be read at four times the bytes."""
    folder = checkpoint("llama", tie_word_embeddings=True)
    write_gguf(folder, tmp_path / "m.gguf", "Q8_0")
    seen: list[type] = []

    def choose(weight: Any, result: Any, gate: Any) -> Any:
        seen.append(type(weight))
        return one_way(weight, result, gate)

    model = load(tmp_path / "m.gguf", choose)
    assert set(seen) == {QuantizedWeight}
    assert len(seen) == 1 + 4 * SIZES["num_hidden_layers"]
    assert not model.embedding.weight.numel()  # rows are looked up among the codes


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "IQ4_NL"])
def test_rows_are_looked_up_among_codes(
    checkpoint: Make, tmp_path: Path, kind: str, tied: bool
) -> None:
    folder = checkpoint("qwen3", tie_word_embeddings=tied)
    write_gguf(folder, tmp_path / "m.gguf", kind)
    filled, packed = (load(tmp_path / "m.gguf", choose) for choose in (None, one_way))
    ids = torch.arange(len(filled.embedding.weight))
    assert not packed.embedding.weight.numel()
    assert torch.equal(filled.embedding(ids), packed.embedding(ids))


def test_parts_of_several_types(checkpoint: Make, tmp_path: Path) -> None:
    """llama.cpp's mixtures give values more bits than keys."""
    folder = checkpoint("llama")
    own = {"blk.0.attn_v.weight": "Q6_K", "blk.1.ffn_up.weight": "F16", "output.weight": "Q6_K"}
    weights = write_gguf(folder, tmp_path / "m.gguf", "Q4_K", kinds=own)
    made = logits(load(tmp_path / "m.gguf", one_way), tokens(40))
    wanted = expected_logits(folder, weights)
    assert (made - wanted).norm() < ROUNDING * wanted.norm()


def test_queries_and_keys_are_put_back_in_order(checkpoint: Make, tmp_path: Path) -> None:
    """Against the converter's own words, LlamaModel.permute."""
    folder = checkpoint("llama")
    wanted = write_gguf(folder, tmp_path / "m.gguf", "F32")
    stored = GGUFFile(tmp_path / "m.gguf").data("blk.1.attn_k.weight").view(np.float32)
    name = "model.layers.1.self_attn.k_proj.weight"
    weight, n_heads = wanted[name].numpy(), 2
    permuted = (
        weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
        .swapaxes(1, 2)
        .reshape(weight.shape)
    )
    assert np.array_equal(stored.reshape(weight.shape), permuted)
    assert torch.equal(load(tmp_path / "m.gguf").weights()[name], wanted[name])


def test_factors_of_llama_3_s_frequencies(checkpoint: Make, tmp_path: Path) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_type": "llama3", "original_max_position_embeddings": 256} | scaling
    folder = checkpoint("llama", rope_scaling=rope)
    scaled = Llama3Scaling(8.0, 1.0, 4.0, 256).frequencies(10_000.0, 64)
    factors = (plain_frequencies(10_000.0, 64) / scaled).numpy()
    weights = write_gguf(folder, tmp_path / "m.gguf", "F32")
    assert len(set(factors.tolist())) > 3
    tensors = gguf.GGUFReader(tmp_path / "m.gguf").tensors
    [written] = [each.data for each in tensors if each.name == "rope_freqs.weight"]
    assert np.allclose(written, factors, rtol=1e-6)
    made = logits(load(tmp_path / "m.gguf"), tokens(40))
    assert torch.allclose(made, expected_logits(folder, weights), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        (np.ones(31, np.float32), r"rope_freqs.weight' has type F32 and shape \(31,\)"),
        (np.ones(32, np.float16), "has type F16"),
        (np.zeros(32, np.float32), "factors"),
        (np.full(32, np.nan, np.float32), "factors"),
    ],
)
def test_factors_that_can_not_be(checkpoint: Make, tmp_path: Path, factors: Any, text: str) -> None:
    folder = checkpoint("llama")
    write_gguf(folder, tmp_path / "m.gguf", "F16", tensors={"rope_freqs.weight": factors})
    with pytest.raises((CheckpointError, UnsupportedModelError), match=text):
        load(tmp_path / "m.gguf")


def test_a_quantized_norm_is_read_all_the_same(checkpoint: Make, tmp_path: Path) -> None:
    folder = checkpoint("llama")
    wanted = write_gguf(folder, tmp_path / "m.gguf", "F16", kinds={"output_norm.weight": "Q8_0"})
    assert torch.equal(
        load(tmp_path / "m.gguf").weights()["model.norm.weight"], wanted["model.norm.weight"]
    )


def test_a_tensor_that_no_model_has(checkpoint: Make, tmp_path: Path) -> None:
    folder = checkpoint("llama")
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32)}
    write_gguf(folder, tmp_path / "m.gguf", "F16", tensors=extra)
    with pytest.raises(CheckpointError, match=r"holds 1 tensor: blk\.0\.attn_sinks\.weight, which"):
        load(tmp_path / "m.gguf")


@pytest.mark.parametrize(("value", "what"), [(np.inf, "not all finite"), (0.0, "are all 0")])
def test_scales_that_can_not_be(checkpoint: Make, tmp_path: Path, value: float, what: str) -> None:
    folder, path = checkpoint("llama"), tmp_path / "m.gguf"
    write_gguf(folder, path, "Q8_0")
    tensor, content = GGUFFile(path).tensors["blk.0.ffn_up.weight"], bytearray(path.read_bytes())
    half = np.float16(value).tobytes()
    for at in range(tensor.start, tensor.start + tensor.nbytes, tensor.type.nbytes):
        content[at : at + 2] = half
    path.write_bytes(content)
    with pytest.raises(
        CheckpointError, match=rf"scales of tensor 'blk\.0\.ffn_up\.weight' .*{what}|{what}"
    ):
        load(path)


def test_a_layer_that_is_missing(checkpoint: Make, tmp_path: Path) -> None:
    folder = checkpoint("llama")
    write_gguf(folder, tmp_path / "m.gguf", "F16", further={"llama.block_count": 3})
    with pytest.raises(CheckpointError, match=r"lacks 9 tensors: model\.layers\.2\."):
        load(tmp_path / "m.gguf")
