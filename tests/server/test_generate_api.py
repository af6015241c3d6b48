"""/generate: SGLang's answers and streams, prompts of all four kinds, log-probabilities."""

from __future__ import annotations

import pytest

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.sglang import generate_answers as native
from tests.server_support import events, in_event_loop, requests_seen

SIDES = ("input", "output")
META_LISTS = [f"{side}_{kind}_logprobs" for side in SIDES for kind in ("token", "top")]
META = {
    "id",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "e2e_latency",
}


def few(count: int, **more):
    return {"max_new_tokens": count, **more}


def test_an_answer_has_sglang_s_shape(fake):
    body = fake.generate("hello", sampling_params=few(4)).json()
    assert body.keys() == {"text", "output_ids", "meta_info"}
    meta = body["meta_info"]
    assert meta.keys() == META
    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert meta["prompt_tokens"] == len(fake.engine.tokenizer.encode("hello"))
    assert meta["completion_tokens"] == len(body["output_ids"]) == 4
    assert 0 < meta["e2e_latency"] < 60
    assert body["text"] == fake.engine.tokenizer.decode(body["output_ids"])
    same = fake.request("PUT", "/generate", json={"text": "hello", "sampling_params": few(4)})
    assert same.json()["text"] == body["text"]


def test_it_generates_what_completions_does(fake):
    ours = fake.generate("hello", sampling_params=few(9)).json()["text"]
    assert ours == fake.complete("hello", max_tokens=9).json()["choices"][0]["text"]


@pytest.mark.parametrize(
    ("prompt", "params", "count"),
    [
        ([7] * 20, {}, 128),
        ([7] * 1950, {}, 50),
        ([7] * 1950, None, 50),
        ([7] * 1990, {"max_new_tokens": None}, 10),
        ([7] * 20, {"max_new_tokens": 130}, 130),
    ],
)
def test_how_much_is_generated(fake, prompt, params, count):
    body = fake.generate(None, input_ids=prompt, sampling_params=params).json()
    assert body["meta_info"]["completion_tokens"] == count


def test_the_second_time_the_prompt_is_cached(fake):
    prompt = list(range(20, 80))
    cached = [
        fake.generate(None, input_ids=prompt, sampling_params=few(2)).json()["meta_info"]
        for _ in range(2)
    ]
    assert [meta["cached_tokens"] for meta in cached] == [0, 59]


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
def test_namespaces_do_not_share(fake, name):
    fields = {"input_ids": list(range(30, 90)), "sampling_params": few(1)}
    cached = [
        fake.generate(None, **fields, **{name: name + value}).json()["meta_info"]["cached_tokens"]
        for value in ("a", "b", "a")
    ]
    assert cached == [0, 0, 59]


def test_text_and_ids_are_the_same_prompt(fake):
    ids = fake.engine.tokenizer.encode("hello there").tolist()
    by_text = fake.generate("hello there", sampling_params=few(6)).json()
    by_ids = fake.generate(None, input_ids=ids, sampling_params=few(6)).json()
    assert by_text["output_ids"] == by_ids["output_ids"]


@pytest.mark.parametrize(
    "fields", [{"text": ["ab"]}, {"text": ["ab", "cde"]}, {"input_ids": [[65], [66, 67], [68]]}]
)
def test_a_list_is_answered_by_a_list_each_as_if_alone(fake, fields):
    [(name, prompts)] = fields.items()
    answers = fake.post("/generate", **fields, sampling_params=few(5)).json()
    alone = [fake.post("/generate", **{name: p}, sampling_params=few(5)).json() for p in prompts]
    assert [answer["output_ids"] for answer in answers] == [one["output_ids"] for one in alone]


def test_each_prompt_may_have_its_own_parameters(fake):
    params = [few(2), few(5, n=1), {"max_new_tokens": 0}]
    answers = fake.generate(["ab", "cd", "ef"], sampling_params=params).json()
    assert [answer["meta_info"]["completion_tokens"] for answer in answers] == [2, 5, 0]


def test_n_answers_stand_prompt_by_prompt(real):
    params = few(6, n=2, sampling_seed=7)
    answers = real.generate(["ab", "cd"], sampling_params=params).json()
    assert len(answers) == 4
    for place, (text, seed) in enumerate([("ab", 7), ("ab", 8), ("cd", 7), ("cd", 8)]):
        alone = real.generate(text, sampling_params=few(6, seed=seed)).json()
        assert answers[place]["output_ids"] == alone["output_ids"]
    assert answers[0]["output_ids"] != answers[1]["output_ids"]
    assert len(real.generate("ab", sampling_params=few(1, n=2)).json()) == 2


