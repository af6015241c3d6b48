"""A batch of two prefixes, of which each of two replicas is to compute one."""

from __future__ import annotations

import json
from collections.abc import Iterable

NAMES = ("Ann", "Zoe")


def lines_of(tale: str) -> str:
    """Prompts that begin by name, then with `tale`."""
    prompts = [f"{name} {tale}, and {n}" for n in range(20) for name in NAMES]
    lines = [
        {
            "custom_id": f"{n} {prompt[:3]}",
            "url": "/v1/completions",
            "body": {"prompt": prompt, "max_tokens": 4, "cache_report": True},
        }
        for n, prompt in enumerate(prompts)
    ]
    return "\n".join(map(json.dumps, lines))


def check_homes(answers: Iterable[str]) -> None:
    """Each line is answered, and each prefix by a replica of its own."""
    homes: dict[str, set[str]] = {name: set() for name in NAMES}
    found = [*map(json.loads, answers)]
    assert len(found) == 40
    for each in found:
        name = each["custom_id"].split()[1]
        homes[name].add(each["response"]["body"]["cache_report"]["replica"])
    assert [len(each) for each in homes.values()] == [1, 1]
    assert homes["Ann"] != homes["Zoe"]
