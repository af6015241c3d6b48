"""Models whose layers with a window have fewer slots: the same tokens, and what is saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from radixlm import Engine, RequestOutput, SamplingParams
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


@pytest.mark.parametrize("ratio", [1.0, 0.1])
def test_chunks_as_transformers_sees_them(tmp_path: Path, ratio: float) -> None:
    """Chunks of 24 tokens: steps of prompts begin and end within them, answers go on into others,
    and of some only the last tokens have slots.
    """
    folder = make_checkpoint(tmp_path, "llama4_text")
    asked = [*prompts(), *(prompts()[5][:n] for n in (23, 24, 25, 47, 49))]
    expected = [tuple(each) for each in greedy(load_reference(folder), asked, 24).tokens]
    with Engine(str(folder), swa_full_tokens_ratio=ratio, **FLAGS) as engine:
        assert ids([engine.generate([one], PARAMS)[0] for one in asked]) == expected
        assert ids(engine.generate(asked, PARAMS)) == expected
        stats = engine.stats()
        assert (stats.swa_evicted_tokens > 0) == (ratio < 1)
        assert stats.cached_tokens > 200
        assert stats.leaks == 0


def test_the_same_bits_are_refused_before_weights_are_read(gemma: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((gemma / "config.json").read_text())
    with pytest.raises(ConfigError, match="--deterministic does not know sliding windows"):
        Engine(str(tmp_path), deterministic=True, **FLAGS)
