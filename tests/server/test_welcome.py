"""What is printed when the server is ready, and that nothing else is."""

from __future__ import annotations

import asyncio
import logging
from contextlib import closing
from dataclasses import replace

import pytest

from radixlm.engine import Limits
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.http.listen import bind
from radixlm.server.serve import pool_warning, touch, welcome
from tests.server_support import Client, fake_engine, running


@pytest.fixture(scope="module")
def engine():
    engine, _ = fake_engine()
    yield engine
    asyncio.run(engine.close())


def told(info, *, chats: bool = True, longest: int = 2_000, **flags) -> str:
    limits = Limits(2_000, longest, info.vocab_size)
    with closing(bind("127.0.0.1", 0)) as listener:
        text = welcome("demo", info, limits, listener, ServerConfig(**flags), chats=chats)
        return text.replace(str(listener.getsockname()[1]), "PORT")


def test_the_address_works_wherever_it_listens(engine):
    every = told(engine.info, host="0.0.0.0")  # noqa: S104
    assert every.startswith("RadixLM serves demo on http://127.0.0.1:PORT\n")
    assert "http://[::1]:PORT/" in told(engine.info, host="::1")
    tls = told(engine.info, ssl_certfile="c", api_key=("secret",))
    assert "curl -k -H 'Authorization: Bearer KEY' https://127.0.0.1:PORT/v1" in tls
    assert "secret" not in tls
    assert "curl --unix-socket /run/x http://localhost/v1" in told(engine.info, uds="/run/x")


def test_it_says_what_is_served_and_how(engine):
    info = replace(engine.info, model_type="llama", kv_tokens=12_345, kv_bytes=3 * 2**29, threads=2)
    assert told(info).splitlines()[1:5] == [
        "  model    llama, float32 on cpu, 2 threads",
        "  context  2,000 tokens",
        "  KV pool  12,345 tokens, 1.5 GiB",
        "  page     http://127.0.0.1:PORT/ui",
    ]
    stored = told(replace(info, kv_tokens=100, kv_bytes=2**20, disk_cache="/kv", disk_tokens=5_000))
    assert stored.splitlines()[4] == "  on disk  5,000 tokens, 50.0 MiB, in /kv"
    hosted = told(replace(info, kv_tokens=100, kv_bytes=2**20, host_tokens=200))
    assert hosted.splitlines()[4] == "  on host  200 tokens, 2.0 MiB"
    hybrid = told(replace(info, mamba_slots=1_024, mamba_bytes=2**30))
    assert hybrid.splitlines()[4] == "  states   1,024, 1.0 GiB"
    small = told(info, longest=999)
    assert "  KV pool  12,345 tokens, 1.5 GiB; prompt and answer are at most 999 together" in small
    assert "on cpu, 1 thread\n" in told(replace(info, threads=1))
    assert "2 threads, deterministic\n" in told(replace(info, deterministic=True))


def test_a_model_without_chat_template_is_offered_completions(engine):
    assert "/v1/chat/completions -d" in told(engine.info)
    bare = told(engine.info, chats=False)
    assert '/v1/completions -d \'{"prompt":' in bare
    assert "chat" not in bare


def test_a_pool_that_is_of_no_use_is_warned_of(engine):
    assert pool_warning(engine.limits) is None
    assert pool_warning(Limits(64, 100, 1)) is None
    warning = pool_warning(Limits(2_000, 100, 1))
    assert warning is not None
    assert "only 100 tokens" in warning
    assert "--kv-tokens" in warning


@pytest.mark.parametrize("chats", [False, True])
@pytest.mark.parametrize("flags", [{}, {"api_key": ("k",), "root_path": "/llm"}])
def test_warming_up_is_seen_nowhere(engine, caplog, flags, chats):
    seen = []

    client = Client(engine, **flags)

    async def watched(scope, receive, send):
        async def look(message):
            seen.append(message)
            await send(message)

        await client.app(scope, receive, look)

    before = client.engine.stats()
    with caplog.at_level(logging.INFO, "radixlm"):
        caplog.clear()
        asyncio.run(touch(watched, ServerConfig(**flags), chats=chats))
    assert seen[0]["status"] == 200
    # But an exporter of another test, which may still look for its collector.
    assert not [each for each in caplog.records if not each.name.startswith("opentelemetry.")]
    assert client.engine.stats() == before


def test_the_server_says_when_it_is_ready(monkeypatch, capsys, caplog):
    with caplog.at_level(logging.INFO, "radixlm"), running(monkeypatch) as port:
        out = capsys.readouterr().out
        assert out.startswith(f"RadixLM serves test-model on http://127.0.0.1:{port}\n")
        assert "try:\n  curl " in out
    assert not [line for line in caplog.messages if "/tokenize" in line]
