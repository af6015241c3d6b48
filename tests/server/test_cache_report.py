"""cache_report on every route, /cache/explain and /cache/advice: what is told, and to whom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.request import RequestOutput
from radixlm.observe.causes import Finding, find
from radixlm.server.pipeline import generation as reports
from tests.server_support import Client, events, fake_engine, refused

TEXT = "the code of the safe is 4711"
ADMIN = "admin-key"


@pytest.fixture
def engine() -> Iterator[AsyncEngine]:
    made, _ = fake_engine()
    yield made
    asyncio.run(made.close())


def ask(client: Client, path: str, key: str, **body: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"}
    return client.request("GET" if not body else "POST", path, headers=headers, json=body or None)


def complete(client: Client, prompt: Any, key: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "cache_report": True, **fields}
    answer = ask(client, "/v1/completions", key, **body)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()["cache_report"]
    return report


MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", MESSAGES),
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 2}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 2, "store": False}),
    ("/v1/messages", MESSAGES),
    ("/generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 2}}),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_each_route_has_it_where_it_is_asked_for(
    engine: AsyncEngine, path: str, body: dict[str, Any]
) -> None:
    client = Client(engine)
    assert "cache_report" not in client.post(path, **body).text
    answer = client.post(path, **body, cache_report=True).json()
    report = answer.get("meta_info", answer)["cache_report"]
    assert report["reason"] == "last_token"
    assert report["cached_tokens"] == {"device": report["prompt_tokens"] - 1}
    assert report["computed_tokens"] == 1


@pytest.fixture(params=["as it comes", "when all is there"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a stream's reader finds it: a late one gets the whole answer as one output."""
    as_it_comes = AsyncEngine.stream

    async def late(*given: Any, **options: Any) -> AsyncGenerator[RequestOutput, None]:
        yield RequestOutput.joined([each async for each in as_it_comes(*given, **options)])

    if request.param == "when all is there":
        monkeypatch.setattr(AsyncEngine, "stream", late)


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_each_stream_ends_with_it(engine: AsyncEngine, path: str, body: dict[str, Any]) -> None:
    answer = Client(engine).post(path, **body, stream=True, cache_report=True)
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    told = [json.loads(line.removeprefix("data: ")) for line in lines]
    having = [each for each in told if "cache_report" in json.dumps(each)]
    assert len(having) == 1
    assert having[0] is told[-2 if path == "/v1/messages" else -1]


def test_beside_the_usage_of_a_stream(engine: AsyncEngine) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "cache_report": True}
    *_, last = events(Client(engine).complete("Hi", max_tokens=2, **options))
    assert last["usage"]["prompt_tokens"] == last["cache_report"]["prompt_tokens"]


