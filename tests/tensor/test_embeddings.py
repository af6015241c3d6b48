"""Embeddings: those of transformers, the same cold, cached, chunked and together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from radixlm import Engine
from radixlm.core.errors import CheckpointError, InvalidRequestError
from radixlm.testing.checkpoints import write_random_checkpoint

SHARED = list(range(100, 150))
PROMPTS = [[*SHARED, *range(200 + 7 * index, 210 + 7 * index)] for index in range(4)]
# As Qwen3-Embedding's folders have them.
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {
        "idx": 2,
        "name": "2",
        "path": "2_Normalize",
        "type": "sentence_transformers.models.Normalize",
    },
]
WEIGHTS = "model.safetensors"
PROMPT = "Instruct: search\nQuery:"


def write_modules(folder: Path, mode: str = "lasttoken", more: Any = ()) -> None:
    (folder / "modules.json").write_text(json.dumps([*MODULES, *more]))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 64, f"pooling_mode_{mode}": True, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    said = {"prompts": {"query": PROMPT, "document": ""}, "default_prompt_name": None}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")
    write_modules(made)
    return made


@pytest.fixture(scope="module")
def reference(folder: Path) -> list[np.ndarray]:
    model = transformers.AutoModel.from_pretrained(str(folder), dtype=torch.float32)
    with torch.inference_mode():
        states = [model(torch.tensor([each])).last_hidden_state[0, -1] for each in PROMPTS]
    return [(state / state.norm()).numpy() for state in states]


@pytest.mark.parametrize(
    "flags",
    [{}, {"disable_radix_cache": True}, {"page_size": 16}, {"chunked_prefill_size": 7}],
    ids=["on", "off", "page16", "chunked"],
)
def test_they_are_those_of_transformers(
    folder: Path, reference: list[np.ndarray], flags: dict[str, Any]
) -> None:
    with Engine(str(folder), dtype="float32", kv_tokens=2_000, **flags) as engine:
        together = engine.embed(PROMPTS)
        alone = [engine.embed(each)[0] for each in PROMPTS]
    for one, other, known in zip(together, alone, reference, strict=True):
        assert one.embedding @ known >= 0.99999
        assert other.embedding @ known >= 0.99999
        assert one.prompt_tokens == 60


@pytest.mark.parametrize(
    "flags",
    [{}, {"disable_radix_cache": True}, {"page_size": 16}, {"chunked_prefill_size": 7}],
    ids=["on", "off", "page16", "chunked"],
)
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token"])
def test_means_and_first_tokens_are_those_of_transformers(
    tmp_path: Path, mode: str, flags: dict[str, Any]
) -> None:
    made = write_random_checkpoint("tiny", tmp_path / "tiny", dtype="float32")
    write_modules(made, mode)
    model = transformers.AutoModel.from_pretrained(str(made), dtype=torch.float32)
    with Engine(str(made), dtype="float32", kv_tokens=2_000, **flags) as engine:
        engine.generate(PROMPTS[0])  # what is cached is of no use
        together, again = engine.embed(PROMPTS), engine.embed(PROMPTS)
        assert engine.stats().kv_private == 0
    for prompt, one, other in zip(PROMPTS, together, again, strict=True):
        with torch.inference_mode():
            states = model(torch.tensor([prompt])).last_hidden_state[0]
        known = (states.mean(0) if mode == "mean_tokens" else states[0]).numpy()
        known /= np.linalg.norm(known)
        assert one.embedding @ known >= 0.99999
        assert other.embedding @ known >= 0.99999
        assert one.cached_tokens == 0


def test_what_they_share_is_computed_once(folder: Path) -> None:
    with Engine(str(folder), dtype="float32", kv_tokens=2_000) as engine:
        made = engine.embed(PROMPTS)
        assert sorted(each.cached_tokens for each in made) == [0, 50, 50, 50]
        assert engine.embed(PROMPTS[0])[0].cached_tokens == 59


def test_dimensions_are_cut_and_normalized(folder: Path) -> None:
    with Engine(str(folder), dtype="float32", kv_tokens=2_000) as engine:
        [whole], [cut] = engine.embed(PROMPTS[0]), engine.embed(PROMPTS[0], dimensions=8)
        expected = whole.embedding[:8] / np.linalg.norm(whole.embedding[:8])
        assert np.allclose(cut.embedding, expected, atol=1e-6)
        with pytest.raises(InvalidRequestError, match="dimensions must be from 1 to"):
            engine.embed(PROMPTS[0], dimensions=100_000)


def test_a_prompt_of_the_model_s_goes_before_the_text(folder: Path) -> None:
    with Engine(str(folder), dtype="float32", kv_tokens=2_000) as engine:
        [named] = engine.embed("cats", prompt_name="query")
        [written] = engine.embed(PROMPT + "cats")
        assert np.allclose(named.embedding, written.embedding, atol=1e-5)
        with pytest.raises(InvalidRequestError, match="prompt_name is 'other'"):
            engine.embed("cats", prompt_name="other")


def write_dense(folder: Path, width: int, out: int, *, tanh: bool = False) -> torch.nn.Linear:
    """A module as sentence-transformers saves it."""
    made = torch.nn.Linear(width, out, bias=tanh)
    folder.mkdir()
    save_file({f"linear.{name}": its for name, its in made.state_dict().items()}, folder / WEIGHTS)
    kind = "activation.Tanh" if tanh else "linear.Identity"
    said = {"in_features": width, "out_features": out, "bias": tanh}
    said["activation_function"] = f"torch.nn.modules.{kind}"
    (folder / "config.json").write_text(json.dumps(said))
    return made


def with_dense(folder: Path, *places: str) -> None:
    """As EmbeddingGemma's folder has them: before the normalizing."""
    kind = "sentence_transformers.models.Dense"
    dense = [{"type": kind, "path": place} for place in places]
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], *dense, MODULES[2]]))


