"""Replicas on Ray Serve, as `radixlm deploy` starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.build import Engine
from radixlm.core.sampling import SamplingParams

pytest.importorskip("ray", reason="Ray has no wheel for this platform")
pytestmark = pytest.mark.slow

STORY = "Once upon a time there was a little girl who lived in a village near the forest. She"
START_SECONDS = 180


class Deployment:
    """A running `radixlm deploy`, and a client of it."""

    def __init__(self, url: str, process: subprocess.Popen[str]) -> None:
        self.client = httpx.Client(base_url=url, timeout=120)
        self._process = process

    def complete(self, prompt: str | list[str], **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "cache_report": True}
        return self.client.post("/v1/completions", json=body | fields)

    def replicas(self) -> dict[str, Any]:
        found = self.client.get("/router/replicas").json()["replicas"]
        return {each["replica"]: each for each in found}

    def pids(self, name: str) -> list[int]:
        """Its processes whose titles begin like this."""
        return [pid for pid, title in self._processes() if title.startswith(name)]

    def _processes(self) -> Iterator[tuple[int, str]]:
        parents, titles = {}, {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(folder.name)
                status = (folder / "status").read_text()
                parents[pid] = int(re.findall(r"PPid:\s+(\d+)", status)[0])
                titles[pid] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid, title in titles.items():
            at = pid
            while at in parents and at != self._process.pid:
                at = parents[at]
            if at == self._process.pid:
                yield pid, title


@contextmanager
def deployed(*flags: str) -> Iterator[Deployment]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-c", "from radixlm.cli.start import main; main()", "deploy"]
    process = subprocess.Popen(  # noqa: S603 - this repository's own command
        [*command, "--port", port, *flags], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()  # when it is ready, or has failed
        assert "RadixLM serves" in line, line
        made = Deployment(f"http://127.0.0.1:{port}", process)
        with made.client:
            yield made
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=60)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def two() -> Iterator[Deployment]:
    with deployed("--replicas", "2", "--kv-tokens", "3000") as made:
        yield made


def until(holds: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(httpx.HTTPError, KeyError):
            if holds():
                return True
        time.sleep(0.2)
    return False


def test_replicas_serve_as_one_server(two: Deployment):
    assert two.client.get("/health").status_code == 200
    with Engine(kv_tokens=3000) as engine:
        [alone] = engine.generate(STORY, SamplingParams(max_tokens=12, temperature=0))
    first = two.complete(STORY).json()
    assert first["choices"][0]["text"] == alone.text
    home = first["cache_report"]["replica"]
    assert home in two.replicas()

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
    assert until(lambda: f'radixlm:replica_cached_tokens{{replica="{home}"}}' in metrics(two))
    assert 'router_decisions_total{replica="' in metrics(two)

    too_long = two.complete("x", max_tokens=100_000)
    assert too_long.status_code == 400
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    explained = two.client.post("/cache/explain", json={"prompt": STORY}).json()["reports"][0]
    assert explained["cached_tokens"]["device"] > 0
    assert two.client.post("/flush_cache").status_code == 200
    assert two.complete(STORY).json()["cache_report"]["cached_tokens"]["device"] == 0


def metrics(of: Deployment) -> str:
    return of.client.get("/metrics").text


def test_nothing_is_lost_when_processes_die(two: Deployment):
    before = set(two.replicas())
    [expected] = [each["text"] for each in two.complete(STORY).json()["choices"]]
    with ThreadPoolExecutor(8) as pool:
        answers = []
        for victims in (
            two.pids("ray::FrontDesk"),
            two.pids("ray::ServeReplica:radixlm:replica")[:1],
        ):
            assert len(victims) == 1
            answers += [pool.submit(two.complete, STORY, max_tokens=12) for _ in range(16)]
            os.kill(victims[0], signal.SIGKILL)
            answers += [pool.submit(two.complete, STORY, max_tokens=12) for _ in range(16)]
            replies = [answer.result() for answer in answers]
    for reply in replies:
        body = reply.json()
        if reply.status_code == 200:
            assert body["choices"][0]["text"] == expected
        else:  # it had begun to answer
            assert "is gone" in body["error"]["message"]
    assert sum(reply.status_code == 200 for reply in replies) >= len(replies) - 16
    assert until(lambda: len(before ^ set(live(two))) == 2, START_SECONDS)
    assert all(each["requests"] == 0 for each in live(two).values())
    again = two.complete(STORY).json()["cache_report"]
    assert again["cached_tokens"]["device"] > 0 or again["replica"] not in before


def live(of: Deployment) -> dict[str, Any]:
    return {name: each for name, each in of.replicas().items() if each["silent_seconds"] < 3}
