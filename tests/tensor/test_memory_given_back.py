"""A closed engine gives its memory back at once: on a GPU the next one needs it."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from radixlm import AsyncEngine, Engine, EngineConfig, SamplingParams
from radixlm.assembly import loading
from radixlm.core.errors import EngineDeadError
from radixlm.memory.pools import KVPool
from radixlm.testing.checkpoints import write_random_checkpoint

SHORT = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
PROMPTS = [[1, 2, 3, 4], [1, 2, 3, 5]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[object]]:
    """Pools and models of engines from now on."""
    refs: list[weakref.ref[object]] = []

    class Pool(KVPool):
        def __init__(self, *shape: object, **kind: object) -> None:
            super().__init__(*shape, **kind)
            refs.extend(map(weakref.ref, self.keys))

    make_model = loading.make_model

    def noted(*given: object, **kind: object) -> object:
        model = make_model(*given, **kind)
        refs.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "KVPool", Pool)
    monkeypatch.setattr(loading, "make_model", noted)
    return refs


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def alive(made: list[weakref.ref[object]]) -> int:
    assert made
    return sum(ref() is not None for ref in made)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
        {"host_kv_tokens": 512},
        {"disk_cache": "disk"},
        {"model_impl": "transformers"},
        {"disable_radix_cache": True},
    ],
    ids=str,
)
def test_an_engine_that_is_closed(
    made: list[weakref.ref[object]],
    folder: Path,
    tmp_path: Path,
    flags: Mapping[str, object],
) -> None:
    if "disk_cache" in flags:
        flags = {"disk_cache": str(tmp_path / "disk")}
    with no_collector():
        engine = Engine(str(folder), kv_tokens=600, **flags)
        engine.generate(PROMPTS, SHORT)
        engine.close()
        assert engine.stats().steps
        if "model_impl" in flags:
            gc.collect()  # transformers' import has an error that knows the frames above it
        assert alive(made) == 0  # though it is still at hand


def test_one_that_served(made: list[weakref.ref[object]], folder: Path) -> None:
    async def serve() -> None:
        config = EngineConfig.from_flags(model=str(folder), kv_tokens=600)
        engine = AsyncEngine.from_config(config)
        await engine.generate(PROMPTS[0], SHORT)
        await engine.snapshot()
        await engine.flush_cache()
        await engine.close()

    with no_collector():
        asyncio.run(serve())
        assert alive(made) == 0


def test_one_that_crashed(
    made: list[weakref.ref[object]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(logging.getLogger("radixlm.engine"), "disabled", True)  # it keeps errors
    with no_collector():
        engine = Engine(str(folder), kv_tokens=600)
        monkeypatch.setattr("radixlm.runner.model_runner.ModelRunner.execute", crash)
        with pytest.raises(EngineDeadError, match="no such kernel"):
            engine.generate(PROMPTS, SHORT)
        engine.close()
        assert alive(made) == 0
