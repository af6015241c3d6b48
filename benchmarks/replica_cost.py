"""What the router and Ray add to the time to the first token, idle, beside one server.

    python -m benchmarks.replica_cost [--rounds 60]

One server and two replicas in turns: streams of a short prompt, and /health, which the ingress
answers alone, so that it costs Ray's proxy and one of its calls. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from radixlm.testing.deployed import Deployed, serving

_PROMPT = "Once upon a time there was"


def first_byte_ms(deployed: Deployed) -> float:
    """Until the first token of a stream."""
    body = {"prompt": _PROMPT, "max_tokens": 4, "temperature": 0, "stream": True}
    begun = time.perf_counter()
    with deployed.client.stream("POST", "/v1/completions", json=body) as answer:
        came = [time.perf_counter() for line in answer.iter_lines() if line.startswith("data: ")]
    return 1e3 * (came[0] - begun)


def get_ms(deployed: Deployed) -> float:
    """Of a route that the ingress answers alone: what Ray's proxy takes, and one call."""
    begun = time.perf_counter()
    deployed.client.get("/health")
    return 1e3 * (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    flags = ("--kv-tokens", "3000")
    with (
        serving("serve", *flags) as one,
        serving("deploy", "--replicas", "2", *flags) as two,
    ):
        times: dict[str, list[float]] = {}
        for round_ in range(args.rounds + 5):
            for name, deployed in (("one server", one), ("two replicas", two)):
                for what, measure in (("first token", first_byte_ms), ("health", get_ms)):
                    spent = measure(deployed)
                    if round_ >= 5:
                        times.setdefault(f"{name}, {what}", []).append(spent)
                    time.sleep(0.02)
    found = {name: round(statistics.median(each), 2) for name, each in times.items()}
    found["added_ms"] = round(
        found["two replicas, first token"] - found["one server, first token"], 2
    )
    found["ray_alone_ms"] = round(found["two replicas, health"] - found["one server, health"], 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
