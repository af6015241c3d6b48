"""Configs from GGUF files: the same as from the folder that a file was made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.formats.model_files import ModelFile, files_of
from radixlm.layers.rotary import LinearScaling, YarnScaling
from radixlm.models import GGUFCheckpoint, load_model
from radixlm.models.model_config import load_config, recommended_sampling
from radixlm.testing.checkpoints import SPECIAL_TOKENS
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import make_checkpoint


def converted(
    tmp_path: Path, architecture: str = "llama", kind: str = "F32", **fields: Any
) -> Path:
    folder = make_checkpoint(tmp_path / "m", architecture, num_hidden_layers=1, **fields)
    write_gguf(folder, tmp_path / "m.gguf", kind)
    return tmp_path / "m.gguf"


def with_entries(tmp_path: Path, architecture: str = "llama", **entries: Any) -> Path:
    """entries: of the architecture, `__` for a dot; general__... is not."""
    folder = make_checkpoint(tmp_path / "m", architecture, num_hidden_layers=1)
    further = {
        name if name.startswith(("general", "tokenizer")) else f"{architecture}.{name}": value
        for name, value in ((key.replace("__", "."), value) for key, value in entries.items())
    }
    write_gguf(folder, tmp_path / "m.gguf", "F32", further=further)
    return tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("llama", {}),
        ("llama", {"head_dim": 32, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
        ("mistral", {"sliding_window": 1024}),
        ("qwen2", {"rope_theta": 1e6}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0}),
        ("qwen3", {"attention_bias": True, "head_dim": 32}),
    ],
)
def test_the_same_config(tmp_path: Path, architecture: str, fields: dict[str, Any]) -> None:
    made = load_config(converted(tmp_path, architecture, **fields))
    wanted = load_config(tmp_path / "m")
    # Not the folder's generation_config.json: texts end turns, too, where they are control tokens.
    ends = wanted.eos_token_ids | {256 + SPECIAL_TOKENS.index("<|endoftext|>")}
    assert made == replace(wanted, eos_token_ids=ends)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("F32", torch.float32), ("F16", torch.bfloat16), ("Q8_0", torch.bfloat16)],
)
def test_what_is_not_all_float32_is_computed_in_bfloat16(
    tmp_path: Path, kind: str, dtype: torch.dtype
) -> None:
    assert load_config(converted(tmp_path, kind=kind)).dtype == dtype


def test_scaled_rotation(tmp_path: Path) -> None:
    linear = {"rope__scaling__type": "linear", "rope__scaling__factor": 2.5}
    config = load_config(with_entries(tmp_path, **linear))
    assert (config.rope.scaling, config.context_length) == (LinearScaling(2.5), 5120)
    config = load_config(with_entries(tmp_path, rope__scale_linear=4.0))
    assert config.rope.scaling == LinearScaling(4.0)
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}
    yarn |= {"rope__scaling__original_context_length": 512, "rope__scaling__yarn_beta_fast": 16.0}
    config = load_config(with_entries(tmp_path, "qwen2", **yarn))
    assert isinstance(config.rope.scaling, YarnScaling)
    assert (config.rope.scaling.factor, config.rope.scaling.original_length) == (4.0, 512)
    assert config.rope.scaling.beta_fast == 16.0


def test_ends_of_answers_and_sampling(tmp_path: Path) -> None:
    path = with_entries(
        tmp_path,
        tokenizer__ggml__eos_token_id=3,
        tokenizer__ggml__eot_token_id=4,
        tokenizer__ggml__eom_token_id=5,
        tokenizer__ggml__bos_token_id=6,
        general__sampling__temp=0.7,
        general__sampling__top_k=20,
    )
    config = load_config(path)
    assert {3, 4, 5} < config.eos_token_ids
    assert config.bos_token_id == 6
    assert recommended_sampling(path) == {"temperature": 0.7, "top_k": 20}


def test_what_ends_a_message_of_harmony_ends_no_answer(tmp_path: Path) -> None:
    """gpt-oss writes several messages, each of which `<|end|>` ends; elsewhere that ends a turn."""
    texts = [f"t{at}" for at in range(320)]
    texts[10:13] = ["<|end|>", "<|return|>", "<|call|>"]
    kinds = [1] * 10 + [3] * 3 + [1] * 307
    entries = {"tokenizer__ggml__tokens": texts, "tokenizer__ggml__token_type": kinds}
    entries["tokenizer__ggml__eos_token_id"] = 11
    assert load_config(with_entries(tmp_path / "a", **entries)).eos_token_ids == {11, 12}
    texts[12] = "other"
    assert load_config(with_entries(tmp_path / "b", **entries)).eos_token_ids == {10, 11}


def test_gemma_4_ends_turns_by_marks_of_its_own(tmp_path: Path) -> None:
    """Its converter makes `<|tool_response>` a token that texts show."""
    texts = [f"t{at}" for at in range(320)]
    texts[10:13] = ["<turn|>", "<|tool_response>", "<|turn>"]
    entries = {"tokenizer__ggml__tokens": texts}
    entries["tokenizer__ggml__token_type"] = [1] * 10 + [3, 4, 3] + [1] * 307
    entries["tokenizer__ggml__eos_token_id"] = 1
    assert load_config(with_entries(tmp_path, **entries)).eos_token_ids == {1, 10, 11}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Tiny Llama 1.1B", "Tiny Llama 1.1B"),
        (None, "m"),
        ("", "m"),
        ("\x1b[2J", "m"),
        ("x" * 101, "m"),
    ],
)
def test_the_name_is_the_file_s_own(tmp_path: Path, name: str | None, shown: str) -> None:
    assert files_of(with_entries(tmp_path, general__name=name)).name == shown


@pytest.mark.parametrize(
    ("entries", "error", "text"),
    [
        ({"block_count": None}, CheckpointError, r"'llama\.block_count' is missing"),
        ({"block_count": 0}, CheckpointError, r"'llama\.block_count' is 0, no size"),
        ({"block_count": "many"}, CheckpointError, r"block_count' is 'many', not of type int"),
        ({"block_count": 10**6}, CheckpointError, "asks for 1000000 layers"),
        ({"attention__head_count": [4, 2]}, UnsupportedModelError, r"the same for all layers"),
        ({"attention__head_count": [4.0]}, CheckpointError, r"head_count' is .* not of type int"),
        ({"attention__head_count": 2**31}, CheckpointError, r"head_count' is 2147483648, no size"),
        (
            {"attention__head_count": 100, "attention__key_length": None},
            CheckpointError,
            r"head_count' is 100, of 64 numbers",
        ),
        ({"attention__value_length": 8}, CheckpointError, r"value_length' is not the keys', 16"),
        ({"rope__dimension_count": 8}, UnsupportedModelError, "partial_rotary_factor"),
        ({"expert_count": 8}, CheckpointError, "asks for 8 experts|lacks"),
        ({"rope__freq_base": 0.5}, UnsupportedModelError, "rope_theta"),
        ({"attention__layer_norm_rms_epsilon": None}, ModelError, "missing"),
        ({"rope__scaling__type": "longrope"}, UnsupportedModelError, "rope_type.*'longrope'"),
        ({"rope__scaling__type": "linear"}, UnsupportedModelError, "factor' is missing"),
        ({"embedding_length": 128}, CheckpointError, "has shape"),
        ({"vocab_size": 319}, CheckpointError, r"weight' has shape \(320, 64\)"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, entries: dict[str, Any], error: type[ModelError], text: str
) -> None:
    from_file = with_entries(tmp_path, **entries)
    with pytest.raises(error, match=text):
        loaded(from_file)


@pytest.mark.parametrize(
    ("entries", "error", "text"),
    [
        ({"attention.sliding_window_pattern": None}, CheckpointError, "not one for each of 6 lay"),
        ({"attention.sliding_window_pattern": [True]}, CheckpointError, "not one for each of 6 la"),
        ({"attention.head_count_kv": [2, 1]}, CheckpointError, "kv' is no list of 6 sizes from 1"),
        ({"attention.head_count_kv": [2, 2, 0, 2, 2, 1]}, CheckpointError, "no list of 6 sizes"),
        ({"attention.head_count_kv": [3] * 6}, UnsupportedModelError, "a divisor of 4"),
        ({"attention.key_length_swa": None}, CheckpointError, "key_length_swa' is missing"),
        ({"attention.value_length_swa": 8}, CheckpointError, "swa' is not the keys', 16"),
        ({"feed_forward_length": [96] * 5 + [192]}, UnsupportedModelError, "may have twice"),
        ({"attention.shared_kv_layers": 2}, UnsupportedModelError, "may have twice"),
        (
            {"attention.shared_kv_layers": 6, "feed_forward_length": 96},
            UnsupportedModelError,
            "num_kv_shared_layers",
        ),
        ({"embedding_length_per_layer_input": 16}, CheckpointError, "has shape"),
    ],
)
def test_what_is_wrong_of_layers_is_named(
    tmp_path: Path, entries: dict[str, Any], error: type[ModelError], text: str
) -> None:
    folder = make_checkpoint(tmp_path / "m", "gemma4_text")
    further = {f"gemma4.{name}": value for name, value in entries.items()}
    write_gguf(folder, tmp_path / "m.gguf", "F32", further=further)
    with pytest.raises(error, match=text):
        loaded(tmp_path / "m.gguf")


def loaded(path: Path) -> None:
    files = ModelFile(path)
    config = load_config(files)
    checkpoint = GGUFCheckpoint(files.gguf, config)
    cpu = torch.device("cpu")
    load_model(checkpoint, config, dtype=torch.float32, device=cpu, progress=False)


def test_another_architecture(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModelError, match=r"architecture is 'bert'.*llama, mistral3, .*deepseek2"
    ):
        load_config(path)


def test_both_ways_to_scale_rotation(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", "llama", num_hidden_layers=1)
    further = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    factors = {"rope_freqs.weight": np.ones(8, np.float32)}
    write_gguf(folder, tmp_path / "m.gguf", "F32", further=further, tensors=factors)
    with pytest.raises(UnsupportedModelError, match=r"both rope_freqs\.weight and llama\.rope"):
        load_config(tmp_path / "m.gguf")


def test_factors_of_llama_3(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "rope_theta": 10_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    folder = make_checkpoint(tmp_path / "m", "llama", rope_parameters=scaling)
    write_gguf(folder, tmp_path / "m.gguf", "F32")
    wanted, found = (
        load_config(path).rope.frequencies(16) for path in (folder, tmp_path / "m.gguf")
    )
    torch.testing.assert_close(found, wanted)