def test_one_for_each_prompt(engine: AsyncEngine) -> None:
    answer = Client(engine).complete(["One", "Two"], max_tokens=1, n=2, cache_report=True).json()
    assert [report["index"] for report in answer["cache_report"]] == [0, 1]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": ["One", "Two"], "max_tokens": 1}),
        ("/v1/completions", {"prompt": ["One", "Two"], "max_tokens": 1, "stream": True}),
        ("/generate", {"text": ["One", "Two"], "sampling_params": {"max_new_tokens": 1}}),
    ],
)
def test_reports_of_many_prompts_let_others_be_answered(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    threads = []

    def noted(*told: Any, **how: Any) -> Finding:
        threads.append(threading.current_thread())
        return find(*told, **how)

    monkeypatch.setattr(reports, "find", noted)
    answer = Client(engine).post(path, **body, cache_report=True)
    assert answer.text.count("computed_tokens") == len(threads) == 2
    assert threading.main_thread() not in threads


class TestTenants:
    @pytest.fixture
    def isolated(self, engine: AsyncEngine) -> Client:
        keys = ("one", "two")
        return Client(engine, api_key=keys, admin_api_key=(ADMIN,), isolate_by_key=True)

    def test_nothing_of_another_key_shows(self, isolated: Client) -> None:
        complete(isolated, TEXT, "one")
        report = complete(isolated, TEXT[:-4] + "0815", "two")
        assert (report["reason"], report["cached_tokens"]) == ("new", {"device": 0})
        told = ask(isolated, "/cache/explain", "two", prompt=TEXT[:-4] + "9999").text
        advice = ask(isolated, "/cache/advice", "two").json()
        assert "4711" not in json.dumps(report) + told + json.dumps(advice)
        assert advice["requests"] == 1
        assert ask(isolated, "/cache/advice", ADMIN).json()["requests"] == 2

    def test_nothing_of_another_salt_shows(self, engine: AsyncEngine) -> None:
        client = Client(engine)
        complete(client, TEXT, "", cache_salt="pepper")
        report = complete(client, TEXT[:-4] + "0815", "", cache_salt="salt")
        assert report["reason"] == "new"

    @pytest.mark.parametrize("isolate", [False, True])
    def test_advice_shows_no_text_behind_a_salt(self, engine: AsyncEngine, isolate: bool) -> None:
        """Others who share the key do not know the salt. The request's own report shows it."""
        client = Client(engine, api_key=("one",), admin_api_key=(ADMIN,), isolate_by_key=isolate)
        for key in ("one", ADMIN):
            complete(client, TEXT, key, cache_salt=f"of {key}")
            report = complete(client, TEXT[:-4] + "0815", key, cache_salt=f"of {key}")
            assert "4711" in report["divergence"]["context"]
            told = ask(client, "/cache/advice", key)
            assert ("4711" in told.text) == (key == ADMIN)

    def test_a_shared_cache_shows_no_text_of_other_keys(self, engine: AsyncEngine) -> None:
        client = Client(engine, api_key=("one", "two"), admin_api_key=(ADMIN,))
        complete(client, TEXT, "one")
        report = complete(client, TEXT[:-4] + "0815", "two")
        assert report["reason"] == "diverged"
        advice = ask(client, "/cache/advice", "two").text
        assert "4711" not in json.dumps(report) + advice
        shown = ask(client, "/cache/explain", ADMIN, prompt=TEXT[:-4] + "9999").json()
        assert "is [0815|999]" in shown["reports"][0]["divergence"]["context"]

    def test_a_shared_cache_can_not_be_searched_by_causes(self, engine: AsyncEngine) -> None:
        """An admin is told that the same text follows; another key would learn that it guessed."""
        client = Client(engine, api_key=("one", "two"), admin_api_key=(ADMIN,))
        debt = "who owes us 4711 euros since the spring of 2019"
        complete(client, f"Be kind. Customer: Robert of 12 Elm Street, {debt}", "one")

        def cause(key: str) -> str:
            told = ask(client, "/cache/explain", key, prompt=f"Be kind. Customer: ? {debt}")
            found: str = told.json()["reports"][0]["cause"]
            return found

        assert (cause("two"), cause(ADMIN)) == ("new_text", "changing_part")
        complete(client, f"Be kind. Customer: ? {debt}", "two")
        [advice] = ask(client, "/cache/advice", "two").json()["advice"]
        assert advice["cause"] == "new_text"

    def test_across_namespaces_is_for_admins(self, isolated: Client) -> None:
        complete(isolated, TEXT, "one")
        body = {"prompt": TEXT + "!", "across_namespaces": True}
        refused(ask(isolated, "/cache/explain", "two", **body), 403)
        told = ask(isolated, "/cache/explain", ADMIN, **body).json()
        [[held]] = told["longer_elsewhere"]
        assert 0 < held["tokens"] <= len(TEXT)
        refused(Client(isolated.engine).post("/cache/explain", **body), 403)


def test_without_keys_advice_is_of_all(engine: AsyncEngine) -> None:
    client = Client(engine)
    complete(client, TEXT, "any")
    assert ask(client, "/cache/advice", "").json()["requests"] == 1


def test_markup_and_control_characters_are_text(engine: AsyncEngine) -> None:
    client = Client(engine)
    client.complete("Look: \u202eevil\x1b[31m <script>a</script>", max_tokens=1)
    other = "Look: \u202elive\x1b[31m <script>b</script>"
    text = client.complete(other, max_tokens=1, cache_report=True).json()["cache_report"]["text"]
    assert "\\u202e" in text
    assert not any(letter in text for letter in "\u202e\x1b")


def test_advice_counts_what_the_metrics_do(engine: AsyncEngine) -> None:
    client = Client(engine)
    for _ in range(2):
        client.complete("The sky is blue", max_tokens=1)
    advice = client.get("/cache/advice").json()
    assert [size["scale"] for size in advice["capacity"]] == [0.5, 1.0, 2.0, 4.0]
    assert advice["capacity"][1]["hit_rate"] == advice["hit_rate"] == engine.stats().hit_rate
    assert 'expected_cached_tokens_total{model_name="test-model",pool_scale="2"}' in (
        client.get("/metrics").text
    )


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_a_replica_that_goes_on_with_an_answer_is_the_one_that_is_named(path, engine, monkeypatch):
    stream, names = engine.stream_all, iter(("the one that died", "the other"))

    async def resumed(requests):
        async for output in stream(requests):
            if output.miss is not None:
                kept = output.miss
            name = next(names) if output.miss is not None or output.finished else None
            yield output if name is None else replace(output, miss=replace(kept, replica=name))

    monkeypatch.setattr(engine, "stream_all", resumed)
    asked = {"prompt": "x", "max_tokens": 30}
    if path == "/generate":
        asked = {"text": "x", "sampling_params": {"max_new_tokens": 30}}
    answer = Client(engine).post(path, **asked, cache_report=True).json()
    assert answer.get("meta_info", answer)["cache_report"]["replica"] == "the other"
