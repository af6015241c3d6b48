"""The server that `make clients` lets others use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from rich.progress import Progress

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.report import Report
from scripts.try_clients.server import KEY, Served, served
from tests.server_support import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("served"), "server", ("--kv-tokens", "4096")) as server:
        yield server


@pytest.mark.slow
def test_it_is_found_once_it_is_ready_and_its_log_can_be_counted(server: Served) -> None:
    before = server.statuses().get("4xx", 0)
    headers = {"Authorization": f"Bearer {KEY}"}
    assert httpx.get(f'{server.url}/"status": 2', headers=headers).status_code == 404
    assert until(lambda: server.statuses().get("4xx", 0) == before + 1)
    assert server.check_books()["free"] > 0


@pytest.mark.slow
def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="nowhere"),
        served(tmp_path, "server", (str(tmp_path / "nowhere"),)),
    ):
        pass


@pytest.mark.slow
def test_a_client_s_requests_are_counted_and_a_failure_is_one(
    server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask() -> Outcome:
        body = {"prompt": "The capital of France is", "max_tokens": 2}
        headers = {"Authorization": f"Bearer {KEY}"}
        for _ in range(2):
            httpx.post(f"{server.v1}/completions", json=body, headers=headers).raise_for_status()
        return Outcome("asker", "1.2.3", "asked twice")

    def fail() -> Outcome:
        raise AssertionError("nothing was cached")

    report = Report(Progress())
    report.add("asker", server, ask)
    assert report.good
    report.add("other", server, fail)
    assert not report.good
    report.print()
    told = capsys.readouterr().out
    *table, line = told.splitlines()
    asker, other = json.loads(line)["clients"]
    assert (asker["requests"], asker["passed"]) == (2, True)
    assert 0 < asker["cached_tokens"] < asker["prompt_tokens"]
    assert (other["did"], other["passed"]) == ("AssertionError: nothing was cached", False)
    [row] = [each.split() for each in table if "1.2.3" in each]
    share = f"{asker['cached_tokens'] / asker['prompt_tokens']:.1%}"
    assert row[1::2][:6] == ["asker", "1.2.3", "2", str(asker["prompt_tokens"]), share, "ok"]
