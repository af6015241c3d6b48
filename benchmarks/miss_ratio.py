"""Does the cache know what a pool of another size would be worth?

    python -m benchmarks.miss_ratio [--requests 3000] [--pool 24000] [--seed 0]

Each workload runs with a pool, where the cache predicts the hit rates of half, twice and four times
that pool; then it really runs with those. No model: a FakeRunner answers. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator
from functools import partial

import numpy as np

from benchmarks.peer_workloads import Draw
from radixlm.cache import RadixCache
from radixlm.core.keys import as_key
from radixlm.core.misses import POOL_SCALES
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.scheduler import Scheduler, WaitingRoom, make_order
from radixlm.testing.fake_runner import FakeRunner

VOCAB = 4_096
CLIENTS = 8
BUDGET = 2_048

# A client: yields a prompt and how many tokens to answer, and is sent the answer.
Client = Generator[tuple[list[int], int], list[int], None]


class Chats:
    """Conversations of 2 to 12 turns under one of three system prompts; the one that goes on is
    the likelier the more recently it spoke.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Draw(VOCAB, seed)
        self._random = np.random.default_rng(seed)
        self._systems = [self._draw.tokens(300) for _ in range(3)]
        self._open: list[tuple[list[int], int]] = []

    def client(self) -> Client:
        while True:
            if len(self._open) < 80 or self._random.random() < 0.1:
                turns = int(self._random.integers(2, 13))
                history = list(self._systems[self._random.integers(3)])
            else:
                back = int(self._random.geometric(0.04))
                history, turns = self._open.pop(max(len(self._open) - back, 0))
            prompt = history + self._draw.tokens(int(self._random.integers(20, 120)))
            answer = yield prompt, 24
            if turns > 1:
                self._open.append((prompt + answer, turns - 1))
            del self._open[:-200]


class FewShot:
    """120 subjects of very different popularity, each with its own examples, one question each."""

    def __init__(self, seed: int) -> None:
        self._draw = Draw(VOCAB, seed)
        self._random = np.random.default_rng(seed)
        head = self._draw.tokens(60)
        lengths = self._random.integers(200, 900, 120).tolist()
        self._subjects = [head + self._draw.tokens(length) for length in lengths]
        weights = 1 / np.arange(1, 121) ** 0.8
        self._shares = weights / weights.sum()

    def client(self) -> Client:
        while True:
            subject = self._subjects[self._random.choice(120, p=self._shares)]
            yield subject + self._draw.tokens(int(self._random.integers(20, 80))), 4


class Trees:
    """Problems thought about in trees, 60 of them open at a time: each goes on from one of its own
    last thoughts, the likelier the more recently somebody worked on it.
    """

    def __init__(self, seed: int) -> None:
        self._draw = Draw(VOCAB, seed)
        self._random = np.random.default_rng(seed)
        self._tools = [self._draw.tokens(500) for _ in range(4)]
        self._open: list[list[list[int]]] = []

    def client(self) -> Client:
        while True:
            if len(self._open) < 60:
                tools = self._tools[self._random.integers(4)]
                thoughts = [tools + self._draw.tokens(200)]
            else:
                back = int(self._random.geometric(0.06))
                thoughts = self._open.pop(max(len(self._open) - back, 0))
            self._open.append(thoughts)  # others may work on it, too
            at = int(self._random.integers(max(len(thoughts) - 12, 0), len(thoughts)))
            prompt = thoughts[at] + self._draw.tokens(30)
            answer = yield prompt, 20
            thoughts.append((prompt + answer)[:3_000])
            if len(thoughts) > 40 and thoughts in self._open:
                self._open.remove(thoughts)


WORKLOADS: dict[str, Callable[[int], Chats | FewShot | Trees]] = {
    "chats": Chats,
    "few-shot": FewShot,
    "trees of thought": Trees,
}


def run(workload: Chats | FewShot | Trees, pool: int, requests: int) -> tuple[float, list[float]]:
    """The hit rate, and those that the cache predicts for POOL_SCALES times the pool."""
    scheduler = Scheduler(
        WaitingRoom(RadixCache(pool), make_order("lpm")),
        chunked_prefill_size=BUDGET,
        max_running_requests=CLIENTS,
        schedule_conservativeness=1.0,
    )
    runner = FakeRunner(pool, CLIENTS, VOCAB)
    clients: dict[str, tuple[Client, list[int]]] = {}
    sent = 0

    def send(client: Client, prompt: list[int], out: int) -> None:
        nonlocal sent
        sent += 1
        params = SamplingParams(max_tokens=out, temperature=0, ignore_eos=True)
        scheduler.add(GenerateRequest(str(sent), as_key(prompt), params, out, seed=0))
        clients[str(sent)] = (client, [])

    for _ in range(CLIENTS):
        client = workload.client()
        send(client, *next(client))
    while clients:
        batch = scheduler.schedule()
        for news in scheduler.update(batch, runner.execute(batch), {}):
            client, answer = clients[news.request_id]
            answer += news.token_ids
            if news.finish_reason is not None:
                del clients[news.request_id]
                if sent < requests:
                    send(client, *client.send(answer))
    counters = scheduler.counters
    expected = [tokens / counters.prompt_tokens for tokens in counters.expected_tokens]
    return counters.cached_tokens / counters.prompt_tokens, expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--pool", type=int, default=24_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for name, make in WORKLOADS.items():
        rate = partial(run, requests=options.requests)
        _, predicted = rate(make(options.seed), options.pool)
        print(f"{name}: hit rates with {options.pool} tokens, times")
        rows[name] = []
        for scale, expected in zip(POOL_SCALES, predicted, strict=True):
            actual, _ = rate(make(options.seed), int(scale * options.pool))
            rows[name].append({"scale": scale, "predicted": expected, "actual": actual})
            off = 100 * (expected - actual)
            print(f"  {scale:3g}: predicted {expected:6.1%}, actual {actual:6.1%}, {off:+.1f}")
    print(json.dumps({"benchmark": "miss_ratio", "pool": options.pool, "workloads": rows}))


if __name__ == "__main__":
    main()
