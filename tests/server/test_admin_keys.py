"""--admin-api-key: who may empty the cache and abort everybody's requests."""

from __future__ import annotations

import asyncio

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from tests.server.test_abort_by_key import NATIVE, reason, run
from tests.server_support import Client, fake_engine, idle_and_whole, refused, until

KEY, ADMIN = "sk-first", "sk-admin"
RESETS = [("POST", "/flush_cache"), ("GET", "/flush_cache"), ("POST", "/reset_prefix_cache")]


@pytest.fixture(scope="module")
def engine():
    engine, _ = fake_engine(seconds=0.01)
    yield engine
    assert until(lambda: idle_and_whole(engine))
    asyncio.run(engine.close())


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("method", "path"), RESETS)
def test_only_admins_empty_the_cache(engine, method, path):
    client = Client(engine, api_key=(KEY,), admin_api_key=(ADMIN, "sk-other"))
    error = refused(client.request(method, path, headers=bearer(KEY)), 403)
    assert error["code"] == "admin_key_needed"
    assert error["type"] == "permission_error"
    assert client.request(method, path, headers=bearer("sk-wrong")).status_code == 401
    assert client.request(method, path).status_code == 401
    for key in (ADMIN, "sk-other"):
        assert client.request(method, path, headers=bearer(key)).status_code == 200


@pytest.mark.parametrize(("method", "path"), RESETS)
def test_admin_keys_need_no_others(engine, method, path):
    client = Client(engine, admin_api_key=(ADMIN,))
    for headers in ({}, bearer(KEY)):
        assert client.request(method, path, headers=headers).status_code == 401
    assert client.get("/v1/models").status_code == 200
    assert client.request(method, path, headers=bearer(ADMIN)).status_code == 200


def test_an_admin_s_key_opens_everything(engine):
    client = Client(engine, api_key=(KEY,), admin_api_key=(ADMIN,))
    assert client.request("GET", "/v1/models", headers=bearer(ADMIN)).status_code == 200
    assert client.request("GET", "/v1/models").status_code == 401


@pytest.mark.slow
def test_only_admins_abort_all(engine):
    client = Client(engine, api_key=(KEY,), admin_api_key=(ADMIN,))
    [answer], said = run(client, [(KEY, "/generate", NATIVE)], KEY, abort_all=True)
    assert said["error"]["code"] == "admin_key_needed"
    assert reason(answer) == "length"
    [answer], said = run(client, [(KEY, "/generate", NATIVE)], ADMIN, abort_all=True)
    assert said == {"aborted": 1}
    assert reason(answer) == "abort"
    [answer], said = run(client, [(KEY, "/generate", NATIVE)], KEY, rid="mine")
    assert said == {"aborted": 1}


def test_isolated_keys_abort_all_their_own_and_admins_everybody_s(engine):
    keys = (KEY, "sk-second")
    client = Client(engine, api_key=keys, admin_api_key=(ADMIN,), isolate_by_key=True)
    bodies = [(key, "/generate", NATIVE) for key in keys]
    answers, said = run(client, bodies, KEY, abort_all=True)
    assert said == {"aborted": 1}
    assert [reason(answer) for answer in answers] == ["abort", "length"]
    answers, said = run(client, bodies, ADMIN, abort_all=True)
    assert said == {"aborted": 2}


@pytest.mark.slow
def test_no_route_shows_an_admin_s_key(engine):
    client = Client(engine, admin_api_key=(ADMIN,))
    for path in ("/server_info", "/metrics", "/openapi.json", "/get_model_info", "/v1/loads"):
        assert ADMIN not in client.get(path).text
    assert ADMIN not in repr(ServerConfig(admin_api_key=(ADMIN,)))


@pytest.mark.slow
def test_the_document_tells_where_an_admin_s_key_is_needed(engine):
    told = Client(engine, admin_api_key=(ADMIN,)).get("/openapi.json").json()
    assert "security" not in told
    for path, method in (
        ("/flush_cache", "get"),
        ("/reset_prefix_cache", "post"),
        ("/abort_request", "post"),
    ):
        operation = told["paths"][path][method]
        [scheme] = operation["security"]
        assert scheme.keys() <= told["components"]["securitySchemes"].keys()
        assert {"401", "403"} <= operation["responses"].keys()
    assert "403" not in told["paths"]["/v1/completions"]["post"]["responses"]


def test_wrong_admin_keys_are_refused_and_not_shown():
    with pytest.raises(ConfigError, match="--admin-api-key number 2") as caught:
        ServerConfig(admin_api_key=("good", "two words"))
    assert "words" not in str(caught.value)
    with pytest.raises(ConfigError, match="as --api-key and as --admin-api-key") as caught:
        ServerConfig(api_key=("same",), admin_api_key=("same",))
    assert "same" not in str(caught.value)
