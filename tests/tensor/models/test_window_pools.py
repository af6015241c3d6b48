"""Models whose layers with a window have fewer slots: the same tokens, and what is saved."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.attention import backends
from radixlm.core.errors import ConfigError
from radixlm.testing.reference import greedy, load_reference, make_checkpoint

FLAGS = {"dtype": "float32", "kv_tokens": 1_000, "chunked_prefill_size": 16}
PARAMS = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "gemma2"
    make_checkpoint(folder, "gemma2", seed=0)
    return folder


def prompts() -> list[list[int]]:
    draw = np.random.default_rng(0)
    head = draw.integers(0, 300, 60).tolist()
    return [[*head[: 20 + 8 * n], *draw.integers(0, 300, 20).tolist()] for n in range(6)]


def ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def test_tombstones_change_no_token(gemma: Path) -> None:
    with Engine(str(gemma), swa_full_tokens_ratio=1.0, **FLAGS) as engine:
        expected = ids(engine.generate(prompts(), PARAMS))
        assert engine.stats().swa_capacity == 0
        whole = engine.info.kv_bytes
    with Engine(str(gemma), swa_full_tokens_ratio=0.1, **FLAGS) as engine:
        assert ids(engine.generate(prompts(), PARAMS)) == expected
        assert ids(engine.generate(prompts(), PARAMS)) == expected
        stats = engine.stats()
        assert stats.swa_evicted_tokens > 0
        assert stats.cached_tokens > 0
        assert stats.leaks == 0
        assert engine.info.kv_bytes < whole
        assert any(node.tombstones for node in engine.snapshot().nodes)
        engine.flush_cache()
        assert engine.stats().swa_free == stats.swa_capacity


@pytest.mark.parametrize("family", ["llama4_text", "gemma4_text", "mimo_v2_flash"])
@pytest.mark.parametrize("ratio", [1.0, 0.1])
def test_layers_as_transformers_sees_them(tmp_path: Path, family: str, ratio: float) -> None:
    """Chunks of 24 tokens: steps of prompts begin and end within them, answers go on into others,
    and of some only the last tokens have slots. Layers with heads of their own size, and layers
    that read those of others.
    """
    folder = make_checkpoint(tmp_path, family)
    asked = [*prompts(), *(prompts()[5][:n] for n in (23, 24, 25, 47, 49))]
    expected = [tuple(each) for each in greedy(load_reference(folder), asked, 24).tokens]
    with Engine(str(folder), swa_full_tokens_ratio=ratio, **FLAGS) as engine:
        assert ids([engine.generate([one], PARAMS)[0] for one in asked]) == expected
        assert ids(engine.generate(asked, PARAMS)) == expected
        stats = engine.stats()
        assert (stats.swa_evicted_tokens > 0) == (ratio < 1)
        assert stats.cached_tokens > 200
        assert stats.leaks == 0


def test_heads_of_two_sizes_as_they_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fields that transformers writes in another form, weights that it passes over; in codes and
    by torch, too, where queries of codes are rounded in other ways.
    """
    sizes = {"head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2}
    folder = make_checkpoint(tmp_path, "gemma4_text", **sizes)
    config = json.loads((folder / "config.json").read_text())
    del config["per_layer_config"]
    (folder / "config.json").write_text(json.dumps(config | sizes))
    weights = load_file(folder / "model.safetensors")
    unused = {"model.layers.3.self_attn.k_norm.weight": torch.ones(256)}
    save_file(weights | unused, folder / "model.safetensors")
    asked = prompts()[:2]
    expected = greedy(load_reference(folder), asked, 8)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    wanted = [tuple(each) for each in expected.tokens]
    with Engine(str(folder), **FLAGS) as engine:
        assert ids(engine.generate(asked, params)) == wanted
        assert engine.info.kv_bytes < 1_000 * 3 * 2 * 2 * 512 * 4
    with Engine(str(folder), kv_cache_dtype="int8", **FLAGS) as engine:
        in_codes = [each[:2] for each in ids(engine.generate(asked, params))]
    monkeypatch.setattr(backends, "team", lambda: SimpleNamespace(is_whole=False))
    with Engine(str(folder), **FLAGS) as engine:
        assert ids(engine.generate(asked, params)) == wanted
    with Engine(str(folder), kv_cache_dtype="int8", **FLAGS) as engine:
        assert [each[:2] for each in ids(engine.generate(asked, params))] == in_codes


def test_the_same_bits_are_refused_before_weights_are_read(gemma: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((gemma / "config.json").read_text())
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ConfigError, match="--deterministic does not know sliding windows"):
        Engine(str(tmp_path), deterministic=True, **FLAGS)