def test_a_stream_tells_everything_so_far(fake):
    whole = fake.generate(sampling_params=few(200)).json()
    *parts, last = events(fake.generate(sampling_params=few(200), stream=True))
    assert (last["text"], last["output_ids"]) == (whole["text"], whole["output_ids"])
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 200}
    assert last["meta_info"].keys() == META
    assert len(parts) >= 1
    for before, after in zip(parts, [*parts[1:], last], strict=True):
        assert after["text"].startswith(before["text"])
        assert len(after["output_ids"]) > len(before["output_ids"])
        assert before["meta_info"]["finish_reason"] is None
        assert before["meta_info"]["completion_tokens"] == len(before["output_ids"])
        assert "e2e_latency" not in before["meta_info"]
    assert not any("index" in part for part in (*parts, last))


def test_entries_of_a_streamed_list_carry_their_index(fake):
    whole = fake.generate(["ab", "cd"], sampling_params=few(4, n=2)).json()
    texts = {}
    for part in events(fake.generate(["ab", "cd"], sampling_params=few(4, n=2), stream=True)):
        texts[part["index"]] = part["text"]
    assert texts == dict(enumerate(answer["text"] for answer in whole))


def test_stops_say_what_matched(fake):
    whole = fake.generate(sampling_params=few(12)).json()
    stop = whole["text"][4:6]
    stopped = fake.generate(sampling_params=few(12, stop=["never there", stop])).json()
    assert stopped["text"] == whole["text"][: whole["text"].index(stop)]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    token = whole["output_ids"][3]
    stopped = fake.generate(sampling_params=few(12, stop_token_ids=[token])).json()
    assert stopped["output_ids"] == whole["output_ids"][: whole["output_ids"].index(token) + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    later = fake.generate(sampling_params=few(12, stop=stop, min_new_tokens=12)).json()
    assert later["meta_info"]["completion_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
def test_no_new_tokens_computes_the_prompt_only(fake, stream):
    prompt = [*range(40, 90), int(stream)]
    answer = fake.generate(None, input_ids=prompt, sampling_params=few(0), stream=stream)
    body = events(answer)[-1] if stream else answer.json()
    assert (body["text"], body["output_ids"]) == ("", [])
    assert body["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert body["meta_info"]["completion_tokens"] == 0
    after = fake.generate(None, input_ids=[*prompt, 1, 2], sampling_params=few(1)).json()
    assert after["meta_info"]["cached_tokens"] == len(prompt)


def test_no_new_tokens_even_where_the_first_would_stop(fake):
    [first] = fake.generate(sampling_params=few(1)).json()["output_ids"]
    params = few(0, stop_token_ids=[first])
    meta = fake.generate(sampling_params=params).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 0}


def test_logprobs_are_of_the_output_unless_a_start_is_given(real):
    body = real.generate(sampling_params=few(5), return_logprob=True).json()
    meta = body["meta_info"]
    assert meta["input_token_logprobs"] == []
    assert [token for _, token, _ in meta["output_token_logprobs"]] == body["output_ids"]
    assert all(value < 0 and text is None for value, _, text in meta["output_token_logprobs"])
    assert "output_top_logprobs" not in meta
    for wanted in ({}, {"return_logprob": False, "top_logprobs_num": 3, "logprob_start_len": 0}):
        meta = real.generate(sampling_params=few(1), **wanted).json()["meta_info"]
        assert meta.keys() == META


def test_logprobs_are_those_of_completions(real):
    params = {"temperature": 0, "max_new_tokens": 4}
    fields = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    answer = real.generate("hello", sampling_params=params, return_text_in_logprobs=True, **fields)
    meta = answer.json()["meta_info"]
    echoed = real.complete("hello", max_tokens=4, logprobs=2, echo=True, temperature=0).json()
    theirs = echoed["choices"][0]["logprobs"]
    ours = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert [text for _, _, text in ours] == theirs["tokens"]
    assert ours[0][0] is None
    values = [value for value, _, _ in ours[1:]]
    assert values == pytest.approx(theirs["token_logprobs"][1:], abs=1e-4)
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    assert tops[0] is None
    assert all(len(top) == 2 and top[0][0] >= top[1][0] for top in tops[1:])
    for (value, token, text), top in zip(ours[1:], tops[1:], strict=True):
        assert [value, token, text] in top or value <= top[1][0]


@pytest.mark.parametrize("start", [1, 3, 4, 5])
def test_logprobs_from_a_start_on_are_the_tail_of_all(real, start):
    fields = {"return_logprob": True, "top_logprobs_num": 1, "sampling_params": few(0)}
    whole = real.generate("hello", logprob_start_len=0, **fields).json()["meta_info"]
    tail = real.generate("hello", logprob_start_len=start, **fields).json()["meta_info"]
    for name in ("input_token_logprobs", "input_top_logprobs"):
        for mine, theirs in zip(tail[name], whole[name][start:], strict=True):
            flat, other = (
                (mine, theirs) if name.endswith("token_logprobs") else (mine[0], theirs[0])
            )
            assert flat[0] == pytest.approx(other[0], abs=1e-4)
            assert flat[1] == other[1]
    assert tail["output_token_logprobs"] == tail["output_top_logprobs"] == []
    assert tail["cached_tokens"] >= start - 1


def test_where_there_is_no_answer_the_prompt_s_logprobs_are_meant(real):
    fields = {"return_logprob": True, "sampling_params": few(0)}
    given, answers_only = (
        real.generate("hello", logprob_start_len=start, **fields).json()["meta_info"]
        for start in (0, -1)
    )
    meta = real.generate("hello", **fields).json()["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    ids = [token for _, token, _ in meta["input_token_logprobs"]]
    assert ids == [token for _, token, _ in given["input_token_logprobs"]]
    assert answers_only["input_token_logprobs"] == []
    fields = {"return_logprob": [True, False, True], "sampling_params": [few(0), few(0), few(1)]}
    *_, answered = metas = [
        answer["meta_info"] for answer in real.generate(["a b", "c d", "e f"], **fields).json()
    ]
    assert len(metas[0]["input_token_logprobs"]) == metas[0]["prompt_tokens"]
    assert metas[1].keys() == META
    assert answered["input_token_logprobs"] == []


def test_choices_can_be_scored_in_one_request(real):
    texts = ["The sky is blue", "The sky is"]
    fields = {"return_logprob": [True, False], "logprob_start_len": [8, -1]}
    scored, plain = real.generate(texts, sampling_params=few(0), **fields).json()
    assert len(scored["meta_info"]["input_token_logprobs"]) == len(texts[0]) - 8
    assert plain["meta_info"].keys() == META


def test_a_stream_s_logprobs_add_up_too(real):
    params = {"temperature": 0, "max_new_tokens": 5}
    fields = {"return_logprob": True, "logprob_start_len": 1, "top_logprobs_num": 1}
    whole = real.generate("hello", sampling_params=params, **fields).json()["meta_info"]
    parts = events(real.generate("hello", sampling_params=params, stream=True, **fields))
    for part in parts:
        meta = part["meta_info"]
        assert len(meta["output_token_logprobs"]) == len(part["output_ids"])
    for name in ("input_token_logprobs", "output_token_logprobs"):
        ids = [token for _, token, _ in parts[-1]["meta_info"][name]]
        assert ids == [token for _, token, _ in whole[name]]


@pytest.mark.parametrize(
    ("text", "rid", "n", "ids"),
    [
        ("a", "mine", 1, ["mine"]),
        ("a", "mine", 2, ["mine_0", "mine_1"]),
        (["a", "b"], "mine", 1, ["mine_0", "mine_1"]),
        (["a", "b"], ["x", "y"], 1, ["x", "y"]),
        (["a", "b"], ["x", "y"], 2, ["x_0", "x_1", "y_0", "y_1"]),
    ],
)
def test_the_client_s_names_come_back(fake, text, rid, n, ids):
    answers = fake.generate(text, rid=rid, sampling_params=few(1, n=n)).json()
    answers = answers if isinstance(answers, list) else [answers]
    assert [answer["meta_info"]["id"] for answer in answers] == ids


def test_every_answer_has_an_id_of_its_own(fake):
    answers = fake.generate(["a", "b"], sampling_params=few(1, n=2)).json()
    assert len({answer["meta_info"]["id"] for answer in answers}) == 4


def test_priority_and_tenant_arrive(monkeypatch, fake):
    seen = requests_seen(fake.engine, monkeypatch)
    body = {"text": "a", "sampling_params": few(1), "priority": 3}
    headers = {"Authorization": "Bearer mine"}
    assert fake.request("POST", "/generate", json=body, headers=headers).is_success
    assert [(request.priority, request.tenant != "") for request in seen] == [(3, True)]


@pytest.mark.parametrize("nothing", [[], ""])
def test_what_sglang_s_frontend_sends_is_taken(fake, nothing):
    params = {
        **few(2),
        "min_new_tokens": 0,
        "stop": [],
        "stop_token_ids": [],
        "stop_regex": nothing,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "ignore_eos": False,
        "regex": None,
        "json_schema": None,
        "skip_special_tokens": True,
        "spaces_between_special_tokens": True,
    }
    assert fake.generate(sampling_params=params, lora_path=None, image_data=None).is_success


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_and_written_once_for_all_its_answers(real, monkeypatch, stream):
    """Else memory, and the time that the event loop is kept, grow with n."""
    prompts = [[*range(5, 205)], [*range(7, 107)]]
    fields = {"text": None, "return_logprob": True, "logprob_start_len": [0, 50]}
    fields |= {"top_logprobs_num": 3, "stream": stream}

    def ask(n):
        sampling = {"max_new_tokens": 2, "n": n, "temperature": 0}
        answer = real.generate(input_ids=prompts, sampling_params=sampling, **fields)
        return metas(answer, stream=stream)

    singles = ask(1)
    real.request("POST", "/flush_cache")
    before = real.engine.stats().computed_tokens
    in_loop = in_loop_at(monkeypatch, native.NativeLogprobs, "of_prompt")
    answers = ask(8)
    assert real.engine.stats().computed_tokens - before < 2 * 300
    assert in_loop == [False] * len(prompts)
    assert len(answers) == 16
    for index, told in enumerate(answers):
        for name in META_LISTS:
            ours, theirs = told[name], singles[index // 8][name]
            assert len(ours) == len(theirs)
            assert [ids_of(entry) for entry in ours] == [ids_of(entry) for entry in theirs]


def metas(answer, *, stream):
    """`meta_info` of each choice, at its end."""
    if not stream:
        return [each["meta_info"] for each in answer.json()]
    ends = {each["index"]: each["meta_info"] for each in events(answer)}
    return [ends[index] for index in sorted(ends)]


def in_loop_at(monkeypatch, owner, name):
    """Whether calls of a method run in an event loop, filled as they come."""
    seen = []
    write = getattr(owner, name)

    def spy(*args):
        seen.append(in_event_loop())
        return write(*args)

    monkeypatch.setattr(owner, name, spy)
    return seen


def ids_of(entry):
    """The tokens of an entry of one of META_LISTS: one, several, or none."""
    if entry is None or not entry:
        return entry
    return entry[1] if not isinstance(entry[0], list) else [token for _, token, _ in entry]


@pytest.mark.parametrize("n", [1, 2])
def test_an_answer_is_written_off_the_event_loop(real, monkeypatch, n):
    """64 answers with the prompt's log-probabilities would keep all others waiting for seconds."""
    in_loop = in_loop_at(monkeypatch, native.NativeWriter, "_entry")
    scored = {"return_logprob": True, "logprob_start_len": 0}
    told = real.generate(sampling_params={"max_new_tokens": 2, "n": n}, **scored).json()
    assert in_loop == [False] * n
    assert isinstance(told, list) is (n > 1)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_is_scored_although_its_first_answer_is_aborted(real, monkeypatch, stream):
    client = real.engine.client
    streamed = client.stream

    async def first_is_aborted(requests):
        if len(requests) > 1:
            yield RequestOutput(requests[0].request_id, finish_reason=FinishReason.ABORT)
            requests = requests[1:]
        async for output in streamed(requests):
            yield output

    monkeypatch.setattr(client, "stream", first_is_aborted)
    answer = real.generate(
        input_ids=[[*range(5, 205)]],
        text=None,
        return_logprob=True,
        logprob_start_len=0,
        stream=stream,
        sampling_params={"max_new_tokens": 3, "n": 3, "temperature": 0},
    )
    told = metas(answer, stream=stream)
    assert [len(each["input_token_logprobs"]) for each in told] == [0, 200, 200]
