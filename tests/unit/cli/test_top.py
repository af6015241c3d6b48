"""`radixlm top`: what it knows after a stream, what it shows, and over a real server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

import httpx
import pytest
from click import unstyle
from click.testing import CliRunner, Result
from rich.console import Console, RenderableType

from radixlm.cli import top_command as cli_top
from radixlm.cli import top_feed
from radixlm.cli.top_command import branches, command, picture
from radixlm.cli.top_feed import Cache, SilentError, WatchError
from radixlm.core.errors import ConfigError
from radixlm.server.pages import tree_routes
from tests.server_support import fake_engine, live

TOTALS = {
    "capacity": 4000,
    "free": 3000,
    "private": 0,
    "locked": 100,
    "evictable": 900,
    "pinned": 0,
    "host": 0,
    "host_capacity": 0,
    "disk": 0,
    "disk_capacity": 0,
    "ghosts": 7,
    "nodes": 4,
    "running": 1,
    "waiting": 2,
}
ADVICE = {
    "advice": [{"text": "412 requests diverge at message 0, token 18: a date changes."}],
    "capacity": [{"scale": 2.0, "tokens": 8000, "hit_rate": 0.5}],
}
_SHORT = {"sampling_params": {"max_new_tokens": 1}}


def node(name: int, parent: int | None, tokens: int, text: str = "", **fields: Any) -> dict:
    return {
        "id": name,
        "parent_id": parent,
        "tokens": tokens,
        "hits": 0,
        "lock_ref": 0,
        "hidden": 0,
        "hidden_tokens": 0,
        "state": "cached",
        "text": text,
        **fields,
    }


def seen() -> Cache:
    cache = Cache()
    nodes = [
        node(1, None, 0),
        node(2, 1, 300, "You are"),
        node(3, 2, 50, "Hi"),
        node(4, 2, 9, "Bye"),
    ]
    request = {"id": "r1", "prompt_tokens": 340, "cached_tokens": 300, "output_tokens": 4}
    cache.apply("snapshot", {"nodes": nodes, "requests": [request], "totals": TOTALS})
    return cache


def stats(**fields: Any) -> dict[str, Any]:
    zero = dict.fromkeys(("prompt_tokens", "cached_tokens", "evicted_tokens"), 0)
    return {**TOTALS, **zero, "generated_tokens_per_s": 21.0, **fields}


def text_of(drawn: RenderableType) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get()


def shown(cache: Cache, advice: Any = None, height: int | None = 40) -> str:
    cache.advice = advice
    return text_of(picture(cache, "http://x", height))


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_events_change_what_is_known():
    cache = seen()
    cache.apply("tree", {"removed": [3], "nodes": [node(5, 2, 8)], "totals": {**TOTALS, "free": 1}})
    assert cache.nodes.keys() == {1, 2, 4, 5}
    assert cache.totals["free"] == 1
    cache.apply("requests", {"events": [{"type": "finished", "id": "r1"}], "running": []})
    assert cache.requests == {}
    assert cache.hit_rate is None
    for _ in range(70):
        cache.apply("stats", stats(prompt_tokens=4, cached_tokens=3))
    assert cache.hit_rate == 0.75
    assert cache.sum("prompt_tokens") == 240  # a minute
    cache.apply("unheard-of", {})


def test_what_drafts_saved_is_told_by_source():
    cache = seen()
    assert "Steps saved" not in shown(cache)
    for right in (3, 5):
        tree = {"drafted_tokens": 8, "accepted_tokens": right}
        cache.apply(
            "stats", stats(drafts={"tree": tree} if right == 3 else {"tree": tree, "grammar": tree})
        )
    assert cache.drafts == {"tree": (16, 8), "grammar": (8, 5)}
    assert "tree 8 of 16, grammar 5 of 8" in shown(cache)
    assert "Steps saved" in shown(cache)


def test_statistics_before_the_tree_wait_for_it():
    cache = Cache()
    cache.apply("stats", stats())
    assert "waiting for the first word" in shown(cache)


def test_the_heaviest_subtrees_are_shown_with_what_is_above_them():
    nodes = {each["id"]: each for each in seen().nodes.values()}
    nodes[6] = node(6, 4, 80, hidden=5, hidden_tokens=1000)
    found = branches(nodes, 3)
    assert [(b.node["id"], b.depth, b.below, b.nodes) for b in found] == [
        (2, 0, 1439, 9),
        (4, 1, 1089, 7),
        (6, 2, 1080, 6),
    ]


def test_the_picture_tells_the_numbers():
    cache = seen()
    cache.apply("stats", stats(prompt_tokens=100, cached_tokens=84, evicted_tokens=12))
    text = shown(cache, ADVICE)
    for part in ("84%", "1,000 of 4,000", "1 running", "2 waiting", "12 evicted", "You are", "r1"):
        assert part in text
    assert "412 requests diverge" in text
    assert "2x 50%" in text


def test_a_disk_cache_has_a_column_and_a_number():
    cache = seen()
    assert "Disk" not in shown(cache)
    rows = [node(2, 1, 300, "You are", on_disk=256), node(3, 2, 50, state="disk", on_disk=32)]
    rows += [node(4, 2, 9, "Bye", on_disk=0)]
    totals = {**TOTALS, "disk": 288, "disk_capacity": 9600}
    cache.apply("tree", {"removed": [], "nodes": rows, "totals": totals})
    text = shown(cache)
    assert "3%" in text
    assert "288 of 9,600 tokens" in text
    columns = [line.split()[-7:] for line in text.splitlines() if line.startswith(" ▌You are")]
    assert columns == [["300", "256", "59", "3", "0", "0", "cached"]]
    assert "disk" in next(line for line in text.splitlines() if "node 3" in line)


def test_host_memory_has_a_column_beside_the_disk():
    cache = seen()
    rows = [node(2, 1, 300, "You are", on_host=128, on_disk=256), node(3, 2, 50, state="host")]
    rows += [node(4, 2, 9, "Bye")]
    for row in rows:
        row.setdefault("on_host", 0)
        row.setdefault("on_disk", 0)
    totals = {**TOTALS, "host": 128, "host_capacity": 512, "disk": 288, "disk_capacity": 9600}
    cache.apply("tree", {"removed": [], "nodes": rows, "totals": totals})
    text = shown(cache)
    assert "128 of 512 tokens" in text
    columns = [line.split()[-8:] for line in text.splitlines() if line.startswith(" ▌You are")]
    assert columns == [["300", "128", "256", "59", "3", "0", "0", "cached"]]


def test_each_replica_has_a_row_with_why_it_was_chosen():
    cache = seen()
    assert "Replicas" not in shown(cache)
    cache.replicas = [replica(f"abc{number}") for number in range(12)]
    cache.replicas[1] |= {"silent_seconds": 7.0, "is_healthy": False}
    rows = {line.split()[0]: line.split()[1:] for line in shown(cache).splitlines() if line}
    assert rows["Replicas:"][0] == "12"
    chosen = ["5:", "longest", "prefix", "3,", "spilled", "2"]
    assert rows["abc0"] == ["400", "10%", "7", "75%", "2", "1", "96", *chosen]
    assert rows["abc1"][-4:] == ["silent", "for", "7", "s"]
    assert "abc11" not in rows
    assert "abc11" in shown(cache, height=None)


def test_prefixes_say_which_replicas_have_them():
    cache = seen()
    assert "Prefixes" not in shown(cache)
    prompt = {"above": None, "tokens": 300, "below_tokens": 1340, "text": "You are\nkind"}
    prompt |= {"cached_tokens": {"abc0": 300, "abc1": 1340}, "coming": []}
    prompt |= {"cut": False}
    rest = {"above": 0, "tokens": 1040, "below_tokens": 1040, "text": "Ann", "coming": ["abc0"]}
    rest |= {"cut": True}
    rows = [prompt, rest | {"cached_tokens": {"abc1": 1040}}]
    cache.prefixes = {"nodes": 5000, "looked_at": 1000, "prefixes": rows}
    lines = shown(cache).splitlines()
    wanted = "Prefixes of all replicas: 1,000 of 5,000 nodes"
    at = next(at for at, line in enumerate(lines) if wanted in line)
    row, below = (line.split() for line in lines[at + 1 : at + 3])
    assert row == ["You", "are↵kind", "300", "1,040", "abc1", "1,340,", "abc0", "300"]
    assert below == ["│", "Ann…", "1,040", "0", "abc1", "1,040,", "abc0", "computes", "it"]


def replica(name: str) -> dict[str, Any]:
    return {
        "replica": name,
        "silent_seconds": 0.2,
        "is_healthy": True,
        "requests": 3,
        "queue_tokens": 96.4,
        "chosen": {"spilled": 2, "longest_prefix": 3},
        "cached_tokens": 400,
        "capacity_tokens": 4000,
        "nodes": 7,
        "hit_rate": 0.75,
        "running": 2,
        "waiting": 1,
    }


def test_nothing_of_a_prompt_reaches_the_terminal_as_a_command():
    cache = seen()
    cache.apply(
        "tree",
        {"removed": [], "nodes": [node(2, 1, 300, "\x1b[31mred\n[bold]x\u202e")], "totals": TOTALS},
    )
    text = shown(cache)
    assert "‹U+001B›[31mred↵[bold]x‹U+202E›" in text


def test_a_small_terminal_gets_fewer_rows():
    cache = Cache()
    nodes = [node(1, None, 0), *(node(n, 1, 10, f"row {n}") for n in range(2, 60))]
    cache.apply("snapshot", {"nodes": nodes, "requests": [], "totals": TOTALS})
    assert shown(cache, height=20).count("row ") < shown(cache, height=60).count("row ") < 58


def test_without_a_height_every_row_is_shown():
    cache = Cache()
    nodes = [node(1, None, 0), *(node(n, 1, 10, f"row {n}") for n in range(2, 60))]
    requests = [{**seen().requests["r1"], "id": f"request-{n}"} for n in range(20)]
    cache.apply("snapshot", {"nodes": nodes, "requests": requests, "totals": TOTALS})
    advice = {**ADVICE, "advice": [{"text": f"hint {n}"} for n in range(9)]}
    text = shown(cache, advice, height=None)
    counts = [text.count(each) for each in ("row ", "request-", "hint ")]
    assert counts == [58, 20, 9]


@pytest.mark.slow
def test_a_pipe_gets_every_row_and_a_terminal_what_fits(monkeypatch):
    monkeypatch.setattr(tree_routes, "SECONDS_BETWEEN_STATS", 0.01)
    engine, _ = fake_engine()
    with live(engine) as url:
        for first in range(40):
            httpx.post(f"{url}/generate", json={"input_ids": [first, 1], **_SHORT}, timeout=30)
        assert rows_of(asked(url, "--once").output) == 40
        monkeypatch.setattr(Console, "is_terminal", True)
        monkeypatch.setattr(Console, "height", 24)
        assert 3 <= rows_of(asked(url, "--once").output) < 24
    asyncio.run(engine.close())


def rows_of(output: str) -> int:
    """Of the tree: each ends with a state."""
    return sum(line.rstrip().endswith(" cached") for line in unstyle(output).splitlines())


def test_before_the_first_word_it_says_so():
    assert "waiting for the first word" in shown(Cache())


def test_why_nothing_is_heard_is_shown():
    cache = Cache()
    cache.lost = "no server \x1b[31m"
    assert "no server ‹U+001B›[31m" in shown(cache)
    cache = seen()
    cache.lost = "no server"
    text = shown(cache)
    assert "connection lost" in text
    assert "no server" in text
    cache.apply("stats", stats())
    assert "no server" not in shown(cache)


def test_it_watches_a_real_server(monkeypatch):
    monkeypatch.setattr(tree_routes, "SECONDS_BETWEEN_STATS", 0.01)
    engine, _ = fake_engine()
    with live(engine, api_key=("sk-top",), admin_api_key=("sk-all",)) as url:
        done = asked(f"{url}/v1/", "--once", "--api-key", "sk-all")
        assert done.exit_code == 0, done.output
        assert "of 4,000 tokens" in done.output
        for key, message in (
            ((), "answers 401: an API key is needed: .*; give the key as --api-key KEY"),
            (
                ("--api-key", "sk-other"),
                "answers 401: Incorrect API key .*; give the key as",
            ),
            (
                ("--api-key", "sk-top"),
                "answers 403: .* --admin-api-key; give that key as --api-key",
            ),
        ):
            with pytest.raises(WatchError, match=message):
                asked(url, *key)
        with pytest.raises(WatchError, match=r"answers 404: .+ is it the URL of a RadixLM server"):
            asked(f"{url}/ui", "--api-key", "sk-top")
    asyncio.run(engine.close())


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"", SilentError, r"no RadixLM server answers at http://127.0.0.1:\d+ \("),
        (b"SSH-2.0-OpenSSH\r\n\r\n", SilentError, r"answers at .* \(.*SSH-2.0-OpenSSH.*\); is"),
        (b"HTTP/1.1 503 No\r\n\r\nbusy", SilentError, "answers 503: No"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n", WatchError, "no RadixLM server"),
        (EVENTS, SilentError, "ended"),
        (EVENTS + b"event: hello\ndata: you\n\n", WatchError, "tells 'you': it is no RadixLM"),
        (EVENTS + b"data: [1]\n\n", WatchError, r"tells '\[1\]': it is no RadixLM"),
        (EVENTS + b"data: " + b"[" * 100_000 + b"\n\n", WatchError, "it is no RadixLM server"),
    ],
)
def test_what_is_no_radixlm_server(answer, error, message):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(WatchError, match=message) as caught:
            asked(f"http://127.0.0.1:{listener.getsockname()[1]}", "--once")
        thread.join()
    assert caught.type is error


def test_a_line_without_an_end_is_given_up(monkeypatch):
    monkeypatch.setattr(top_feed, "MOST_BYTES", 1000)
    test_what_is_no_radixlm_server(
        EVENTS + b"data: " + b"x" * 2000, WatchError, "more than 1,000 bytes"
    )


@pytest.mark.parametrize("flags", [["--once"], []])
def test_a_server_that_is_not_there_is_told(flags):
    """Without --once too, where there is no terminal: nobody could end it."""
    told = r"no RadixLM server answers at http://127.0.0.1:1 \(Connection refused\); is `radixlm"
    with pytest.raises(SilentError, match=told):
        asked("http://127.0.0.1:1", *flags)


def test_a_terminal_is_told_and_it_goes_on_trying(monkeypatch):
    seen: list[str] = []

    class Still:
        """A Live that keeps what it is shown, until Ctrl-C behind the third try."""

        def __init__(self, _picture, **_):
            monkeypatch.setattr(time, "sleep", self.wait)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, picture, **_):
            seen.append(text_of(picture))

        def wait(self, _):
            if len(seen) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setattr(cli_top, "Live", Still)
    assert asked("http://127.0.0.1:1/v1").exit_code == 0
    assert len(set(seen)) == 1
    assert "no RadixLM server answers at http://127.0.0.1:1 (Connection refused)" in seen[0]
    assert "Trying again; Ctrl-C leaves." in seen[0]


@pytest.mark.parametrize(
    "url",
    [
        "nowhere",
        "localhost:30000",
        "ftp://localhost",
        "http://",
        "http:///v1",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://a..b",
        "http://a b",
        "http://a\nb",
        "http://me:word@localhost",
        "http://localhost/?a=b",
        "http://localhost/é",
    ],
)
def test_an_address_is_one(url):
    with pytest.raises(ConfigError, match="URL is like http://"):
        asked(url)


def test_a_port_is_of_a_server_here():
    with pytest.raises(SilentError, match=r"answers at http://127\.0\.0\.1:1 "):
        asked("--port", "1", "--once")
    with pytest.raises(ConfigError, match="--port 1 beside URL 'http://a': give one of them"):
        asked("http://a", "--port", "1")


def test_a_key_is_one():
    with pytest.raises(ConfigError, match="--api-key holds characters"):
        asked("http://127.0.0.1:1", "--api-key", "sk\n")
