"""A deployment grows while requests wait, and its weights are replaced while it serves.

    RAY_AUTH_MODE=token python -m fuzz.replica_life [--shrink]

On a Ray that `ray start --head` has started. Threads ask for the same few prompts all the time.
First there is one replica, and three there may be; with --shrink until there is one again, for
which Ray Serve waits ten minutes. Then a second `radixlm deploy` replaces the model. Each answer
has to be that of one of the two models. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from fuzz.asking import Asking
from radixlm.testing.deployed import Deployed, serving, until
from radixlm.testing.ports import free_port
from radixlm.testing.reference import make_checkpoint

_PROMPTS = [f"{name} went to the market and" for name in ("Anna", "Ben", "Clara", "David")]
_SECONDS, _SECONDS_TO_SHRINK = 120.0, 900.0
_RAY = str(Path(sys.executable).with_name("ray"))


@contextmanager
def cluster() -> Iterator[str]:
    """A Ray of this machine alone; yields its address."""
    port = free_port()
    head = ["--head", "--node-ip-address=127.0.0.1", f"--port={port}", "--num-cpus=8"]
    flags = ["--include-dashboard=false", "--disable-usage-stats"]
    subprocess.run([_RAY, "start", *head, *flags], check=True, stdout=subprocess.DEVNULL)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        subprocess.run([_RAY, "stop", "--force"], check=False, stdout=subprocess.DEVNULL)


class Load:
    """Threads that ask until it is closed. answers: how many of each, by prompt; errors by text."""

    def __init__(self, deployed: Deployed, threads: int) -> None:
        self.answers: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[str] = Counter()
        self._deployed = deployed
        self.close = Asking(self._ask, threads).close

    def _ask(self, chosen: random.Random) -> None:
        prompt = chosen.choice(_PROMPTS)
        try:
            answer = self._deployed.complete(prompt, max_tokens=24)
        except httpx.TransportError as error:
            self.errors[type(error).__name__] += 1
            time.sleep(0.2)
            return
        if answer.status_code == 200:
            self.answers[prompt, answer.json()["choices"][0]["text"]] += 1
        else:
            self.errors[f"{answer.status_code}: {answer.text[:100]}"] += 1


def texts(deployed: Deployed) -> dict[str, str]:
    found = {}
    for prompt in _PROMPTS:
        answer = deployed.complete(prompt, max_tokens=24)
        if answer.status_code != 200:
            raise RuntimeError(f"{prompt!r}: {answer.status_code}, {answer.text}")
        found[prompt] = answer.json()["choices"][0]["text"]
    return found


def grown(deployed: Deployed) -> dict[str, object]:
    """With more requests than a replica is to have."""
    load = Load(deployed, 12)
    seconds = until(lambda: len(deployed.replicas()) == 3, _SECONDS)
    time.sleep(5)
    load.close()
    return {"seconds until there were three": seconds} | counted(deployed, load)


def shrunk(deployed: Deployed) -> dict[str, object]:
    """With one request at a time."""
    load = Load(deployed, 1)
    seconds = until(lambda: len(deployed.replicas()) == 1, _SECONDS_TO_SHRINK)
    load.close()
    return {"seconds until there was one": seconds} | counted(deployed, load)


def counted(deployed: Deployed, load: Load) -> dict[str, object]:
    chosen = {name: sum(each["chosen"].values()) for name, each in deployed.replicas().items()}
    return {
        "chosen": chosen,
        "answers": load.answers.total(),
        "different": len(load.answers) - len(_PROMPTS),
        "errors": dict(load.errors),
    }


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--shrink", action="store_true")
    args = options.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as scratch, cluster() as address:
        other = make_checkpoint(Path(scratch) / "other", "llama", seed=1)
        flags = ["--ray-address", address, "--threads", "1", "--kv-tokens", "3000"]
        few = ["--replicas", "1", "--max-replicas", "3", "--max-running-requests", "2"]
        with serving("deploy", *flags, *few) as first:
            found["grown"] = grown(first)
            print("grown", json.dumps(found["grown"]), flush=True)
            port = str(first.client.base_url.port)
            if args.shrink:
                found["shrunk"] = shrunk(first)
                print("shrunk", json.dumps(found["shrunk"]), flush=True)
            before, load = texts(first), Load(first, 3)
            with serving("deploy", *flags, "--replicas", "2", "--port", port, str(other)):
                time.sleep(5)
                load.close()
                after = texts(first)  # at the same address
                right = {*before.items(), *after.items()}
                of_none = sum(count for each, count in load.answers.items() if each not in right)
                of_new = sum(load.answers[each] for each in after.items())
                found["replaced"] = {
                    "answers": load.answers.total(),
                    "of the new model": of_new,
                    "of none": of_none,
                    "errors": dict(load.errors),
                    "replicas": sorted(first.replicas()),
                }
                print("replaced", json.dumps(found["replaced"]), flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
