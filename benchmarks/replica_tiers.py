"""What replicas of one machine share by their disk folder.

    python -m benchmarks.replica_tiers

One replica computes a prompt and writes it, all drop what they have in memory, and the other one is
asked. Ends in one JSON line.
"""

from __future__ import annotations

import json
import tempfile

from radixlm.testing.deployed import Deployed, serving, until

_BLOCK = 64
_TALE = "Anna lived in a village near the forest. One day Anna went to the market and" + "".join(
    f" saw house {n} with a cat, a dog and {n} birds;" for n in range(20)
)
_TIMES = 10


def shared(deployed: Deployed) -> dict[str, object]:
    """A prompt that one replica computed and wrote, asked of the other."""
    first = deployed.complete(_TALE).json()["cache_report"]
    wanted = first["prompt_tokens"] - first["prompt_tokens"] % _BLOCK

    def known(name: str) -> bool:
        tree = deployed.client.get("/cache/tree", params={"replica": name}).json()
        return bool(tree["totals"]["disk"] >= wanted)

    seconds = until(lambda: all(known(name) for name in deployed.replicas()), 60)

    def forgotten() -> bool:
        offers = deployed.client.post("/router/explain", json={"prompt": _TALE}).json()["offers"]
        return not any(each["cached_tokens"] for each in offers)

    for _ in range(_TIMES):
        deployed.client.post("/flush_cache").raise_for_status()
        until(forgotten, 30)
        report = deployed.complete(_TALE).json()["cache_report"]
        if report["replica"] != first["replica"]:
            break
    return {
        "seconds until both know it": seconds,
        "prompt tokens": first["prompt_tokens"],
        "first": first["cached_tokens"],
        "the other replica was asked": report["replica"] != first["replica"],
        "then": report["cached_tokens"],
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--replicas", "2", "--kv-tokens", "3000", "--disk-cache", folder]
        flags += ["--disk-cache-gb", "0.1", "--disk-write-policy", "all"]
        flags += ["--disk-block-tokens", str(_BLOCK)]
        with serving("deploy", *flags) as deployed:
            print(json.dumps(shared(deployed)))


if __name__ == "__main__":
    main()
