"""Processes of a deployment die or hang under load: what becomes of requests, and of the cache.

    python -m fuzz.replica_faults [--kills 30] [--tp-size 2]

Threads ask for the same few prompts again and again. Each answer is compared with the one of the
start. Where the next replica computes another answer than was begun, a request ends with an error
that says so; where the ingress or the proxy dies, connections may break. After each kind: in how
many seconds the hit rate is what it was, and whether on each replica free + private + locked +
evictable == capacity, with nothing private or locked once all is answered. With --tp-size only a
rank of a replica is killed. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import httpx

from fuzz.asking import Asking
from radixlm.testing.deployed import INGRESS, PROXY, RANK, REPLICA, ROUTER, Deployed, serving, until

_PROMPTS = [
    f"{name} lived in a village near the forest. One day {name} went to the market and"
    for name in ("Anna", "Ben", "Clara", "David", "Emma", "Fritz")
]
_WITHIN_SECONDS, _START_SECONDS = 60.0, 120.0
_RATE_SECONDS = 10.0
_HANG_SECONDS = 20.0


class Load:
    """Threads that ask until it is closed. outcomes: how many of each kind. hit_rate: at first."""

    def __init__(self, deployed: Deployed, threads: int = 6) -> None:
        self.outcomes: Counter[str] = Counter()
        self._deployed = deployed
        self._wanted = {prompt: self._text(prompt) for prompt in _PROMPTS}
        self._hits: list[tuple[float, int, int]] = []  # when, tokens cached, tokens of the prompt
        self.close = Asking(self._ask, threads).close
        time.sleep(2 * _RATE_SECONDS)
        self.hit_rate = self._rate()

    def is_back(self) -> bool:
        """Whether its hit rate is what it was."""
        return self._rate() >= 0.99 * self.hit_rate

    def _rate(self) -> float:
        """Of the last seconds."""
        since = time.monotonic() - _RATE_SECONDS
        last = [each[1:] for each in self._hits if each[0] >= since]
        return sum(cached for cached, _ in last) / max(sum(prompt for _, prompt in last), 1)

    def _text(self, prompt: str) -> str:
        text: str = self._deployed.complete(prompt).json()["choices"][0]["text"]
        return text

    def _ask(self, chosen: random.Random) -> None:
        prompt = chosen.choice(_PROMPTS)
        try:
            answer = self._deployed.complete(prompt)
            body = answer.json()
        except httpx.TransportError:
            self.outcomes["connection broke"] += 1
            time.sleep(0.2)
            return
        except ValueError:  # the proxy's own words
            self.outcomes[f"status {answer.status_code}, no JSON"] += 1
            return
        if answer.status_code == 200:
            right = body["choices"][0]["text"] == self._wanted[prompt]
            self.outcomes["right" if right else "WRONG"] += 1
            report = body["cache_report"]
            cached = sum(report["cached_tokens"].values())
            self._hits.append((time.monotonic(), cached, report["prompt_tokens"]))
        elif "is gone" in body["error"]["message"]:
            self.outcomes["had begun, ended with an error"] += 1
        else:
            self.outcomes[f"LOST: {body['error']['message'][:80]}"] += 1


def faults(deployed: Deployed, kills: int) -> dict[str, object]:
    """Each kind of fault, then what was seen; seconds until all is as before."""
    plan = [("replica", REPLICA, kills), ("router", ROUTER, max(kills // 5, 1))]
    plan += [("ingress", INGRESS, max(kills // 10, 1)), ("proxy", PROXY, max(kills // 10, 1))]
    return kill(deployed, plan) | hang(deployed)


def kill(deployed: Deployed, plan: Sequence[tuple[str, str, int]]) -> dict[str, object]:
    """plan: what, the title of its process, how often."""
    found: dict[str, object] = {}
    for name, title, times in plan:
        load, back = Load(deployed), []
        for done in range(1, times + 1):
            count = len(deployed.pids(title))
            [victim, *_] = deployed.pids(title)
            os.kill(victim, signal.SIGKILL)
            seconds = until(partial(_whole, deployed, title, count, victim), _START_SECONDS)
            back.append(seconds)
            seen = "not back" if seconds is None else f"back in {seconds:.1f} s"
            print(f"{name} {done} of {times}: {seen}", flush=True)
        found[name] = _seen(deployed, load, back)
        print(name, json.dumps(found[name]), flush=True)
    return found


def hang(deployed: Deployed) -> dict[str, object]:
    """Processes that stop, for a while or for good."""
    found: dict[str, object] = {}
    for name, title, seconds in (
        ("replica hangs", REPLICA, _HANG_SECONDS),
        ("replica hangs for good", REPLICA, None),
        ("router hangs for good", ROUTER, None),
    ):
        load = Load(deployed)
        found[name] = _seen(deployed, load, [_hang(deployed, title, seconds)])
        print(name, json.dumps(found[name]), flush=True)
    return found


def _hang(deployed: Deployed, title: str, seconds: float | None) -> float | None:
    """A process stops for so long, or for good. After how many seconds all is as before."""
    count = len(deployed.pids(title))
    [victim, *_] = deployed.pids(title)
    os.kill(victim, signal.SIGSTOP)
    if seconds is None:
        return until(partial(_whole, deployed, title, count, victim), _START_SECONDS)
    time.sleep(seconds)
    if victim in deployed.pids(title):
        os.kill(victim, signal.SIGCONT)
    return until(lambda: len(deployed.replicas()) == 2, _WITHIN_SECONDS)


def _whole(deployed: Deployed, title: str, count: int, gone: int) -> bool:
    pids = deployed.pids(title)
    reported = deployed.replicas()
    return gone not in pids and len(pids) == count and len(reported) == 2


def _seen(deployed: Deployed, load: Load, back: list[float | None]) -> dict[str, object]:
    """Ends the load."""
    hits = until(load.is_back, _WITHIN_SECONDS)
    load.close()
    known = sorted(each for each in back if each is not None)
    return {
        "times": len(back),
        "outcomes": dict(load.outcomes),
        "not back": sum(each is None for each in back),
        "median_seconds": round(statistics.median(known), 1) if known else None,
        "most_seconds": round(known[-1], 1) if known else None,
        "hit_rate": round(load.hit_rate, 3),
        "hit_rate_back_seconds": None if hits is None else round(hits, 1),
        "conserved": until(partial(_conserved, deployed), _WITHIN_SECONDS) is not None,
    }


def _conserved(deployed: Deployed) -> bool:
    """Every replica's slots are free or evictable, and none is missing."""
    pools = [
        deployed.client.get("/cache/tree", params={"replica": name}).json()["totals"]
        for name in deployed.replicas()
    ]
    idle = len(pools) == 2 and all(pool["private"] == pool["locked"] == 0 for pool in pools)
    return idle and all(pool["free"] + pool["evictable"] == pool["capacity"] for pool in pools)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--tp-size", type=int, default=1)
    args = parser.parse_args()
    size = str(args.tp_size)
    with serving("deploy", "--replicas", "2", "--kv-tokens", "3000", "--tp-size", size) as deployed:
        if args.tp_size > 1:
            found = kill(deployed, [("rank", RANK, args.kills)])
        else:
            found = faults(deployed, args.kills)
        time.sleep(15)  # what never came is taken back by then
        requests = {name: each["requests"] for name, each in deployed.replicas().items()}
        found["requests left in the router's books"] = requests
    print(json.dumps(found))


if __name__ == "__main__":
    main()
