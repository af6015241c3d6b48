"""Engines on GGUF files: the embedded model, converted, answers as it does from its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm import Engine, SamplingParams
from radixlm.assembly import DEMO_MODEL
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import make_checkpoint

GREEDY = SamplingParams(max_tokens=24, temperature=0)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    named = {"general.name": "Demo Q8"}
    write_gguf(DEMO_MODEL, path, "Q8_0", pre="smollm", further=named)
    return path


def answers(model: str | None) -> tuple[str, list[int], list[int]]:
    """The prompt, what is answered to it, and how a plain text goes on."""
    with Engine(model, kv_tokens=2_000) as engine:
        assert engine.chat_template is not None
        prompt = engine.chat_template.render(QUESTION)
        ids = engine.tokenizer.encode(prompt, add_special_tokens=False)
        [answer] = engine.generate(ids, GREEDY)
        [again] = engine.generate(ids, GREEDY)
        assert again.cached_tokens == len(ids) - 1
        assert again.token_ids == answer.token_ids
        [text] = engine.generate("Water is made of", GREEDY)
        return prompt, answer.token_ids, text.token_ids


def test_the_embedded_model_answers_as_before(demo: Path) -> None:
    prompt, answer, text = answers(None)
    own_prompt, own_answer, own_text = answers(str(demo))
    assert (own_prompt, own_answer) == (prompt, answer)
    # Eight bits are not the same weights: what is not certain may differ in the end.
    assert own_text[:3] == text[:3]


def test_what_is_said_of_the_model(demo: Path) -> None:
    with Engine(str(demo.parent), kv_tokens=500, context_length=300) as engine:
        info = engine.info
    assert (info.name, info.model_path, info.model_type) == ("Demo Q8", str(demo), "llama")
    assert (info.dtype, info.context_length, info.eos_token_ids) == ("bfloat16", 300, (2,))


@pytest.mark.parametrize("kind", ["F16", "Q4_K"])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_what_is_cached_changes_nothing(tmp_path: Path, architecture: str, kind: str) -> None:
    sizes = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
    folder = make_checkpoint(tmp_path / "m", architecture, **sizes, tie_word_embeddings=True)
    write_gguf(folder, tmp_path / "m.gguf", kind)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    flags = {"kv_tokens": 2_000, "dtype": "float32", "deterministic": True}
    with Engine(str(tmp_path / "m.gguf"), **flags) as engine:
        prompt = list(range(40, 100))
        [cold] = engine.generate([prompt], params)
        engine.generate([[*prompt, 7]], params)
        [warm] = engine.generate([prompt], params)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 59)
    assert warm.token_ids == cold.token_ids
