"""Two ranks on this machine: the same answers as one, each with its part, and their ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from radixlm import Engine, Namespace, RequestOutput, SamplingParams
from radixlm.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from radixlm.core.keys import as_key
from radixlm.engine import EngineCore
from radixlm.testing.reference import make_checkpoint
from tests.aside import started
from tests.invariants import check
from tests.server_support import until

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=12, temperature=0.8, seed=7, ignore_eos=True)
SCORED = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=0, ignore_eos=True)
SHARED = [(7 * i) % 300 + 3 for i in range(40)]
PROMPTS = [[*SHARED, *range(20 + i, 24 + 5 * i)] for i in range(5)]
FLAGS: dict[str, Any] = {"kv_tokens": 600, "dtype": "float32", "chunked_prefill_size": 32}
LOOPBACK = "0100007F"


def answers(engine: Engine) -> list[RequestOutput]:
    """Cold in chunks, from the cache, drawn, and with log-probabilities of the prompt."""
    return [
        output
        for params in (GREEDY, GREEDY, DRAWN, SCORED)
        for output in engine.generate(PROMPTS, params)
    ]


def ranks(of: int | None = None) -> list[int]:
    """Processes of other ranks that a process has started."""
    found = []
    for task in Path(f"/proc/{of or os.getpid()}/task").iterdir():
        for child in (task / "children").read_text().split():
            if "rank_process" in Path(f"/proc/{child}/cmdline").read_text():
                found.append(int(child))
    return found


def gone(process: int) -> bool:
    """It has ended; it may still wait for its parent to hear of it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Norms over all heads, three heads of keys for two ranks."""
    return make_checkpoint(
        tmp_path_factory.mktemp("olmo2"),
        "olmo2",
        num_attention_heads=6,
        num_key_value_heads=3,
        vocab_size=321,
    )


@pytest.fixture(scope="module")
def two(folder: Path) -> Iterator[Engine]:
    with Engine(str(folder), tp_size=2, **FLAGS) as engine:
        yield engine


def test_the_answers_of_one_rank(folder: Path, two: Engine) -> None:
    with Engine(str(folder), **FLAGS) as one:
        expected = answers(one)
        assert two.info.kv_bytes == one.info.kv_bytes
    found = answers(two)
    for mine, its in zip(expected, found, strict=True):
        assert its.token_ids == mine.token_ids
        assert its.cached_tokens == mine.cached_tokens
        both = zip(mine.prompt_logprobs, its.prompt_logprobs, strict=True)
        assert all(abs(a.logprob - b.logprob) < 1e-4 for a, b in both)
    assert any(output.cached_tokens for output in found)
    assert any(output.prompt_logprobs for output in found)
    assert len(ranks()) == 1


@pytest.mark.parametrize(
    ("architecture", "flags"),
    [
        pytest.param("llama", {}, marks=pytest.mark.slow),
        ("gemma3_text", {"swa_full_tokens_ratio": 0.5}),
    ],
)
def test_what_is_no_number_in_another_rank_is_not_kept(
    tmp_path: Path, architecture: str, flags: dict[str, Any]
) -> None:
    """Of one token the other rank's values are infinite; all that this one has are numbers."""
    broken = 7
    folder = make_checkpoint(tmp_path / "model", architecture)
    _break(folder / "model.safetensors", broken)
    good, bad = [*SHARED, 8], [*SHARED, broken, *range(60, 80)]
    with Engine(str(folder), **FLAGS, **flags) as one:
        [wanted] = one.generate([good], GREEDY)
    with Engine(str(folder), tp_size=2, **FLAGS, **flags) as two:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="not finite"):
                two.generate([bad], GREEDY)
            asked = two.client.ask(lambda core: core.cache.explain(as_key(bad), Namespace()))
            assert asked.result().report.cached == len(SHARED)
        [found] = two.generate([good], GREEDY)
        assert found.cached_tokens == len(SHARED)
        assert found.token_ids == wanted.token_ids


def _break(file: Path, token: int) -> None:
    """A token alone has a number in one place of its row, which layers leave as it is, and the
    second rank's head of the last layer's values makes too large.
    """
    weights = load_file(file)
    embedding = weights["model.embed_tokens.weight"]
    embedding[:, 0] = 0
    embedding[token, 0] = 100
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name][0] = 0
    weights["model.layers.2.self_attn.v_proj.weight"][-1, 0] = 3e38
    save_file(weights, file, {"format": "pt"})


# Layers with a window: prompts that share up to 60 tokens, more than two windows of 24.
HEAD = [(11 * i) % 290 + 3 for i in range(60)]
BESIDE = [[*HEAD[: 20 + 8 * n], *range(40 + 25 * n, 60 + 25 * n)] for n in range(6)]
LONG = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
TIGHT: dict[str, Any] = {
    "kv_tokens": 160,
    "dtype": "float32",
    "chunked_prefill_size": 16,
    "schedule_conservativeness": 0.0,
}


def checked(engine: Engine) -> None:
    """From now on every invariant of the cache is looked at after each step."""

    def begin(core: EngineCore) -> None:
        step = core.step

        def stepped() -> list[RequestOutput]:
            outputs = step()
            check(core.cache)
            return outputs

        core.step = stepped  # type: ignore[method-assign]

    engine.client.ask(begin).result()


