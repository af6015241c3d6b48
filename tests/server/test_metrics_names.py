"""/metrics under other servers' names, without a key, and what else operators watch."""

from __future__ import annotations

import re

import pytest

from radixlm.engine.engine_stats import EngineStats
from radixlm.server.insight.metrics import VLLM, Metrics, RequestTimes
from tests.server_support import NAME, Client

# What SGLang's own dashboard asks for.
DASHBOARD = (
    "num_running_reqs",
    "num_queue_reqs",
    "token_usage",
    "cache_hit_rate",
    "gen_throughput",
    "time_to_first_token_seconds_bucket",
    "queue_time_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
)


class Moment:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def families(text: str) -> set[str]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.partition("{")[0] for line in lines}


@pytest.mark.parametrize("names", ["radixlm", "sglang", "both"])
def test_names_of_metrics(engine, names):
    client = Client(engine, "radixlm:odd", metrics_names=names)
    client.complete(max_tokens=3)
    text = client.get("/metrics").text
    assert re.search(r":queue_time_seconds_count{[^}]*} 1.0", text)
    wanted = ("radixlm", "sglang") if names == "both" else (names,)
    found = families(text)
    assert {f"{prefix}:{name}" for prefix in wanted for name in DASHBOARD} <= found
    assert {name.partition(":")[0] for name in found} == set(wanted)
    assert 'model_name="radixlm:odd"' in text


def test_vllm_s_names_stand_beside_what_they_mean(engine):
    client = Client(engine, metrics_names="vllm")
    for _ in range(2):
        client.complete(prompt="a b c d", max_tokens=3)
    text = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for ours, theirs in VLLM.items():
        for name in theirs:
            parts = [part for part in ("", "_total", "_sum", "_count") if of(ours + part) in values]
            assert parts
            for part in parts:
                assert values[of(name + part, "vllm")] == values[of(ours + part)]
                assert f"# HELP vllm:{name}" in text
    assert float(values[of("prefix_cache_hits_total", "vllm")]) > 0
    told = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(set(told)) == len(told)


def of(name: str, prefix: str = "radixlm") -> str:
    return f'{prefix}:{name}{{model_name="{NAME}"}}'


def test_metrics_may_be_open_beside_a_key(engine):
    for flags, status in (({}, 401), ({"open_metrics": True}, 200)):
        client = Client(engine, api_key=("one",), **flags)
        assert client.get("/metrics").status_code == status
        assert client.get("/v1/models").status_code == 401
    under = Client(engine, api_key=("one",), open_metrics=True)
    assert under.get("/metrics/../v1/models").status_code == 401


def test_times_of_a_request():
    clock, stats = Moment(), EngineStats()
    metrics = Metrics(lambda: stats, "m", clock)
    times = RequestTimes(metrics)
    for seconds, tokens in ((2.0, 1), (0.5, 0), (0.5, 2), (0.25, 1)):
        clock.time += seconds
        times.take(tokens)
    times.end()
    text = metrics.render().decode()
    for name, count, total in (
        ("time_to_first_token", 1, 2.0),
        ("inter_token_latency", 2, 0.75),
        ("e2e_request_latency", 1, 3.25),
    ):
        assert f'radixlm:{name}_seconds_count{{model_name="m"}} {float(count)}' in text
        assert f'radixlm:{name}_seconds_sum{{model_name="m"}} {total}' in text


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        ("00-4bf92f35-00f067aa0ba902b7-01 status=200", False),
    ],
)
def test_the_trace_is_kept_in_the_access_log(client, caplog, given, kept):
    caplog.set_level("INFO", logger="radixlm.access")
    client.request("GET", "/v1/models", headers={"traceparent": given})
    [line] = [
        record.getMessage() for record in caplog.records if "/v1/models" in record.getMessage()
    ]
    assert line.endswith(f"; trace {given}") is kept
    assert (given in line) is kept


def test_host_memory_and_disk_have_sglang_s_names_where_it_has_them():
    stats = EngineStats(
        host_capacity=4_800,
        host_tokens=128,
        host_read=96,
        host_restored=80,
        host_written=160,
        host_cached_tokens=70,
        host_failed_reads=4,
        host_failed_writes=5,
        host_slow_reads=6,
        host_writing_off=1,
        disk_capacity=9_600,
        disk_tokens=288,
        disk_read=64,
        disk_restored=32,
        disk_written=320,
        disk_cached_tokens=30,
        disk_failed_reads=1,
        disk_failed_writes=2,
        disk_slow_reads=3,
        disk_writing_off=1,
    )
    text = Metrics(lambda: stats, NAME, Moment(), names="sglang").render().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    for name, value in (
        ("prefetched_tokens_total", 64),
        ("backuped_tokens_total", 320),
        ("max_total_num_disk_tokens", 9_600),
        ("num_disk_tokens", 288),
        ("restored_tokens_total", 32),
        ("disk_cached_tokens_total", 30),
        ("num_failed_disk_reads_total", 1),
        ("num_failed_disk_writes_total", 2),
        ("num_slow_disk_reads_total", 3),
        ("disk_writing_off", 1),
        ("hicache_host_total_tokens", 4_800),
        ("hicache_host_used_tokens", 128),
        ("load_back_tokens_total", 96),
        ("host_restored_tokens_total", 80),
        ("hicache_backup_tokens_total", 160),
        ("host_cached_tokens_total", 70),
        ("num_failed_host_reads_total", 4),
        ("num_failed_host_writes_total", 5),
        ("num_slow_host_reads_total", 6),
        ("host_writing_off", 1),
    ):
        assert float(values[of(name, "sglang")]) == value
