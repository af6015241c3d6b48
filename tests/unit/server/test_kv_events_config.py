"""--kv-events-config: what vLLM and SGLang take is taken, what is wrong is told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import KVEventsConfig, ServerConfig


def config(**fields: Any) -> KVEventsConfig:
    return KVEventsConfig.from_json(json.dumps(fields))


def test_what_vllm_takes():
    taken = config(
        enable_kv_cache_events=True, publisher="zmq", endpoint="tcp://*:5557", topic="kv-events",
        replay_endpoint="tcp://*:5558", buffer_steps=10_000, hwm=100_000, max_queue_size=100_000,
    )  # fmt: skip
    assert taken.enabled
    assert taken.binds
    assert config(enable_kv_cache_events=True).enabled
    assert not config(enable_kv_cache_events=False, publisher="zmq").enabled


def test_what_sglang_takes():
    assert config(publisher="zmq", topic="kv-events").enabled
    assert not config(publisher="null").enabled
    assert config(publisher="zmq", endpoint="tcp://127.0.0.1:5557", bind=True).binds


@pytest.mark.parametrize(
    ("endpoint", "binds"),
    [
        ("tcp://*:1", True),
        ("tcp://0.0.0.0:1", True),
        ("tcp://[::]:1", True),
        ("ipc:///run/kv", True),
        ("tcp://router:1", False),
        ("tcp://[::1]:1", False),
    ],
)
def test_who_comes_to_whom(endpoint, binds):
    assert config(publisher="zmq", endpoint=endpoint).binds is binds


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"endpoint": "5557"}, "endpoint is like tcp://*:5557 or ipc://PATH"),
        ({"endpoint": "tcp://*"}, "endpoint is like"),
        ({"endpoint": "inproc://kv"}, "endpoint is like"),
        ({"endpoint": "tcp://*:65536"}, "endpoint is like"),
        ({"replay_endpoint": 5558}, "replay_endpoint is like"),
        ({"publisher": "kafka"}, "publisher is one of ('null', 'zmq'), got 'kafka'"),
        ({"hwm": 0}, "hwm is an integer from 1 to 1000000000, got 0"),
        ({"hwm": 2**31}, "hwm is an integer from 1 to 1000000000, got 2147483648"),
        ({"buffer_steps": True}, "buffer_steps is an integer from 1 to 1000000000, got True"),
        ({"hwm": None}, "hwm is an integer from 1 to 1000000000, got None"),
        ({"block_size": 1.5}, "block_size is an integer"),
        ({"topic": 1}, "topic is printable text, got 1"),
        ({"topic": "\ud800"}, "topic is printable text"),
        ({"endpoint": "ipc:///\ud800"}, "endpoint is like"),
        ({"bind": "no"}, "bind is true or false, got 'no'"),
        ({"end_point": "x"}, "has no 'end_point'; known are enable_kv_cache_events, publisher"),
    ],
)
def test_what_is_wrong_is_told(fields, told):
    with pytest.raises(ConfigError) as error:
        config(**{"publisher": "zmq", **fields})
    assert told in str(error.value)
    assert str(error.value).startswith("--kv-events-config")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "is a JSON object, got '[]'"),
        ('{"topic": "x"}', 'turns nothing on: give "publisher": "zmq"'),
    ],
)
def test_the_flag_is_checked_with_the_others(text, told):
    with pytest.raises(ConfigError) as error:
        ServerConfig(kv_events_config=text)
    assert told in str(error.value)


def test_off_is_off():
    assert ServerConfig().kv_events is None
    assert ServerConfig(kv_events_config='{"publisher": "null"}').kv_events is None


def test_the_flag_is_read_once():
    server = ServerConfig(kv_events_config='{"publisher": "zmq"}')
    assert server.kv_events is server.kv_events == config(publisher="zmq")


def test_a_block_is_no_less_than_a_page():
    on = config(publisher="zmq")
    assert (on.block_size_for(1), on.block_size_for(64)) == (16, 64)
    assert config(publisher="zmq", block_size=8).block_size_for(64) == 8


def test_what_routers_are_told():
    on = config(publisher="zmq", topic="t", replay_endpoint="tcp://*:5558")
    assert on.described(1) == {
        "publisher": "zmq",
        "endpoint_host": "*",
        "endpoint_port_base": 5557,
        "topic": "t",
        "block_size": 16,
        "dp_size": 1,
        "replay_endpoint_port_base": 5558,
    }
    # RadixView follows none but a wildcard: on any other host SGLang's server would connect.
    own = config(publisher="zmq", endpoint="tcp://127.0.0.1:5557", bind=True).described(1)
    elsewhere = config(publisher="zmq", endpoint="tcp://127.0.0.1:5557").described(1)
    assert [told and told["endpoint_host"] for told in (own, elsewhere)] == ["*", "127.0.0.1"]
    assert config(publisher="zmq", endpoint="ipc://x").described(1) is None
    assert config(publisher="null").described(1) is None
