"""Models, health, model info, the cache's flush, metrics."""

from __future__ import annotations

import asyncio
import re

from radixlm.core.misses import MissReason
from tests.server_support import Client, fake_engine


def test_the_model_is_listed_and_found(fake):
    listed = fake.get("/v1/models").json()
    assert listed["object"] == "list"
    [card] = listed["data"]
    assert card["id"] == "test-model"
    assert card["max_model_len"] == 2000
    assert fake.get("/v1/models/test-model").json() == card


def test_names_may_hold_slashes():
    engine, _ = fake_engine()
    client = Client(engine, "org/model")
    assert client.get("/v1/models/org/model").json()["id"] == "org/model"
    assert client.complete(model="org/model", max_tokens=1).status_code == 200
    asyncio.run(engine.close())


def test_health_and_info(fake):
    assert fake.get("/health").json() == {"status": "ok"}
    info = fake.get("/get_model_info").json()
    assert info["served_model_name"] == "test-model"
    assert info["context_length"] == 2000
    assert info["kv_tokens"] == 4000


def test_flushing_empties_the_cache(fake):
    prompt = list(range(1, 50))
    fake.complete(prompt, max_tokens=1)
    for method in ("POST", "GET"):
        assert fake.request(method, "/flush_cache").status_code == 200
        usage = fake.complete(prompt, max_tokens=1).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_metrics_count():
    engine, _ = fake_engine()
    client = Client(engine)
    for _ in range(2):
        client.complete([7] * 40, max_tokens=5)
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    values = {
        name: float(value)
        for name, value in re.findall(
            r'^([\w:]+)\{model_name="test-model"\} (.+)$', answer.text, re.M
        )
    }
    endings = dict(re.findall(r'endings_total\{.*reason="(\w+)"\} (.+)$', answer.text, re.M))
    asyncio.run(engine.close())
    assert endings.keys() == set(MissReason)
    assert {name for name, count in endings.items() if float(count)} == {"new", "last_token"}
    assert 'radixlm:reuse_age_bucket{le="+Inf",model_name="test-model"} 1.0' in answer.text
    assert values["radixlm:match_depth_count"] == values["radixlm:match_depth_sum"] == 1
    assert values["radixlm:hits_at_eviction_count"] == 0
    assert values["radixlm:num_tree_nodes"] == engine.stats().tree_nodes
    assert values["radixlm:num_tree_leaves"] == engine.stats().tree_leaves > 0
    assert values["radixlm:num_picture_failures_total"] == 0
    assert values["radixlm:num_running_reqs"] == 0
    assert values["radixlm:num_queue_reqs"] == 0
    assert values["radixlm:prompt_tokens_total"] == 80
    assert values["radixlm:cached_tokens_total"] == 39
    assert values["radixlm:generation_tokens_total"] == 10
    assert values["radixlm:num_requests_total"] == 2
    assert values["radixlm:cache_hit_rate"] == 39 / 80
    assert values["radixlm:max_total_num_tokens"] == 4000
    assert values["radixlm:num_leaks_total"] == 0
    kept = values["radixlm:num_evictable_tokens"]
    assert kept > 0
    assert values["radixlm:num_free_tokens"] + kept == 4000
    assert values["radixlm:time_to_first_token_seconds_count"] == 2
    assert values["radixlm:e2e_request_latency_seconds_count"] == 2


def test_two_servers_in_a_process_do_not_share_metrics():
    engines = [fake_engine()[0] for _ in range(2)]
    first, second = map(Client, engines)
    first.complete(max_tokens=1)
    assert 'latency_seconds_count{model_name="test-model"} 0.0' in second.get("/metrics").text
    for engine in engines:
        asyncio.run(engine.close())