@pytest.mark.parametrize("mode", ["lasttoken", "mean_tokens"])
def test_states_go_through_dense_modules(tmp_path: Path, mode: str) -> None:
    made = write_random_checkpoint("tiny", tmp_path / "tiny", dtype="float32")
    write_modules(made, mode)
    model = transformers.AutoModel.from_pretrained(str(made), dtype=torch.float32)
    width = model.config.hidden_size
    first = write_dense(made / "2_Dense", width, 4 * width, tanh=True)
    second = write_dense(made / "3_Dense", 4 * width, 24)
    with_dense(made, "2_Dense", "3_Dense")
    with Engine(str(made), dtype="float32", kv_tokens=2_000) as engine:
        embedded, [cut] = engine.embed(PROMPTS), engine.embed(PROMPTS[0], dimensions=8)
        with pytest.raises(InvalidRequestError, match="dimensions must be from 1 to 24"):
            engine.embed(PROMPTS[0], dimensions=25)
    for prompt, each in zip(PROMPTS, embedded, strict=True):
        with torch.inference_mode():
            states = model(torch.tensor([prompt])).last_hidden_state[0]
            pooled = states.mean(0) if mode == "mean_tokens" else states[-1]
            known = second(torch.tanh(first(pooled)))
        assert each.embedding.shape == (24,)
        assert each.embedding @ (known / known.norm()).numpy() >= 0.99999
    assert np.allclose(
        cut.embedding,
        embedded[0].embedding[:8] / np.linalg.norm(embedded[0].embedding[:8]),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("sizes", "missing", "reason"),
    [
        ((63, 8), "", "after .* features it needs"),
        ((0, 8), WEIGHTS, "neither model.safetensors"),
        ((0, 8), "config.json", "config.json"),
    ],
)
def test_dense_modules_that_do_not_fit_are_errors(
    tmp_path: Path, sizes: tuple[int, int], missing: str, reason: str
) -> None:
    made = write_random_checkpoint("tiny", tmp_path / "tiny", dtype="float32")
    write_modules(made)
    width = json.loads((made / "config.json").read_text())["hidden_size"]
    write_dense(made / "2_Dense", sizes[0] or width, sizes[1])
    if missing:
        (made / "2_Dense" / missing).unlink()
    with_dense(made, "2_Dense")
    with pytest.raises(CheckpointError, match=reason):
        Engine(str(made), dtype="float32", kv_tokens=2_000)


@pytest.mark.parametrize(
    ("mode", "more", "reason"),
    [
        ("max_tokens", (), "pools by max_tokens"),
        ("lasttoken", ({"type": "sentence_transformers.models.LSTM", "path": "3"},), "LSTM"),
    ],
)
def test_other_ways_are_refused_by_name(tmp_path: Path, mode: str, more: Any, reason: str) -> None:
    made = write_random_checkpoint("tiny", tmp_path / "tiny", dtype="float32")
    write_modules(made, mode, more)
    with Engine(str(made), dtype="float32", kv_tokens=2_000) as engine:
        with pytest.raises(InvalidRequestError, match=reason):
            engine.embed(PROMPTS)
        assert engine.generate([1, 2, 3])
