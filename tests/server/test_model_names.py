"""Several names of one model."""

from __future__ import annotations

import asyncio

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from tests.server_support import Client, fake_engine

NAMES = ("test-model", "gpt-4o", "org/small")


@pytest.fixture
def client():
    engine, _ = fake_engine()
    yield Client(engine, served_model_name=NAMES)
    asyncio.run(engine.close())


@pytest.mark.parametrize("name", NAMES)
def test_each_is_the_model_and_answers_have_the_first(client, name):
    asked = {"model": name, "prompt": "Once", "max_tokens": 2, "temperature": 0}
    answer = client.request("POST", "/v1/completions", json=asked)
    assert (answer.status_code, answer.json()["model"]) == (200, NAMES[0])
    assert client.get(f"/v1/models/{name}").json()["id"] == name


def test_all_are_listed_as_models_of_their_own(client):
    cards = client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == [*NAMES]
    assert not any("parent" in card for card in cards)
    asked = {"model": "gpt-5", "prompt": "Once"}
    refusal = client.request("POST", "/v1/completions", json=asked)
    assert refusal.status_code == 404
    assert "'test-model' and 'gpt-4o' and 'org/small' are" in refusal.json()["error"]["message"]


def test_an_adapter_has_none_of_them(client, tmp_path):
    asked = {"lora_name": "gpt-4o", "lora_path": str(tmp_path)}
    refusal = client.request("POST", "/load_lora_adapter", json=asked)
    assert refusal.status_code == 400
    assert "the model's own" in refusal.json()["error"]["message"]


@pytest.mark.parametrize(("names", "message"), [(("a", "a"), "by one name"), (("",), "is a name")])
def test_names_are_names_and_differ(names, message):
    with pytest.raises(ConfigError, match=message):
        ServerConfig(served_model_name=names)
