"""Which adapters requests may have, while they are unloaded and loaded again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from radixlm.core.errors import ConfigError, InvalidRequestError
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.engine.adapter_names import Adapters, NamedPath
from radixlm.engine.input_processor import new_request


class Counting:
    """A shelf that says what it has; an id is by name alone."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def read(self, name: str, folder: Path) -> tuple[str, Path]:
        return f"{name}@1", folder

    def put(self, adapter_id: str, folder: Path) -> None:
        if adapter_id not in self.ids:
            self.ids.append(adapter_id)

    def drop(self, adapter_id: str) -> None:
        self.ids.remove(adapter_id)


@pytest.fixture
def adapters() -> Adapters:
    found = Adapters(Counting())
    found.load("fr", "french")
    return found


def request(name: str) -> GenerateRequest:
    space = Namespace(adapter_id="fr@1")
    return new_request([1, 2], SamplingParams(), request_id=name, namespace=space)


def test_an_unload_that_is_given_up_is_no_less_an_unload() -> None:
    shelf = Counting()
    adapters = Adapters(shelf)
    adapters.load("fr", "french")
    adapters.begin([request("first")])
    over = adapters.unload("fr")
    assert over.cancel()
    assert adapters.named == {}
    with pytest.raises(InvalidRequestError, match="'fr' is not loaded any more"):
        adapters.begin([request("late")])
    assert shelf.ids == ["fr@1"]
    adapters.end("first")
    assert shelf.ids == []


def test_one_that_is_loaded_again_has_requests_of_its_own() -> None:
    """The first unload waits for those that had it then, not for later ones; the weights stay."""
    shelf = Counting()
    adapters = Adapters(shelf)
    adapters.load("fr", "french")
    adapters.begin([request("first")])
    given_up, again = adapters.unload("fr"), adapters.load("fr", "french")
    assert again is None
    given_up.cancel()
    adapters.begin([request("second")])
    over = adapters.unload("fr")
    adapters.load("fr", "french")
    adapters.begin([request("third")])
    assert not over.done()
    adapters.end("second")
    assert over.done()
    adapters.end("first")
    adapters.end("third")
    adapters.end("third")  # nothing has that id any more
    assert shelf.ids == ["fr@1"]
    assert adapters.unload("fr").done()
    assert shelf.ids == []


def test_the_same_name_read_twice_at_a_time_is_had_once(adapters: Adapters) -> None:
    one, other = adapters.read("de", "german"), adapters.read("de", "german")
    adapters.put(one)
    with pytest.raises(InvalidRequestError, match="'de' is loaded already"):
        adapters.put(other)


def test_reading_holds_up_neither_requests_nor_other_adapters() -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(Counting):
        def read(self, name: str, folder: Path) -> tuple[str, Path]:
            if name == "slow":
                reading.set()
                go_on.wait()
            return super().read(name, folder)

    adapters = Adapters(Slow())
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(adapters.load, "slow", "folder")
        try:
            reading.wait()
            adapters.load("fr", "french")
            adapters.begin([request("first")])
            adapters.end("first")
            assert list(adapters.named) == ["fr"]
        finally:
            go_on.set()
        loading.result()
    assert list(adapters.named) == ["fr", "slow"]


@pytest.mark.parametrize("text", ["~nosuchuser/x", "x" * 300, "a\0b", "/dev/null/x"])
def test_a_text_that_can_be_no_path(adapters: Adapters, text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no path that can be used: \w"):
        adapters.load("de", text)
    with pytest.raises(ConfigError, match=r"is no path that can be used: \w"):
        NamedPath.of(text)
