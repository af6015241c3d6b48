"""What holds for every test."""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import certifi
import httpx
import pytest

# Several processes of tests have the same processors: threads that wait for each other sleep
# instead of spinning, also in what tests start. OpenMP reads it once, when torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection() -> None:
    """There is no garbage in imports: looking for it takes a fifth of their time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is imported by now stays: looking for garbage in it takes half a second each time."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each httpx client reads the certificates of all authorities, for 20 ms; nobody here needs
    more than one.
    """
    end = "-----END CERTIFICATE-----"
    first, *_ = Path(certifi.where()).read_text(encoding="utf-8").split(end)
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(first + end, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session", autouse=True)
def patience() -> Iterator[None]:
    """Where httpx is given no limit, its own of five seconds would measure the machine."""
    limits = inspect.signature(httpx.get).parameters["timeout"].default
    with pytest.MonkeyPatch.context() as patch:
        for each in ("connect", "read", "write", "pool"):
            patch.setattr(limits, each, 60.0)
        assert httpx.Client().timeout == httpx.Timeout(60.0)
        yield
