"""Requests with adapters, through the whole engine: peft's greedy tokens in any company."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from radixlm.assembly import Engine
from radixlm.core.errors import CheckpointError, ConfigError, InvalidRequestError
from radixlm.core.request import Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.testing.peft_adapters import adapted_tokens, make_adapter
from radixlm.testing.reference import make_checkpoint

COUNT = 8
GREEDY = SamplingParams(max_tokens=COUNT, temperature=0, ignore_eos=True)
SHARED = np.random.default_rng(0).integers(0, 256, 40).tolist()
PROMPTS = [[*SHARED, 1, 2], [*SHARED, 3], SHARED[:17]]
TARGETS = {"phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")}
NAMES = (None, "one", "two")


class Served:
    """A checkpoint with two adapters, and what peft answers with each and with none."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.base = make_checkpoint(folder / "base", architecture)
        targets = {"targets": TARGETS[architecture]} if architecture in TARGETS else {}
        self.folders = {
            "one": make_adapter(folder / "one", self.base, **targets),
            "two": make_adapter(folder / "two", self.base, seed=1, r=8, targets=["o_proj"]),
        }
        self.answers = {
            name: adapted_tokens(self.base, self.folders.get(name or ""), PROMPTS, COUNT)
            for name in NAMES
        }

    def engine(self, **flags: object) -> Engine:
        paths = tuple(f"{name}={folder}" for name, folder in self.folders.items())
        given = {"kv_tokens": 2048, "lora_paths": paths, "threads": 1} | flags
        return Engine(str(self.base), **given)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("llama"), "llama")


def answers(engine: Engine, name: str | None) -> list[list[int]]:
    outputs = engine.generate(PROMPTS, GREEDY, lora_path=name)
    return [list(output.token_ids) for output in outputs]


def together(engine: Engine) -> Iterator[tuple[str | None, int, list[int], int]]:
    """All prompts with each adapter and none, in the same steps: name, prompt, tokens, cached."""
    asked = [(name, place) for place in range(len(PROMPTS)) for name in NAMES]
    requests = [engine.request(PROMPTS[place], GREEDY, lora_path=name) for name, place in asked]
    ends: dict[str, list[int]] = {request.request_id: [] for request in requests}
    cached = dict.fromkeys(ends, 0)
    for output in engine.client.run(requests):
        ends[output.request_id] += output.token_ids
        cached[output.request_id] = max(cached[output.request_id], output.cached_tokens)
    for (name, place), request in zip(asked, requests, strict=True):
        yield name, place, ends[request.request_id], cached[request.request_id]


@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("mistral", "qwen2", "qwen3", "phi3")
        ),
    ],
)
def test_the_same_tokens_as_peft(tmp_path: Path, architecture: str) -> None:
    served = Served(tmp_path, architecture)
    assert len({str(each) for each in served.answers.values()}) == len(NAMES)
    with served.engine() as engine:
        for name in NAMES:
            assert answers(engine, name) == served.answers[name], "cold and shared"
        for name, place, found, cached in together(engine):
            assert found == served.answers[name][place], "warm and batched"
            assert cached == len(PROMPTS[place]) - 1
    with served.engine(chunked_prefill_size=7) as engine:
        for name, place, found, _ in together(engine):
            assert found == served.answers[name][place], "chunked and batched"


def test_adapters_share_nothing(llama: Served) -> None:
    with llama.engine() as engine:
        for name in NAMES:
            [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path=name)
            assert output.cached_tokens == 0
            [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path=name)
            assert output.cached_tokens == len(PROMPTS[0]) - 1
        namespace = Namespace(cache_salt="own")
        [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path="one", namespace=namespace)
        assert output.cached_tokens == 0
        assert list(output.token_ids) == llama.answers["one"][0]


def test_an_adapter_of_the_same_name_with_other_weights(llama: Served, tmp_path: Path) -> None:
    folder = shutil.copytree(llama.folders["one"], tmp_path / "it")
    with llama.engine(lora_paths=(str(folder),)) as engine:
        assert answers(engine, "it") == llama.answers["one"]
        with pytest.raises(InvalidRequestError, match="'it' is loaded already"):
            engine.load_lora_adapter("it", str(folder))
        engine.unload_lora_adapter("it")
        with pytest.raises(InvalidRequestError, match="not loaded, 'it'; loaded: none is"):
            engine.request(PROMPTS[0], GREEDY, lora_path="it")
        shutil.rmtree(folder)
        shutil.copytree(llama.folders["two"], folder)
        engine.load_lora_adapter("it", str(folder))
        assert answers(engine, "it") == llama.answers["two"]
        engine.unload_lora_adapter("it")
        engine.load_lora_adapter("it", str(llama.folders["one"]))
        [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path="it")
        assert list(output.token_ids) == llama.answers["one"][0]
        assert output.cached_tokens == len(PROMPTS[0]) - 1, "the very same weights find their own"


def test_a_request_of_an_adapter_that_went_meanwhile(llama: Served) -> None:
    with llama.engine() as engine:
        request = engine.request(PROMPTS[0], GREEDY, lora_path="one")
        engine.unload_lora_adapter("one")
        with pytest.raises(InvalidRequestError, match="'one' is not loaded any more"):
            list(engine.client.run([request]))
        with pytest.raises(InvalidRequestError, match="'never' is not loaded any more"):
            engine.generate([PROMPTS[0]], GREEDY, namespace=Namespace(adapter_id="never@1"))


def test_unloading_waits_for_the_last_request(llama: Served) -> None:
    long = replace(GREEDY, max_tokens=1900)  # longer than this thread may be kept waiting
    with llama.engine() as engine:
        running = engine.client.run([engine.request(PROMPTS[0], long, lora_path="one")])
        tokens = [*next(running).token_ids]
        gone = engine.adapters.unload("one")
        assert not gone.done()
        while len(tokens) < COUNT:
            tokens += next(running).token_ids
        assert tokens[:COUNT] == llama.answers["one"][0]
        running.close()
        gone.result(timeout=30)


def test_it_is_refused_when_it_can_not_be_loaded(llama: Served) -> None:
    with pytest.raises(ConfigError, match=r"'one'.*--deterministic"):
        llama.engine(deterministic=True)
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        llama.engine(lora_paths=(str(llama.base),))
    twice = tuple(f"x={folder}" for folder in llama.folders.values())
    with pytest.raises(ConfigError, match=r"--lora-paths x=.*'x' is loaded already"):
        llama.engine(lora_paths=twice)
    with pytest.raises(ConfigError, match="has no spaces, got 'a b'"):
        llama.engine(lora_paths=(f"a b={llama.folders['one']}",))


def test_what_is_on_disk_is_of_the_same_weights(llama: Served, tmp_path: Path) -> None:
    flags = {"disk_cache": str(tmp_path / "disk"), "disk_write_policy": "all"}
    flags |= {"disk_block_tokens": 8, "disk_cache_gb": 0.01}
    with llama.engine(**flags) as engine:
        assert answers(engine, "one") == llama.answers["one"]
    swapped = tuple(
        f"{name}={llama.folders[other]}" for name, other in (("one", "two"), ("two", "one"))
    )
    with llama.engine(lora_paths=swapped, **flags) as engine:
        [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path="one")
        assert (output.cached_tokens, list(output.token_ids)) == (0, llama.answers["two"][0])
    with llama.engine(**flags) as engine:
        [output] = engine.generate([PROMPTS[0]], GREEDY, lora_path="one")
        assert output.cached_tokens >= 32
        assert list(output.token_ids) == llama.answers["one"][0]
