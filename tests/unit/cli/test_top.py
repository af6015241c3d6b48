"""`radixlm top`: what it knows after a stream, what it shows, and over a real server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from radixlm.cli_top import command
from radixlm.cli_top_feed import Cache, Feed, WatchError
from radixlm.cli_top_view import branches, picture
from tests.server_support import fake_engine, live

TOTALS = {
    "capacity": 4000,
    "free": 3000,
    "private": 0,
    "locked": 100,
    "evictable": 900,
    "pinned": 0,
    "ghosts": 7,
    "nodes": 4,
    "running": 1,
    "waiting": 2,
}
ADVICE = {
    "advice": [{"text": "412 requests diverge at message 0, token 18: a date changes."}],
    "capacity": [{"scale": 2.0, "tokens": 8000, "hit_rate": 0.5}],
}


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


def shown(cache: Cache, advice: Any = None, height: int = 40) -> str:
    console = Console(width=140, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(cache, "http://x", advice, height))
    return captured.get()


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


def test_before_the_first_word_it_says_so():
    assert "no word yet" in shown(Cache())


def test_it_watches_a_real_server():
    engine, _ = fake_engine()
    with live(engine, api_key=("sk-top",)) as url:
        done = CliRunner().invoke(command, [url, "--once", "--api-key", "sk-top"])
        assert done.exit_code == 0, done.output
        assert "of 4,000 tokens" in done.output
        with pytest.raises(WatchError, match="answers 401: an API key is needed"):
            next(Feed(url, None).events())
    asyncio.run(engine.close())


def test_a_server_that_is_not_there_is_told():
    done = CliRunner().invoke(command, ["http://127.0.0.1:1", "--once"])
    assert isinstance(done.exception, WatchError)
    assert "nothing answers at http://127.0.0.1:1 " in str(done.exception)


def test_an_address_is_one():
    done = CliRunner().invoke(command, ["nowhere"])
    assert "URL is like" in str(done.exception)
