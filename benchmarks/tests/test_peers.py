"""benchmarks/peers.py: what it sends, what it makes of answers, and what it says of failures."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import httpx
import pytest

from benchmarks.peer_client import Peer, PeerError, gaps
from benchmarks.peer_workloads import WORKLOADS, Ask, Draw
from benchmarks.peers import compare, main, run
from benchmarks.served import serving

URL = "http://peer"
VOCAB = 1_000


def played(name, scale=1.0, seed=0):
    """The stages of a workload whose every answer is [1, 2]."""
    stages = WORKLOADS[name].stages(Draw(VOCAB, seed), scale)
    found = [next(stages)]
    while True:
        try:
            found.append(stages.send([[1, 2]] * len(found[-1])))
        except StopIteration:
            return found


@pytest.mark.parametrize(
    ("name", "sizes", "lengths", "out"),
    [
        ("W1", [64], [1_050], 32),
        ("W2", [8] * 6, [100 + 102 * turn for turn in range(6)], 32),
        ("W3", [3, 9, 27], [864, 930, 996], 32),
        ("W4", [16], [500], 32),
        ("W5", [32], [4_116], 128),
        ("W6", [16], [128], 64),
    ],
)
def test_workloads_are_those_of_the_table(name, sizes, lengths, out):
    stages = played(name)
    assert [len(stage) for stage in stages] == sizes
    for stage, length in zip(stages, lengths, strict=True):
        assert {(len(ask.prompt), ask.out) for ask in stage} == {(length, out)}


def test_the_same_seed_sends_the_same():
    assert played("W3") == played("W3") != played("W3", seed=1)


def test_scale_changes_the_number_of_requests():
    assert [len(stage) for stage in played("W1", 0.25)] == [16]
    assert [len(stage) for stage in played("W2", 0.01)] == [1] * 6


@pytest.mark.parametrize("name", ["W1", "W5"])
def test_a_shared_prefix_is_shared_and_nothing_else(name):
    (stage,) = played(name, 0.1)
    shared = {"W1": 1_000, "W5": 4_096}[name]
    assert len({tuple(ask.prompt[:shared]) for ask in stage}) == 1
    assert len({tuple(ask.prompt[shared:]) for ask in stage}) == len(stage)


@pytest.mark.parametrize(("name", "width"), [("W2", 1), ("W3", 3)])
def test_a_prompt_holds_its_parent_and_the_answer(name, width):
    stages = played(name, 0.5)
    for above, below in pairwise(stages):
        for index, ask in enumerate(below):
            head = [*above[index // width].prompt, 1, 2]
            assert ask.prompt[: len(head)] == head


def test_gaps_share_the_time_of_tokens_that_come_together():
    assert gaps([1.0, 3.0, 4.0], [1, 2, 1]) == [1.0, 1.0, 1.0]
    assert gaps([5.0], [3]) == [0.0, 0.0]


def stream(*chunks):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def answer(body, *, ids=True, start=7):
    """A whole answer, in the two chunks that a server may make of it."""
    tokens = list(range(start, start + body["max_tokens"]))
    parts = [tokens[:1], tokens[1:]]
    chunks = [
        {"choices": [{"text": f"{part}"} | ({"token_ids": part} if ids else {})]} for part in parts
    ]
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(tokens)}
    details = {"prompt_tokens_details": {"cached_tokens": 3}} if ids else {}
    return stream(*chunks, {"choices": [], "usage": usage | details})


class Fake:
    """A server; `answers` makes the response to a completion from its body."""

    def __init__(self, answers, flush=404):
        self.answers, self.flush, self.bodies = answers, flush, []

    def __call__(self, request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path == "/v1/completions":
            body = json.loads(request.content)
            self.bodies.append(body)
            made = self.answers(body)
            return made if isinstance(made, httpx.Response) else httpx.Response(200, text=made)
        if request.url.path == "/flush_cache":
            return httpx.Response(self.flush)
        return httpx.Response(404)


def with_peer(fake, work, url=URL):
    """Run work(peer), an async function, against the fake."""

    async def do():
        transport = httpx.MockTransport(fake)
        async with httpx.AsyncClient(transport=transport) as client:
            peer = Peer(url, client, None)
            await peer.connect(Draw(VOCAB, 0))
            return await work(peer)

    return asyncio.run(do())


def test_a_request_is_greedy_and_of_fixed_length():
    fake = Fake(answer)
    reply = with_peer(fake, lambda peer: peer.ask(Ask([5, 6], 4)))
    body = fake.bodies[-1]
    assert body["prompt"] == [5, 6]
    assert (body["max_tokens"], body["temperature"], body["ignore_eos"]) == (4, 0, True)
    assert (body["model"], body["return_token_ids"]) == ("m", True)
    assert reply.token_ids == [7, 8, 9, 10]
    assert (reply.prompt_tokens, reply.output_tokens, reply.cached) == (2, 4, 3)
    assert reply.first > 0
    assert len(reply.gaps) == 3


def test_a_server_that_refuses_to_return_ids_is_not_asked_again():
    def refuse(body):
        if "return_token_ids" in body:
            return httpx.Response(400, text="unknown field")
        return answer(body, ids=False)

    reply = with_peer(Fake(refuse), lambda peer: peer.ask(Ask([5], 2)))
    assert reply.token_ids is None
    assert reply.cached is None


@pytest.mark.parametrize(("status", "path"), [(200, "/flush_cache"), (404, None)])
def test_it_finds_out_how_to_flush(status, path):
    async def found(peer):
        await peer.flush()
        return peer.flushes_at

    assert with_peer(Fake(answer, flush=status), found) == path


@pytest.mark.parametrize("base", [f"{URL}/v1", f"{URL}/v1/", URL])
def test_the_base_may_end_in_the_version(base):
    fake = Fake(answer)
    with_peer(fake, lambda peer: peer.ask(Ask([5], 2)), url=base)
    assert len(fake.bodies) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (httpx.Response(422, text="too long"), "422: too long"),
        (answer({"prompt": [5], "max_tokens": 1}), "1 tokens instead of 2"),
        (stream({"error": {"message": "the fuse blew"}}), "the fuse blew"),
        (stream({"choices": [{"text": "x"}]}), "0 tokens instead of 2"),
    ],
)
def test_what_a_server_does_wrong_is_said(made, said):
    def answers(body):
        return made if body["prompt"] == [5] else answer(body)

    with pytest.raises(PeerError, match=said):
        with_peer(Fake(answers), lambda peer: peer.ask(Ask([5], 2)))


def chat_of(fake, first=None):
    def stages():
        return WORKLOADS["W2"].stages(Draw(VOCAB, 0), 0.2)

    return with_peer(fake, lambda peer: run(peer, stages(), first, Draw(VOCAB, 1)))


def test_later_prompts_hold_the_servers_own_answers():
    done = chat_of(Fake(answer))
    assert done.answers == "own"
    assert len(done.replies) == 12
    assert done.replies[2].prompt[100:132] == list(range(7, 39))


def test_without_ids_they_hold_the_first_servers():
    first = chat_of(Fake(answer))
    done = chat_of(Fake(lambda body: answer(body, ids=False)), first)
    assert done.answers == "first server's"
    assert compare(first, done) == (12, 12)  # by text


def test_without_any_ids_they_hold_random_ones():
    done = chat_of(Fake(lambda body: answer(body, ids=False)))
    assert done.answers == "random"
    assert len(done.replies[2].prompt) == 232


def test_only_outputs_of_the_same_prompt_are_compared():
    first = chat_of(Fake(answer))
    other = chat_of(Fake(lambda body: answer(body, start=8)))
    assert compare(first, other) == (0, 2)


@pytest.mark.slow
def test_two_of_our_servers(capsys, tmp_path):
    # In bfloat16 what a cached prefix was computed beside may round to another token.
    flags = ["--context-length", "2000", "--kv-tokens", "4000", "--dtype", "float32"]
    with serving(*flags) as first, serving(*flags, "--disable-radix-cache") as second:
        one, two = first.url, second.url
        arguments = [one, two, "--scale", "0.1", "--vocab-size", "97", "--only", "W2,W4,W5"]
        code = main([*arguments, "--json", str(tmp_path / "report.json")])
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((tmp_path / "report.json").read_text())
    rows = {(row["workload"], row["server"]): row for row in report["results"]}
    assert code == 1  # W5 is longer than these servers' context
    assert "said 400" in rows["W5", one]["error"]
    for workload, requests in (("W2", 6), ("W4", 2)):
        row = rows[workload, two]
        assert row["equal"] == row["compared"] == row["requests"] == requests
    assert [server["flushes_at"] for server in report["servers"]] == ["/flush_cache"] * 2


def test_a_server_that_is_not_there_is_named(capsys):
    assert main(["http://127.0.0.1:9"]) == 2
    assert "http://127.0.0.1:9 does not answer" in capsys.readouterr().err
