from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jinja2.sandbox import SandboxedEnvironment
from safetensors.torch import load_file
from tokenizers import Tokenizer

from radixlm.core.errors import ConfigError
from radixlm.models import CausalLM, ModelConfig, PlainCheckpoint, load_config, load_model
from radixlm.testing.checkpoints import EOS_TOKEN_ID, SHAPES, write_random_checkpoint
from radixlm.testing.reference import load_reference, reference_logits
from tests.tensor.attention_cases import DenseAttend

CPU = torch.device("cpu")
PARAMETERS = {  # as published, in millions
    "smollm-135m": 134.5,
    "qwen3-0.6b": 596.0,
    "llama-3.2-1b": 1235.8,
    "qwen3-8b": 8190.7,
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("tiny"), dtype="float32")


@pytest.mark.parametrize("shape", sorted(PARAMETERS))
def test_shapes_have_the_published_sizes(shape: str) -> None:
    config = ModelConfig.from_hf(SHAPES[shape])
    model = CausalLM(config, dtype=torch.bfloat16, device=torch.device("meta"))
    millions = sum(weight.numel() for weight in model.weights().values()) / 1e6
    assert millions == pytest.approx(PARAMETERS[shape], rel=1e-3)


def test_it_runs_as_in_transformers(tiny: Path) -> None:
    config = load_config(tiny)
    assert config.eos_token_ids == {EOS_TOKEN_ID}
    checkpoint = PlainCheckpoint(tiny)
    model = load_model(checkpoint, config, dtype=torch.float32, device=CPU, progress=False)
    token_ids = list(range(100))
    rows = torch.arange(100)
    with torch.inference_mode():
        logits = model.forward(rows, rows, DenseAttend(model.config.n_kv_heads), rows)
    assert (logits - reference_logits(load_reference(tiny), token_ids)).abs().max() <= 1e-4
    assert 1.0 < logits.std() < 4.0
    assert logits.argmax(-1).unique().numel() > 30


@pytest.mark.parametrize("text", ["", "plain", "naïve 日本 🙂\n\t\x00 x", " w300"])
def test_tokenizer_is_one_id_per_byte(tiny: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_id_of_the_vocabulary_is_a_token(tiny: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == load_config(tiny).vocab_size
    assert tokenizer.decode([300, 511]) == " w300 w511"
    assert tokenizer.encode("<|im_start|>a<|im_end|>").ids == [257, ord("a"), EOS_TOKEN_ID]


def test_chat_template(tiny: Path) -> None:
    source = json.loads((tiny / "tokenizer_config.json").read_text())["chat_template"]
    template = SandboxedEnvironment().from_string(source)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert template.render(messages=messages, add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_seeds_and_shards(tiny: Path, tmp_path: Path) -> None:
    again = write_random_checkpoint(
        "tiny", tmp_path / "new" / "folder", dtype="float32", shard_bytes=100_000
    )
    other = write_random_checkpoint("tiny", tmp_path / "other", dtype="float32", seed=1)
    assert len(list(again.glob("model-*.safetensors"))) > 1
    one = load_file(tiny / "model.safetensors")
    two = load_file(other / "model.safetensors")
    checkpoint = PlainCheckpoint(again)
    model = load_model(
        checkpoint, load_config(again), dtype=torch.float32, device=CPU, progress=False
    )
    name = "model.embed_tokens.weight"
    assert all(torch.equal(weight, one[key]) for key, weight in model.weights().items())
    assert not torch.equal(one[name], two[name])


def test_bfloat16_is_the_default(tmp_path: Path) -> None:
    write_random_checkpoint("tiny", str(tmp_path))
    assert load_config(tmp_path).dtype == torch.bfloat16
    tensors = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_unknown_shape_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gpt-5.*tiny.*qwen3-8b"):
        write_random_checkpoint("gpt-5", tmp_path)
    with pytest.raises(ConfigError, match="int8"):
        write_random_checkpoint("tiny", tmp_path, dtype="int8")  # type: ignore[arg-type]


def test_a_folder_in_use_is_left_alone(tiny: Path) -> None:
    before = {path: path.read_bytes() for path in tiny.iterdir()}
    with pytest.raises(ConfigError, match="not empty"):
        write_random_checkpoint("tiny", tiny, seed=5)
    assert {path: path.read_bytes() for path in tiny.iterdir()} == before
