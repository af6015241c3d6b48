"""Replicas on Ray Serve, as `radixlm deploy` starts them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from radixlm.assembly import Engine
from radixlm.cli.top_command import command as top
from radixlm.core.sampling import SamplingParams
from radixlm.testing.deployed import REPLICA, ROUTER, Deployed, serving, until
from scripts.browser import NoBrowserError, chromium, opened
from tests.batch_parts import check_homes, lines_of
from tests.otlp_collector import Collector, attributes

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
pytestmark = pytest.mark.slow

STORY = "Once upon a time there was a little girl who lived in a village near the forest. She"
TALE = (
    STORY
    + " went"
    + "".join(f" to house {n} and saw a cat, a dog and {n} birds;" for n in range(20))
)
BLOCK = 64
START_SECONDS = 180
COMPUTED = "radixlm:computed_tokens_total"


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def two(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    flags = ["--kv-tokens", "3000", "--otlp-endpoint", collector.url]
    flags += ["--disk-cache", str(tmp_path_factory.mktemp("disk")), "--disk-cache-gb", "0.1"]
    flags += ["--disk-write-policy", "all", "--disk-block-tokens", str(BLOCK)]
    with serving("deploy", "--replicas", "2", *flags) as made:
        yield made


@pytest.fixture
def browser() -> Iterator[Any]:
    try:
        with chromium() as found:
            yield found
    except NoBrowserError as error:
        pytest.skip(str(error))


def test_replicas_serve_as_one_server(two: Deployed):
    assert two.client.get("/health").status_code == 200
    with Engine(kv_tokens=3000) as engine:
        [alone] = engine.generate(STORY, SamplingParams(max_tokens=12, temperature=0))
    first = two.complete(STORY).json()
    assert first["choices"][0]["text"] == alone.text
    home = first["cache_report"]["replica"]
    assert home in two.replicas()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert [os.getpriority(os.PRIO_PROCESS, pid) <= own for pid in two.pids(REPLICA)] == [True] * 2

    again = two.complete(STORY + " went", stream=True).text
    report = json.loads(again.split("\n\n")[-3].removeprefix("data: "))["cache_report"]
    assert report["replica"] == home
    assert report["cached_tokens"]["device"] > 0
    assert "no other more" in report["routed_because"]

    texts = [choice["text"] for choice in two.complete([STORY, "A"], n=2).json()["choices"]]
    assert texts[:2] == [alone.text] * 2
    assert texts[2] == texts[3]

    offers = two.client.post("/router/explain", json={"prompt": STORY}).json()["offers"]
    assert offers[0]["replica"] == home
    assert offers[0]["cached_tokens"] > offers[1]["cached_tokens"] == 0

    other = ({*two.replicas()} - {home}).pop()
    trees = [two.client.get("/cache/tree", params={"replica": name}) for name in (home, other)]
    assert STORY[:20] in trees[0].text
    assert STORY[:20] not in trees[1].text
    assert two.client.get("/cache/tree", params={"replica": "x"}).status_code == 400
    held = offers[0]["cached_tokens"]
    assert until(lambda: prefix(two).get("cached_tokens", {}).get(home, 0) >= held, 30) is not None
    assert list(prefix(two)["cached_tokens"]) == [home]
    assert two.client.get("/router/prefixes", params={"limit": 0}).status_code == 400
    named = (f'replica_cached_tokens{{replica="{home}"}}', 'router_decisions_total{replica="')
    assert until(lambda: all(name in metrics(two) for name in named), 30) is not None

    too_long = two.complete("x " * 100_000)
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    explained = two.client.post("/cache/explain", json={"prompt": STORY}).json()["reports"][0]
    assert explained["cached_tokens"]["device"] > 0
    assert two.client.post("/flush_cache").status_code == 200
    assert two.complete(STORY).json()["cache_report"]["cached_tokens"]["device"] == 0


def prefix(two: Deployed) -> dict[str, Any]:
    """The branch that begins as the story does."""
    found = two.client.get("/router/prefixes", params={"limit": 200}).json()["prefixes"]
    own = (e for e in found if e["above"] is None and e["text"][:20] == STORY[:20])
    return next(own, {})


def test_a_trace_goes_from_the_client_to_the_replica(two: Deployed, collector: Collector):
    trace, above = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{above}-01"}
    body = {"prompt": STORY, "max_tokens": 3, "cache_report": True}
    answer = two.client.post("/v1/completions", json=body, headers=headers).json()

    def own(name: str) -> Span | None:
        spans = collector.spans.get(name, [])
        return next((each for each in spans if each.trace_id.hex() == trace), None)

    names = ("POST /v1/completions", "llm_request", "engine", "decode")
    assert until(lambda: all(own(name) is not None for name in names), 30) is not None
    server, request, engine, decode = (own(name) for name in names)
    assert server.parent_span_id.hex() == above
    assert request.parent_span_id == server.span_id
    assert engine.parent_span_id == request.span_id
    assert decode.parent_span_id == engine.span_id
    replica = answer["cache_report"]["replica"]
    assert attributes(request)["radixlm.replica"] == replica
    assert replica in [each.get("service.instance.id") for each in collector.resources]


def test_top_shows_each_replica_and_why_it_was_chosen(two: Deployed):
    home = two.complete(STORY).json()["cache_report"]["replica"]
    for _ in range(3):  # most often: what is named first is not cut off
        assert until(lambda: all_ended(two), 30) is not None, "who is busy may not be chosen"
        assert two.complete(STORY).json()["cache_report"]["replica"] == home
    names = sorted(two.replicas())
    other = next(name for name in names if name != home)

    def seen(name: str) -> str:
        url = str(two.client.base_url)
        found = CliRunner().invoke(top, [url, "--once", "--replica", name])
        assert found.exit_code == 0, found.output
        return found.output

    def rows() -> dict[str, list[str]]:
        lines = [line.split() for line in seen(home).splitlines()]
        return {line[0]: line[1:] for line in lines if line and line[0] in names}

    def told() -> bool:
        return int(rows()[home][0]) > int(rows()[other][0]) and "prefix" in rows()[home]

    assert until(told, 30) is not None
    assert sorted(rows()) == names
    assert STORY[:20] in seen(home).partition("Tree")[2]
    assert STORY[:20] not in seen(other).partition("Tree")[2]
    assert re.search(f"{STORY[:20]}.* {home} ", seen(other).partition("Tree")[0])


def all_ended(two: Deployed) -> bool:
    """Whether the router knows of no request that has not ended."""
    return not any(each["requests"] for each in two.replicas().values())


def test_the_page_shows_replicas_and_which_prefix_lives_where(two: Deployed, browser: Any):
    home = two.complete(STORY).json()["cache_report"]["replica"]
    names = sorted(two.replicas())
    complaints: list[str] = []
    with closing(opened(browser, str(two.client.base_url))) as page:
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.wait_for_selector("#prefix-rows tr")
        rows = page.locator("#replica-rows th button")
        assert rows.all_text_contents() == names
        own = page.locator(f"#prefix-rows tr:has(button[title^='{STORY[:20]}'])").first
        assert f"{home}: " in own.locator(".bars").get_attribute("aria-label")
        assert own.locator(".bars i").count() == len(names)
        rows.nth(1 - names.index(home)).click()
        own.locator("button").click()
        page.wait_for_selector(f"#replica-rows button[aria-pressed=true]:text-is('{home}')")
    assert complaints == []


def test_an_answer_that_is_aborted_ends_at_once(two: Deployed):
    params = {"max_new_tokens": 2_000, "ignore_eos": True, "temperature": 0}
    body = {"text": STORY, "rid": "long", "sampling_params": params}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(two.client.post, "/generate", json=body)

        def ended() -> bool:
            assert two.client.post("/abort_request", json={"rid": "long"}).status_code == 200
            return asked.done()

        assert until(ended, 30) is not None
        answer = asked.result().json()
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert answer["meta_info"]["completion_tokens"] < 2_000
    assert until(lambda: all_ended(two), 30) is not None


def test_a_prefix_that_another_replica_wrote_is_read(two: Deployed):
    first = two.complete(TALE).json()["cache_report"]
    wanted = first["prompt_tokens"] - first["prompt_tokens"] % BLOCK
    assert wanted >= 2 * BLOCK
    assert first["cached_tokens"]["disk"] == 0

    def known(name: str) -> bool:
        tree = two.client.get("/cache/tree", params={"replica": name}).json()
        return tree["totals"]["disk"] >= wanted

    def forgotten() -> bool:
        """By the router, which hears of it a little later."""
        offers = two.client.post("/router/explain", json={"prompt": TALE}).json()["offers"]
        return not any(each["cached_tokens"] for each in offers)

    assert until(lambda: all(known(name) for name in two.replicas()), 60) is not None
    for _ in range(10):  # it goes where less was computed lately, which changes
        assert two.client.post("/flush_cache").status_code == 200
        assert until(forgotten, 30) is not None
        report = two.complete(TALE).json()["cache_report"]
        if report["replica"] != first["replica"]:
            break
    assert report["replica"] != first["replica"]
    assert report["cached_tokens"]["device"] == 0
    assert report["cached_tokens"]["disk"] >= wanted - BLOCK


def metrics(of: Deployed) -> str:
    return of.client.get("/metrics").text


def computed_tokens(of: Deployed) -> float:
    [line] = [line for line in metrics(of).splitlines() if line.startswith(COMPUTED)]
    return float(line.split()[-1])


def test_parts_of_a_batch_go_to_replicas_whole(two: Deployed):
    """Two prefixes, of which each replica computes one."""
    content = lines_of(TALE).encode()
    sent = two.client.post("/v1/files", files={"file": content}, data={"purpose": "batch"})
    asked = {"input_file_id": sent.json()["id"], "completion_window": "24h"}
    path = "/v1/batches"
    made = two.client.post(path, json=asked | {"endpoint": "/v1/completions"}).json()

    def now() -> dict[str, Any]:
        found: dict[str, Any] = two.client.get(f"{path}/{made['id']}").json()
        return found

    assert until(lambda: now()["status"] == "completed", 120) is not None
    text = two.client.get(f"/v1/files/{now()['output_file_id']}/content").text
    check_homes(text.splitlines())


def test_nothing_is_lost_when_processes_die(two: Deployed):
    before = set(two.replicas())
    [expected] = [each["text"] for each in two.complete(STORY, max_tokens=60).json()["choices"]]
    with ThreadPoolExecutor(8) as pool:
        answers = []
        for victims in (
            two.pids(ROUTER),
            two.pids(REPLICA)[:1],
        ):
            assert len(victims) == 1
            counted = computed_tokens(two)
            answers += [pool.submit(two.complete, STORY, max_tokens=60) for _ in range(16)]
            os.kill(victims[0], signal.SIGKILL)
            answers += [pool.submit(two.complete, STORY, max_tokens=60) for _ in range(16)]
            replies = [answer.result() for answer in answers]
            assert computed_tokens(two) >= counted
    for reply in replies:
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["text"] == expected
    assert until(lambda: len(before ^ set(two.replicas())) == 2, START_SECONDS) is not None
    assert all(each["requests"] == 0 for each in two.replicas().values())
    again = two.complete(STORY).json()["cache_report"]
    assert again["cached_tokens"]["device"] > 0 or again["replica"] not in before
    facts = two.client.get("/server_info").json()["internal_states"][0]
    assert facts["endings"]["last_token"] > 0
