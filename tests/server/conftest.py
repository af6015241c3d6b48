"""Engines that several tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.testing.checkpoints import write_random_checkpoint
from tests.server_support import Client, fake_engine, idle_and_whole, until


@pytest.fixture(scope="module")
def fake() -> Iterator[Client]:
    """A client of an engine without weights; nothing may leak in it."""
    engine, _ = fake_engine()
    yield Client(engine)
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    """An engine without weights for one test; nothing may leak in it."""
    engine, _ = fake_engine()
    yield engine
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint with random weights."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_random_checkpoint("tiny", folder)
    return folder


@pytest.fixture(scope="module")
def real(model_folder: Path) -> Iterator[Client]:
    """A client of a real model; nothing may leak in it."""
    engine = AsyncEngine.from_config(
        EngineConfig(model=str(model_folder), dtype="float32", kv_tokens=8000)
    )
    yield Client(engine, "tiny")
    assert until(lambda: idle_and_whole(engine)), engine.stats()
    asyncio.run(engine.close())


@pytest.fixture
def client(engine: AsyncEngine) -> Client:
    """With an empty cache and an empty window."""
    asyncio.run(engine.flush_cache())
    return Client(engine)
