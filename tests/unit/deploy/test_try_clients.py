"""The server that `make clients` lets others use."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from scripts.try_clients.server import KEY, served
from tests.server_support import until


@pytest.mark.slow
def test_it_is_found_once_it_is_ready_and_its_log_can_be_counted(tmp_path: Path) -> None:
    with served(tmp_path, "server", ("--kv-tokens", "4096")) as server:
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
