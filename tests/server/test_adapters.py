"""Adapters by name on every route, loading and unloading them; over an engine without weights."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.assembly import engines
from radixlm.core.errors import ConfigError, EngineStoppedError
from tests.server_support import Client, FolderShelf, fake_engine

LONG = 60.0
PROMPT = list(range(1, 40))
CHAT = [{"role": "user", "content": "Where is the Louvre, and who built it?"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "french"
    path.mkdir()
    (path / "adapter_config.json").write_text("{}")
    return path


@pytest.fixture
def client():
    engine, _ = fake_engine()
    yield Client(engine)
    asyncio.run(engine.close())


def load(client: Client, folder: Path, name: str = "fr", **headers: Any) -> Any:
    body = {"lora_name": name, "lora_path": str(folder)}
    return client.request("POST", "/load_lora_adapter", json=body, **headers)


def unload(client: Client, name: str = "fr", **headers: Any) -> Any:
    return client.request("POST", "/unload_lora_adapter", json={"lora_name": name}, **headers)


def test_they_are_listed_while_they_are_loaded(client, folder):
    loaded = load(client, folder)
    assert loaded.status_code == 200
    adapters = {"fr": str(folder)}
    assert loaded.json() == {"success": True, "error_message": "", "loaded_adapters": adapters}
    base, card = client.get("/v1/models").json()["data"]
    assert ("parent" in base, card["id"], card["parent"]) == (False, "fr", "test-model")
    assert client.get("/v1/models/fr").json() == card
    page = client.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert [each["id"] for each in page["data"]] == ["test-model", "fr"]
    assert (page["first_id"], page["last_id"]) == ("test-model", "fr")
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"]["enum"] == ["test-model", "fr", None]
    assert schemas["GenerateBody"]["properties"]["lora_path"]["enum"] == ["fr", None]
    assert unload(client).json()["loaded_adapters"] == {}
    assert len(client.get("/v1/models").json()["data"]) == 1
    assert client.get("/v1/models/fr").status_code == 404
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"]["enum"] == ["test-model", None]


ASKED = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 4, "temperature": 0},
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": 4, "temperature": 0},
    "/v1/responses": {"input": "Where is the Louvre?", "max_output_tokens": 4, "temperature": 0},
    "/v1/messages": {"messages": CHAT, "max_tokens": 4, "temperature": 0},
    "/generate": {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4, "temperature": 0}},
}


@pytest.mark.parametrize("route", ASKED)
def test_requests_name_one(client, folder, route):
    load(client, folder)

    def ask(**fields: Any) -> Any:
        answer = client.post(route, **(ASKED[route] | {"model": "test-model"} | fields))
        assert answer.status_code == 200, answer.text
        return answer.json()

    base, named, again = ask(), ask(model="fr"), ask(lora_path="fr")
    if "model" in base:
        assert (base["model"], named["model"], again["model"]) == ("test-model", "fr", "fr")
    assert texts(base) != texts(named) == texts(again)


def texts(made: Any) -> list[str]:
    """All answers in a body of any route."""
    if isinstance(made, dict):
        own = [made["text"]] if isinstance(made.get("text"), str) else []
        message = made.get("message")
        if isinstance(message, dict):
            own.append(message["content"])
        return own + [text for value in made.values() for text in texts(value)]
    return [text for value in made for text in texts(value)] if isinstance(made, list) else []


def test_each_has_its_own_part_of_the_cache(client, folder):
    load(client, folder)

    def cached(**fields: Any) -> int:
        made = client.complete(PROMPT, max_tokens=1, **fields).json()
        return made["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert (cached(), cached()) == (0, 38)
    assert (cached(model="fr"), cached(model="fr"), cached(lora_path="fr")) == (0, 38, 38)
    unload(client)
    (folder / "adapter_config.json").write_text('{"other": "weights"}')
    load(client, folder)
    assert (cached(model="fr"), cached(model="fr"), cached()) == (0, 38, 38)


def test_why_a_prompt_with_an_adapter_would_miss(client, folder):
    load(client, folder)
    client.complete(PROMPT, max_tokens=1, model="fr")
    for fields, cached in (({"model": "fr"}, 38), ({}, 0)):
        body = {"prompt": PROMPT, "max_tokens": 1} | fields
        [report] = client.post("/cache/explain", **body).json()["reports"]
        assert sum(report["cached_tokens"].values()) == cached


def test_what_is_not_loaded_is_refused_with_the_names(client, folder):
    load(client, folder)
    answer = client.complete(PROMPT, model="de")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found"
    assert "'de' is not served here; 'test-model' and 'fr' are" in error["message"]
    body = {"input_ids": PROMPT, "lora_path": "de"}
    error = client.post("/generate", **body).json()["error"]
    assert error["param"] == "lora_path"
    assert "not loaded, 'de'; loaded: 'fr'" in error["message"]
    assert client.post("/generate", **(body | {"lora_path": 3})).status_code == 400
    assert client.post("/generate", **(body | {"lora_path": None})).status_code == 200


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"lora_name": "fr", "lora_path": "/nowhere"}, "lora_path", "has no adapter_config.json"),
        ({"lora_name": "fr", "lora_path": "~nosuch/x"}, "lora_path", "'~nosuch/x' is no path"),
        ({"lora_name": "fr", "lora_path": "x" * 300}, "lora_path", "File name too long"),
        ({"lora_name": "fr", "lora_path": "a\0b"}, "lora_path", "embedded null byte"),
        ({"lora_name": "test-model"}, "lora_name", "is the model's own"),
        ({"lora_name": "a b"}, "lora_name", "has no spaces"),
        ({"lora_name": ""}, "lora_name", "lora_name"),
        ({"lora_name": "known"}, "lora_name", "'known' is loaded already"),
    ],
)
def test_what_can_not_be_loaded(client, folder, body, param, said):
    load(client, folder, "known")
    answer = client.post("/load_lora_adapter", **({"lora_path": str(folder)} | body))
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert [each["id"] for each in client.get("/v1/models").json()["data"]] == [
        "test-model",
        "known",
    ]


def test_unloading_what_is_not_there(client):
    answer = unload(client, "fr")
    assert answer.status_code == 400
    assert "not loaded, 'fr'; loaded: none is" in answer.json()["error"]["message"]


def test_they_are_for_admins(folder):
    engine, _ = fake_engine()
    client = Client(engine, api_key=("user",), admin_api_key=("admin",))
    user, admin = ({"authorization": f"Bearer {key}"} for key in ("user", "admin"))
    assert load(client, folder, headers=user).status_code == 403
    assert load(client, folder, headers=admin).status_code == 200
    assert unload(client, headers=user).status_code == 403
    assert unload(client, headers=admin).status_code == 200
    asyncio.run(engine.close())


def test_unloading_waits_for_requests_that_have_it(folder):
    engine, _ = fake_engine(seconds=0.02)
    client = Client(engine)
    load(client, folder)
    long = {"prompt": PROMPT, "max_tokens": 40, "model": "fr", "ignore_eos": True}
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(Client(engine).post("/v1/completions", **long))
    )
    thread.start()
    while not engine.stats().running:
        assert thread.is_alive() or answers
    assert unload(client).status_code == 200
    assert engine.stats().running == 0
    thread.join()
    assert answers[0].status_code == 200
    assert answers[0].json()["usage"]["completion_tokens"] == 40
    asyncio.run(engine.close())


class HangingShelf(FolderShelf):
    """Its folders lie on a disk that does not answer until it is mended."""

    def __init__(self) -> None:
        super().__init__()
        self.mended = threading.Event()

    def read(self, name: str, folder: Path) -> tuple[str, str]:
        self.mended.wait()
        return super().read(name, folder)


def test_loads_that_hang_hold_up_no_text(folder):
    """More of them than asyncio's own pool has threads, in which prompts are read."""
    shelf = HangingShelf()
    engine, _ = fake_engine(shelf=shelf)
    transport = httpx.ASGITransport(Client(engine).app)
    names = [f"a{place}" for place in range(40)]

    async def answer() -> httpx.Response:
        asked = {"prompt": "Who?", "max_tokens": 1}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            async with asyncio.timeout(LONG):
                return await http.post("/v1/completions", json=asked)

    async def main() -> None:
        tasks = [
            asyncio.create_task(engine.load_lora_adapter(name, str(folder)))
            for name in [*names, "given-up"]
        ]
        await asyncio.sleep(0)
        tasks[-1].cancel()
        try:
            assert (await answer()).status_code == 200
        finally:
            shelf.mended.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert set(engine.adapters.named) == set(names)
        await engine.close()

    asyncio.run(main())


def test_the_end_does_not_wait_for_a_load_that_hangs(folder, monkeypatch):
    monkeypatch.setattr(engines, "SECONDS_TO_END", 0.0)
    shelf = HangingShelf()
    engine, _ = fake_engine(shelf=shelf)

    async def main() -> None:
        load = asyncio.create_task(engine.load_lora_adapter("fr", str(folder)))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(LONG):
                await engine.close()
                with pytest.raises(EngineStoppedError, match="loading adapters"):
                    await load
        finally:
            shelf.mended.set()

    asyncio.run(main())


def test_an_adapter_can_not_be_called_as_the_model(folder):
    engine, _ = fake_engine()
    engine.adapters.load("test-model", str(folder))
    with pytest.raises(ConfigError, match="can not have the model's name 'test-model'"):
        Client(engine)
    asyncio.run(engine.close())
