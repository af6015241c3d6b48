"""Programs on the demo model in this process: what is shared is computed once, tokens are kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import radixlm as rl
from radixlm import Engine, SamplingParams
from radixlm.core.errors import ProgramError
from radixlm.lang.engine_backend import EngineBackend
from tests.lang_support import no_threads_left

LONG = "You are a helpful assistant. " * 20


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(kv_tokens=20_000) as made:
        yield made
        stats = made.stats()
        assert stats.leaks == 0
        assert stats.kv_free + stats.kv_evictable == stats.kv_capacity


def computed(engine, run):
    """Tokens that were computed for `run`, from an empty cache."""
    rl.flush_cache(engine)
    before = engine.stats().computed_tokens
    run()
    return engine.stats().computed_tokens - before


@rl.function
def fan(s, size):
    s += LONG
    forks = s.fork(size)
    forks += lambda place: f"Question {place}:" + rl.gen("a", max_tokens=4, ignore_eos=True)
    forks.join()


def test_n_forks_compute_their_prefix_once(engine):
    one = computed(engine, lambda: fan.run(1, backend=engine)["a"])
    prefix = engine.tokenizer.encode(LONG).size
    eight = computed(engine, lambda: fan.run(8, backend=engine)["a"])
    own = one - prefix
    assert own < 20
    assert eight <= prefix + 8 * (own + 1)


def test_a_batch_computes_its_common_prefix_once(engine):
    @rl.function
    def program(s, place):
        s += LONG + f"Question {place}:" + rl.gen("a", max_tokens=4, ignore_eos=True)

    prefix = engine.tokenizer.encode(LONG).size
    entries = [[place] for place in range(16)]
    spent = computed(engine, lambda: program.run_batch(entries, backend=engine))
    assert spent <= prefix + 16 * 20


def test_what_is_cached_ahead_is_not_computed_again(engine):
    @rl.function
    def program(s, question):
        s += LONG + "Question:"
        s += question + rl.gen("a", max_tokens=2)

    rl.flush_cache(engine)
    program.cache(engine)
    state = program.run(" why?", backend=engine)
    assert state.get_meta_info("a")["cached_tokens"] >= engine.tokenizer.encode(LONG).size - 1


def test_an_answer_s_own_tokens_are_found_again(engine):
    """Sampled hot, its text would hardly ever be tokenized the same way."""

    @rl.function
    def program(s):
        s += "Tell me:" + rl.gen("a", max_tokens=40, temperature=3.0, ignore_eos=True)
        s += " And then:" + rl.gen("b", max_tokens=1)

    for _ in range(3):
        state = program.run(backend=engine)
        first, second = state.get_meta_info("a"), state.get_meta_info("b")
        assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1


def test_a_chat_is_tokenized_as_the_template_s_text(engine):
    said = EngineBackend(engine).begin()
    messages = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?")]
    for role, content in messages:
        said.begin(role)
        said.write(content)
        said.end(role)
    text = engine.chat_template.render(
        [{"role": role, "content": content} for role, content in messages],
        add_generation_prompt=False,
    )
    assert said.key().tolist() == engine.tokenizer.encode(text).tolist()


def test_scores_are_the_model_s_own(engine):
    @rl.function
    def program(s):
        s += "The capital of France is" + rl.select("a", [" Paris", " Rome"])

    state = program.run(backend=engine)
    assert state["a"] == " Paris"
    tokens = state.get_meta_info("a")["input_token_logprobs"][0]
    text = "The capital of France is Paris"
    [out] = engine.generate(text, SamplingParams(max_tokens=1, prompt_logprobs=0))
    expected = [entry.logprob for entry in out.prompt_logprobs[-len(tokens) :]]
    assert [token[0] for token in tokens] == pytest.approx(expected, abs=0.05)


def test_an_engine_that_is_closed_is_told(engine):
    gone = Engine(kv_tokens=2_000)
    gone.close()
    with pytest.raises(ProgramError, match=r"test_engine_programs\.py"):
        fan.run(1, backend=gone)["a"]
    assert no_threads_left()


def test_an_answer_ends_where_there_is_no_more_room_as_on_a_server():
    @rl.function
    def program(s):
        s += "Hello" + rl.gen("a", ignore_eos=True)

    with Engine(kv_tokens=60) as small:
        meta = program.run(backend=small).get_meta_info("a")
    assert meta["prompt_tokens"] + meta["completion_tokens"] == 60