def ids(engine: Engine) -> list[tuple[int, ...]]:
    """Cold and from the cache, an answer that is given up between them."""
    outputs = engine.generate(BESIDE, LONG)
    given_up = engine.client.run([engine.request(BESIDE[-1][::-1], LONG)])
    next(given_up)
    given_up.close()
    outputs += engine.generate(BESIDE, LONG)
    return [output.token_ids for output in outputs]


@pytest.mark.parametrize(
    "architecture",
    [
        "cohere2",
        pytest.param("gemma3_text", marks=pytest.mark.slow),
        pytest.param("gpt_oss", marks=pytest.mark.slow),
    ],
)
def test_layers_with_a_window_have_slots_of_their_own_in_all_ranks(
    tmp_path: Path, architecture: str
) -> None:
    folder, others = str(make_checkpoint(tmp_path / "model", architecture)), set(ranks())
    with Engine(folder, swa_full_tokens_ratio=1.0, **TIGHT) as one:
        expected, whole = ids(one), one.info.kv_bytes
    with Engine(folder, swa_full_tokens_ratio=0.7, **TIGHT) as one:
        assert ids(one) == expected
        size, of_one = one.stats().swa_capacity, one.info.kv_bytes
    with Engine(folder, tp_size=2, swa_full_tokens_ratio=0.7, **TIGHT) as two:
        checked(two)
        assert ids(two) == expected
        stats = two.stats()
        assert stats.swa_capacity == size
        assert two.info.kv_bytes == of_one < whole
        assert min(stats.retractions, stats.swa_evicted_tokens, stats.cached_tokens) > 0
        assert (stats.requests_aborted, stats.leaks) == (1, 0)
        two.flush_cache()
        assert two.stats().swa_free == size
        [mine] = set(ranks()) - others
        os.kill(mine, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match=r"rank 1 of 2 .* was ended by signal 9"):
            two.generate(BESIDE, LONG)


def listening(process: int) -> list[str]:
    """Addresses of TCP, in hexadecimal, at which a process listens."""
    own = set()
    for handle in Path(f"/proc/{process}/fd").iterdir():
        try:
            own.add(os.readlink(handle))
        except FileNotFoundError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                found.append(local.partition(":")[0])
    return found


def test_ranks_are_reached_from_this_machine_alone(two: Engine) -> None:
    assert two.info.tp_size == 2
    [other] = ranks()
    addresses = listening(other)
    assert addresses
    assert set(addresses) == {LOOPBACK}


def test_adapters_are_refused(two: Engine) -> None:
    with pytest.raises(ConfigError, match="--tp-size 2"):
        two.load_lora_adapter("french", "/nowhere")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"tp_size": 4096}, "tp-size"),
        ({"tp_size": 64}, "--tp-size 64 is more than the .* processors"),
        ({"tp_size": 2, "deterministic": True}, "--deterministic does not go with --tp-size 2"),
        ({"tp_size": 2, "lora_paths": ("a=b",)}, "--lora-paths"),
        ({"tp_size": 2, "disk_cache": "/nowhere"}, "--disk-cache"),
        ({"tp_size": 2, "host_kv_tokens": 4096}, "--host-kv-tokens"),
        ({"tp_size": 2, "model_impl": "transformers"}, "transformers computes this one"),
        ({"tp_size": 2, "device": "cuda:0"}, "cuda:0"),
    ],
)
def test_flags_that_can_not_be(folder: Path, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Engine(str(folder), **FLAGS | flags)
    assert len(ranks()) <= 1, "of the engine that other tests have"


# Last of those with the shared engine: it is dead after this.
def test_the_death_of_a_rank_ends_the_engine(two: Engine) -> None:
    [other] = ranks()
    outputs = two.client.run([two.request(SHARED, SamplingParams(max_tokens=400, ignore_eos=True))])
    next(outputs)
    os.kill(other, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=r"rank 1 of 2 \(process \d+\) was ended by signal 9"):
        list(outputs)
    with pytest.raises(EngineDeadError, match="rank 1 of 2"):
        two.generate([SHARED], GREEDY)
    two.close()
    assert ranks() == []


ORPHANS = """
import sys, time
from radixlm import Engine
engine = Engine(sys.argv[1], tp_size=2, kv_tokens=100, dtype="float32")
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow  # an engine of two ranks is started
def test_ranks_end_with_their_parent(folder: Path) -> None:
    command = [sys.executable, "-c", ORPHANS, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:  # noqa: S603
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        [other] = ranks(parent.pid)
        parent.kill()
    assert until(lambda: gone(other))


@pytest.mark.slow  # a rank may be silent for ten seconds
def test_a_rank_that_stands_still_ends_the_engine(folder: Path) -> None:
    with Engine(str(folder), tp_size=2, **FLAGS) as engine:
        [other] = ranks()
        os.kill(other, signal.SIGSTOP)
        with pytest.raises(EngineDeadError, match="has not answered for 10 s"):
            engine.generate([SHARED], GREEDY)
    assert gone(other)


@pytest.mark.slow  # a server is started
def test_the_server_ends_with_its_engine(folder: Path, tmp_path: Path) -> None:
    flags = ("--tensor-parallel-size", "2", "--kv-tokens", "100", "--uds", str(tmp_path / "sock"))
    start = "from radixlm.cli.start import main; main()"
    command = [sys.executable, "-c", start, "serve", str(folder), *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(command, text=True, **pipes) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        assert "serves" in server.stdout.readline()
        [other] = ranks(server.pid)
        os.kill(other, signal.SIGKILL)
        assert server.wait(60) == 1
        assert "rank 1 of 2" in server.stderr.read().splitlines()[-1]
