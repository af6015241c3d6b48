"""Text, stop strings and ends, step by step."""

from __future__ import annotations

from dataclasses import replace

from radixlm.cache.components.window_slots import WindowSize
from radixlm.core.request import FinishReason, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore
from tests.engines import Bench, byte_tokenizer, make_request

MINE = Namespace()


def _full(seed: list[int], max_tokens: int) -> RequestOutput:
    bench = Bench()
    bench.core.add(make_request("r", seed, max_tokens))
    return bench.run()["r"]


def test_text_is_the_tokens_text() -> None:
    output = _full([7, 8], 12)
    tokenizer = byte_tokenizer()
    whole = tokenizer.decode([8, *output.token_ids])
    assert whole.endswith(output.text)
    assert output.finish_reason is FinishReason.LENGTH
    assert (output.prompt_tokens, output.cached_tokens, len(output.token_ids)) == (2, 0, 12)


def test_a_stop_string_ends_its_request_in_the_same_step() -> None:
    free = _full([7, 8], 12)
    stop = free.text[4:6]
    bench = Bench()
    params = SamplingParams(max_tokens=12, temperature=0, stop=(stop,))
    bench.core.add(make_request("r", [7, 8], 12, params=params))
    output = bench.run()["r"]
    assert output.text == free.text[: free.text.index(stop)]
    assert output.finish_reason is FinishReason.STOP
    assert output.matched_stop == stop
    assert stop in byte_tokenizer().decode(output.token_ids)
    assert bench.core.stats().steps == len(output.token_ids)


def test_a_stop_token_ends_it_and_is_not_in_the_text() -> None:
    free = _full([7, 8], 12)
    end = free.token_ids[5]
    bench = Bench()
    bench.core.add(make_request("r", [7, 8], 12, stop_token_ids=frozenset({end})))
    output = bench.run()["r"]
    cut = free.token_ids.index(end) + 1
    assert output.token_ids == free.token_ids[:cut]
    assert output.matched_stop == end
    assert free.text.startswith(output.text.rstrip("\ufffd"))


def test_stats_add_up() -> None:
    bench = Bench()
    for index in range(3):
        bench.core.add(make_request(f"r{index}", [1, 2, 3, index], 2))
    bench.run()
    stats = bench.core.stats()
    assert stats.kv_free + stats.kv_evictable == stats.kv_capacity
    assert stats.requests_finished == 3
    assert stats.prompt_tokens == 12
    assert stats.cached_tokens == 6
    assert stats.hit_rate == 0.5
    assert stats.output_tokens == 6
    assert stats.computed_tokens == 12 - 6 + 3  # the last token of each answer is never computed


def test_flush_drops_what_nobody_uses() -> None:
    bench = Bench()
    bench.core.add(make_request("r", [1, 2, 3], 2))
    bench.run()
    assert bench.core.flush() == (4, True)
    assert bench.cache.usage().free == bench.cache.capacity


def test_a_leak_is_counted_and_logged_not_fatal(caplog: object) -> None:
    bench = Bench()
    lease = bench.cache.acquire([1, 2, 3])
    lease.extend(3)
    bench.core.check_idle()
    assert bench.core.stats().leaks == 1
    lease.release()
    bench.core.check_idle()
    assert bench.core.stats().leaks == 1


def test_tokens_that_the_runner_knows_are_taken_with_the_sampled_one_and_computed_in_one_step() -> (
    None
):
    bench = Bench(capacity=64)
    request = make_request("a", [1, 2, 3], max_tokens=9)
    answer = bench.expected(request)
    bench.core.add(request)
    execute = bench.runner.execute
    parts = []

    def ahead(batch):
        (row,) = batch.rows
        parts.append(row.n_new)
        at = row.stop - row.prompt_length + 1
        return replace(execute(batch), known={0: tuple(answer[at : at + 3])})

    bench.runner.execute = ahead
    whole = bench.run()["a"]
    assert list(whole.token_ids) == answer
    assert whole.finish_reason is FinishReason.LENGTH
    assert parts == [3, 4, 4]


def test_where_nobody_wants_text_none_is_made() -> None:
    bench = Bench(capacity=64)
    core = EngineCore(bench.scheduler, bench.cache, bench.runner, None)
    core.add(make_request("a", [1, 2, 3], max_tokens=4))
    outputs = []
    while core.has_work:
        outputs += core.step()
    whole = RequestOutput.joined(outputs)
    assert (whole.text, len(whole.token_ids)) == ("", 4)


def test_pins_of_one_window_are_no_leak() -> None:
    bench = Bench(128, pin_budget=64, windows=WindowSize(8, 96, 16))
    bench.core.add(make_request("r", range(30), 1, namespace=MINE))
    bench.run()
    for end in (30, 26):
        bench.cache.pin(list(range(end)), MINE)
    bench.core.check_idle()
    assert bench.core.stats().leaks == 0
