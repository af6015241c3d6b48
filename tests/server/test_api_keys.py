"""Keys: which routes need one, what counts as one, and whose cache a request sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.envelope import Keyring, digest_of
from tests.server_support import Client, fake_engine

KEYS = ("sk-first", "sk-second")
PROMPT = list(range(1, 50))


@pytest.fixture(scope="module")
def engine():
    engine, _ = fake_engine()
    yield engine
    asyncio.run(engine.close())


@pytest.fixture(scope="module")
def locked(engine) -> Client:
    return Client(engine, api_key=KEYS)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def cached(client: Client, key: str, **fields: Any) -> int:
    """How many tokens of PROMPT the cache has for this key."""
    body = {"prompt": PROMPT, "max_tokens": 1, **fields}
    answer = client.request("POST", "/v1/completions", json=body, headers=bearer(key))
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/completions"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/test-model"),
        ("GET", "/get_model_info"),
        ("POST", "/generate"),
        ("POST", "/abort_request"),
        ("POST", "/tokenize"),
        ("GET", "/server_info"),
        ("GET", "/health_generate"),
        ("GET", "/metrics"),
        ("POST", "/flush_cache"),
        ("GET", "/flush_cache"),
        ("GET", "/ping"),
        ("GET", "/health/"),
        ("GET", "/nowhere"),
    ],
)
def test_every_other_route_needs_a_key(locked, method, path):
    answer = locked.request(method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"
    wrong = locked.request(method, path, headers=bearer("sk-third")).json()["error"]
    assert wrong["message"].startswith("Incorrect API key provided")  # clients look for these words
    for key in KEYS:
        assert locked.request(method, path, headers=bearer(key)).status_code != 401


def test_health_and_options_need_none(locked):
    assert locked.get("/health").status_code == 200
    assert locked.request("OPTIONS", "/v1/completions").status_code == 405


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk-firs",
        "Bearer sk-firstt",
        "Bearer SK-FIRST",
        "Bearer sk-first sk-second",
        "Bearer sk-first,sk-second",
        "Bearer wröng".encode(),
        "Basic sk-first",
        "sk-first",
        f"Bearer {digest_of('sk-first')}",
    ],
)
def test_what_is_no_key_is_refused_and_not_repeated(locked, header):
    answer = locked.request("GET", "/v1/models", headers={"Authorization": header})
    assert answer.status_code == 401
    assert "sk-" not in answer.text


@pytest.mark.parametrize("header", ["Bearer sk-second", "bearer sk-second", "Bearer  sk-second "])
def test_a_key_may_be_written_as_http_allows(locked, header):
    answer = locked.request("GET", "/v1/models", headers={"Authorization": header})
    assert answer.status_code == 200


def test_without_keys_every_key_passes(engine):
    client = Client(engine)
    assert client.get("/v1/models").status_code == 200
    assert client.request("GET", "/v1/models", headers=bearer("any")).status_code == 200


@pytest.mark.parametrize(
    ("path", "root_path", "free"),
    [
        ("/llm/health", "/llm", True),
        ("/health", "/llm", False),
        ("/llm/llm/health", "/llm", False),
        ("/llmhealth", "/llm", False),
        ("/llm/v1/models", "/llm", False),
        ("/llm/", "/llm", True),
        ("/", "/llm", False),
        ("//", "", False),
        ("//health", "", False),
        ("//ui", "", False),
    ],
)
def test_what_is_open_is_found_below_the_root_path(path, root_path, free):
    scope = {"method": "GET", "path": path, "root_path": root_path, "headers": []}
    assert (Keyring(KEYS).refusal(scope, "") is None) == free


def test_keys_share_the_cache_unless_isolated(engine):
    client = Client(engine, api_key=KEYS)
    assert client.request("POST", "/flush_cache", headers=bearer(KEYS[0])).status_code == 200
    assert cached(client, KEYS[0]) == 0
    assert cached(client, KEYS[1]) == len(PROMPT) - 1


def test_isolated_keys_never_share(engine):
    client = Client(engine, api_key=KEYS, isolate_by_key=True)
    first, second = KEYS
    assert client.request("POST", "/flush_cache", headers=bearer(first)).status_code == 200
    assert cached(client, first) == 0
    assert cached(client, first) == len(PROMPT) - 1
    assert cached(client, second) == 0
    assert cached(client, second) == len(PROMPT) - 1
    # A salt of one's own divides further, and none leads into another's part.
    assert cached(client, first, cache_salt="mine") == 0
    assert cached(client, first, cache_salt="mine") == len(PROMPT) - 1
    assert cached(client, second, cache_salt="mine") == 0
    for salt in (digest_of(first), f"{digest_of(first)}/", f"{digest_of(first)}/mine", "/mine"):
        assert cached(client, second, cache_salt=salt) == 0


def test_chats_are_isolated_too(engine):
    client = Client(engine, api_key=KEYS, isolate_by_key=True)
    body = {"messages": [{"role": "user", "content": "something else"}], "max_tokens": 1}
    found = []
    for key in (KEYS[0], KEYS[0], KEYS[1]):
        answer = client.request("POST", "/v1/chat/completions", json=body, headers=bearer(key))
        found.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found[0] == found[2] == 0 < found[1]


@pytest.mark.parametrize("key", ["", "two words", "ümlaut", "line\n", "tab\t"])
def test_keys_that_no_header_can_carry_are_refused_and_not_shown(key):
    with pytest.raises(ConfigError, match="--api-key number 2") as caught:
        ServerConfig(api_key=("good", key))
    assert not key or key not in str(caught.value)


def test_wrong_combinations_are_refused():
    with pytest.raises(ConfigError, match="--isolate-by-key needs --api-key"):
        ServerConfig(isolate_by_key=True)
    with pytest.raises(ConfigError, match="api_key is a tuple"):
        ServerConfig(api_key="secret")
    assert "secret" not in repr(ServerConfig(api_key=("secret",)))


def test_native_requests_are_isolated_too(engine):
    client = Client(engine, api_key=KEYS, isolate_by_key=True)
    body = {"text": "yet another text", "sampling_params": {"max_new_tokens": 1}}
    found = []
    for key in (KEYS[0], KEYS[0], KEYS[1]):
        answer = client.request("POST", "/generate", json=body, headers=bearer(key))
        found.append(answer.json()["meta_info"]["cached_tokens"])
    assert found[0] == found[2] == 0 < found[1]
