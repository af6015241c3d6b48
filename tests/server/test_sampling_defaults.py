"""--sampling-defaults: what a checkpoint's generation_config.json means to requests."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, ModelError
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.server.config.server_config import ServerConfig
from tests.server_support import Client, requests_seen

RECOMMENDED = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
}
DEFAULTS = {name: getattr(SamplingParams(), name) for name in RECOMMENDED}


def engine_with(folder: Path, tmp_path: Path, **fields: Any) -> AsyncEngine:
    copy = tmp_path / "model"
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    path = copy / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return AsyncEngine.from_config(EngineConfig(model=str(copy), dtype="float32", kv_tokens=2000))


@pytest.fixture(scope="module")
def engine(model_folder: Path, tmp_path_factory) -> Iterator[AsyncEngine]:
    engine = engine_with(
        model_folder,
        tmp_path_factory.mktemp("recommended"),
        **RECOMMENDED,
        do_sample=False,
        max_new_tokens=3,
        typical_p=None,
    )
    yield engine
    asyncio.run(engine.close())


@pytest.fixture
def arrived(engine, monkeypatch) -> list[GenerateRequest]:
    return requests_seen(engine, monkeypatch)


def of(request: GenerateRequest) -> dict[str, float]:
    return {name: getattr(request.params, name) for name in RECOMMENDED}


@pytest.mark.parametrize("flags", [{}, {"sampling_defaults": "model"}])
def test_the_model_s_own_are_the_default(engine, arrived, flags):
    client = Client(engine, "tiny", **flags)
    assert client.complete(max_tokens=1).status_code == 200
    assert client.chat(max_tokens=1, temperature=None).status_code == 200
    assert [of(request) for request in arrived] == [RECOMMENDED] * 2


def test_a_request_s_own_fields_win(engine, arrived):
    client = Client(engine, "tiny")
    assert client.chat(max_tokens=1, temperature=1.0, top_k=-1).status_code == 200
    assert of(arrived[0]) == {**RECOMMENDED, "temperature": 1.0, "top_k": -1}


def test_openai_s_can_be_had(engine, arrived):
    client = Client(engine, "tiny", sampling_defaults="openai")
    assert client.complete(max_tokens=1).status_code == 200
    assert of(arrived[0]) == DEFAULTS


def test_the_native_route_keeps_its_own(engine, arrived):
    params = {"max_new_tokens": 1}
    assert Client(engine, "tiny").generate("a", sampling_params=params).status_code == 200
    assert of(arrived[0]) == DEFAULTS


def test_the_length_is_not_taken_from_the_model(engine):
    answer = Client(engine, "tiny").complete(ignore_eos=True).json()
    assert answer["usage"]["completion_tokens"] == 16


def test_a_model_without_recommendations_is_as_openai_s(fake):
    assert fake.engine.info.recommended_sampling == {}


def test_what_is_recommended_can_be_asked_for(engine):
    info = Client(engine, "tiny").get("/get_model_info").json()
    assert info["recommended_sampling"] == RECOMMENDED


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"temperature": -1}, "temperature must be .* got -1"),
        ({"top_p": "high"}, "top_p must be .* got 'high'"),
        ({"top_k": 1.5}, "top_k must be .* got 1.5"),
    ],
)
def test_recommendations_that_can_not_be_are_an_error_at_the_start(
    model_folder, tmp_path, fields, text
):
    engine = engine_with(model_folder, tmp_path, **fields)
    with pytest.raises(ModelError, match=f"generation_config.json.*{text}.*--sampling-defaults"):
        Client(engine, "tiny")
    Client(engine, "tiny", sampling_defaults="openai")
    asyncio.run(engine.close())


def test_other_values_of_the_flag_are_refused():
    with pytest.raises(ConfigError, match="--sampling-defaults is one of"):
        ServerConfig(sampling_defaults="vllm")  # type: ignore[arg-type]
