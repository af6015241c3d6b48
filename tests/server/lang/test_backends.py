"""What every backend does alike: on an engine in this process, on our server, and through OpenAI's
API, all three with the demo model.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import radixlm as rl
from radixlm.assembly import AsyncEngine
from radixlm.core.config import EngineConfig
from radixlm.core.errors import BackendError, ProgramError
from radixlm.lang import api
from tests.lang_support import no_threads_left
from tests.server_support import idle_and_whole, live, until

EXAMPLES = Path(__file__).parents[3] / "examples"
# OpenAI's chat models can not go on from a text, so these are run on /v1/completions.
OF_TEXT = {"few_shot", "choices", "react"}
ALL = sorted(path.stem for path in EXAMPLES.glob("*.py"))
QUICK = {"json_regex", "multi_turn"}
KINDS = ("engine", "endpoint", "openai")
NAME = "radixlm-demo"


@pytest.fixture(scope="module")
def engine() -> Iterator[AsyncEngine]:
    made = AsyncEngine.from_config(EngineConfig(kv_tokens=20_000))
    yield made
    asyncio.run(made.close())


@pytest.fixture(scope="module")
def url(engine: AsyncEngine) -> Iterator[str]:
    with live(engine, NAME) as url:
        yield url


def backend(kind: str, engine: AsyncEngine, url: str, *, chat: bool = False):
    if kind == "engine":
        return engine
    if kind == "endpoint":
        return rl.RuntimeEndpoint(url)
    return rl.OpenAI(NAME, f"{url}/v1", "none", is_chat_model=chat)


@pytest.fixture(autouse=True)
def nothing_is_left(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(api, "DEFAULT", api.Default())
    yield
    assert no_threads_left()
    assert until(lambda: idle_and_whole(engine)), engine.stats()


@pytest.fixture(params=KINDS)
def each(request: pytest.FixtureRequest, engine: AsyncEngine, url: str):
    return backend(request.param, engine, url)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALL],
)
def test_examples_give_the_same_on_all(name: str, engine: AsyncEngine, url: str) -> None:
    results = {}
    for kind in KINDS:
        rl.set_default_backend(backend(kind, engine, url, chat=name not in OF_TEXT))
        results[kind] = example(name).main()
    assert results["engine"] == results["endpoint"] == results["openai"]


@rl.function
def capital(s, country):
    s += f"The capital of {country} is" + rl.gen("city", max_tokens=6)


def test_an_answer_and_what_is_told_of_it(each) -> None:
    state = capital.run("France", backend=each, temperature=0, stop=".")
    assert state["city"] == " Paris"
    meta = state.get_meta_info("city")
    assert meta["prompt_tokens"] > 3
    assert meta["completion_tokens"] > 0
    assert meta["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"regex": " (Rome|Oslo)"}, (" Rome", " Oslo")),
        ({"dtype": bool}, ("True", "False")),
        ({"choices": [" Paris", " Rome"]}, (" Paris",)),
        ({"choices": [" Parma", " Paris", " Park"]}, (" Paris",)),
        ({"choices": [" Paris", " Paris of all", " Paristan"]}, (" Paris",)),
        ({"stop_regex": "[A-Z]a"}, (" Pa",)),
    ],
)
def test_answers_keep_to_what_is_asked(each, options, expected) -> None:
    @rl.function
    def program(s):
        s += "The capital of France is" + rl.gen("a", max_tokens=6, **options)

    assert program.run(backend=each, temperature=0)["a"] in expected


def test_whole_numbers(each) -> None:
    @rl.function
    def program(s):
        s += "12 + 7 = " + rl.gen_int("n", max_tokens=4)

    assert int(program.run(backend=each, temperature=0)["n"]) >= 0


def test_the_cache_is_flushed(engine: AsyncEngine, url: str) -> None:
    assert until(lambda: idle_and_whole(engine))
    flushed = [rl.flush_cache(backend(kind, engine, url)) for kind in KINDS]
    assert flushed == [True, True, False]


def test_streams_grow(each) -> None:
    counts = []
    for country in ("France", "Spain", "Italy", "Japan", "Germany"):
        state = capital.run(country, backend=each, stream=True, temperature=0)
        pieces = list(state.text_iter("city"))
        assert "".join(pieces) == state["city"]
        counts.append(len(pieces))
    assert max(counts) > 1  # a reader that comes late finds all in one piece


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "[^\\s\\S]"}, "can not be followed"),
        ({"json_schema": {"not": {}}}, "not"),
        ({"top_p": 7}, "top_p"),
    ],
)
def test_what_can_not_be_is_refused_at_the_program_s_line(each, options, reason) -> None:
    @rl.function
    def program(s):
        s += "x" + rl.gen("a", **options)

    with pytest.raises(ProgramError, match=reason) as caught:
        program.run(backend=each)["a"]
    assert "test_backends.py" in caught.value.line
    assert "rl.gen" in caught.value.line


def test_a_cancelled_batch_leaves_nothing_running(each, engine: AsyncEngine) -> None:
    @rl.function
    def program(s, place):
        s += f"Tell me a story about {place}." + rl.gen("a", max_tokens=2000, ignore_eos=True)
        if place == 0:
            assert until(lambda: engine.stats().running >= 2)
            raise RuntimeError("halt")

    with pytest.raises(RuntimeError, match="halt"):
        program.run_batch([[place] for place in range(12)], backend=each, num_threads=4)


def test_a_batch_that_is_left_half_way_leaves_nothing_running(each, engine: AsyncEngine) -> None:
    @rl.function
    def program(s, place):
        s += f"Tell me a story about {place}."
        s += rl.gen("a", max_tokens=2000 if place else 2, ignore_eos=True)

    entries = [[place] for place in range(12)]
    states = program.run_batch(entries, backend=each, num_threads=4, generator_style=True)
    assert next(states)["a"] is not None
    assert until(lambda: engine.stats().running >= 2)
    states.close()


def test_scores_are_the_same_in_process_and_over_http(engine: AsyncEngine, url: str) -> None:
    @rl.function
    def program(s):
        s += "The capital of France is "
        s += rl.select(
            "a", ["Paris", "Berlin"], choices_method=rl.unconditional_likelihood_normalized
        )

    metas = [
        program.run(backend=backend(kind, engine, url)).get_meta_info("a")
        for kind in ("engine", "endpoint")
    ]
    for name in ("normalized_prompt_logprobs", "normalized_unconditional_prompt_logprobs"):
        assert metas[0][name] == pytest.approx(metas[1][name], abs=0.05)


@pytest.mark.parametrize("count", [3, pytest.param(0, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "start", [None, 0, *(pytest.param(n, marks=pytest.mark.slow) for n in (-1, 2))]
)
@pytest.mark.parametrize("top", [None, 0, 2])
def test_logprobs_are_told_alike_in_process_and_over_http(
    engine: AsyncEngine, url: str, count: int, start: int | None, top: int | None
) -> None:
    @rl.function
    def program(s):
        s += "The capital of France is"
        s += rl.gen("a", max_tokens=count, return_logprob=True, return_text_in_logprobs=True)

    options = {"logprob_start_len": start, "top_logprobs_num": top, "temperature": 0}
    metas = [
        program.run(backend=backend(kind, engine, url), **options).get_meta_info("a")
        for kind in ("engine", "endpoint")
    ]
    assert metas[0]["finish_reason"] == metas[1]["finish_reason"]
    told = [{name: meta[name] for name in meta if "logprobs" in name} for meta in metas]
    assert told[0].keys() == told[1].keys()
    for name in ("input_token_logprobs", "output_token_logprobs"):
        ours, theirs = (lists[name] for lists in told)
        assert [tuple(entry[1:]) for entry in ours] == [tuple(entry[1:]) for entry in theirs]
        assert [entry[0] is None for entry in ours] == [entry[0] is None for entry in theirs]
        tops = name.replace("token", "top")
        if tops in told[0]:
            assert [len(best or ()) for best in told[0][tops]] == [
                len(best or ()) for best in told[1][tops]
            ]


def test_several_gens_of_a_message_in_one_call(url: str) -> None:
    @rl.function(num_api_spec_tokens=32)
    def program(s):
        s += rl.user("What is the capital of France?")
        s += rl.assistant("The capital" + rl.gen("a", stop=" is") + " is" + rl.gen("b", stop="."))

    state = program.run(backend=backend("openai", None, url, chat=True), temperature=0)
    assert (state["a"], state["b"]) == (" of France", " Paris")


def test_a_chat_model_answers_whole_turns(url: str) -> None:
    chat = backend("openai", None, url, chat=True)
    with pytest.raises(ProgramError, match="answers whole turns"):
        capital.run("France", backend=chat)["city"]


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(BackendError, match="the connection to"):
        rl.RuntimeEndpoint("http://127.0.0.1:9")
    gone = rl.OpenAI("m", "http://127.0.0.1:9/v1", "none", is_chat_model=False, max_retries=0)
    with pytest.raises(ProgramError, match="the connection to the API is broken"):
        capital.run("France", backend=gone)["city"]


@pytest.mark.parametrize("stream", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["endpoint", "openai"])
def test_a_server_that_drops_the_connection(kind: str, stream: bool) -> None:
    made = AsyncEngine.from_config(EngineConfig(kv_tokens=5_000))
    with live(made, NAME, grace=0, force=True) as url:
        used = backend(kind, made, url)

        @rl.function
        def program(s):
            s += "Tell me a story." + rl.gen("title", regex="(One|Two)")
            s += rl.gen("a", max_tokens=4000, ignore_eos=True)  # this line
            s += rl.gen("b")

        state = program.run(backend=used, stream=stream)
        assert state["title"]
        assert until(lambda: made.stats().running == 1)
    for name in ("a", "b"):
        with pytest.raises(ProgramError) as caught:
            state[name]
        assert "# this line" in caught.value.line
    assert state["title"]
