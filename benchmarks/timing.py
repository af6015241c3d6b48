"""Whether the time to the first token tells that somebody else has sent a prompt.

    python -m benchmarks.timing [--trials 1000] [--prompts 64 512]

`radixlm serve` with the demo model, a victim's and an attacker's key. In each trial the victim
sends a fresh prompt; then the attacker asks either for the same one or for one that nobody has
sent, by the toss of a coin, and takes the time. The server is idle otherwise, the attacker sits on
the same machine, and the victim has asked just before: nothing could be better for the attack.

    shared          both keys share the cache: the attacker must be expected to tell
    other salt      the same server, but victim and attacker send a cache_salt each
    isolated        a server with --isolate-by-key
    nothing sent    the same server; "the same one" is a prompt that the victim has not sent either

The area under the ROC curve is the probability that a prompt nobody has sent takes longer than one
the victim has: 1 is told at once, 0.5 is not told at all. Its interval (99 %) is DeLong's. Wanted:
it holds 0.5 wherever the cache is not shared, and no cached tokens are told there. Ends in one JSON
line.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from tqdm import tqdm

from benchmarks.peer_workloads import Draw
from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.served import median, serving
from benchmarks.wire import Pool, request_bytes

VOCAB = 2_048
VICTIM, ATTACKER = "the-victims-key", "the-attackers-key"
KV_TOKENS = 65_536
WARM_UP = 20
Z_99 = 2.5758


@dataclass(frozen=True, slots=True)
class Setting:
    """Who shares what. isolated: which of the two servers is asked; sends: whether the victim sends
    what the attacker asks for.
    """

    name: str
    isolated: bool
    victim: dict[str, str] = field(default_factory=dict)
    attacker: dict[str, str] = field(default_factory=dict)
    sends: bool = True


SETTINGS = (
    Setting("shared", isolated=False),
    Setting("other salt", False, {"cache_salt": "victim's"}, {"cache_salt": "attacker's"}),
    Setting("isolated", isolated=True),
    Setting("nothing sent", isolated=True, sends=False),
)


@dataclass(slots=True)
class Seen:
    """Seconds to the first token of the attacker's prompts. cached: the most tokens of one that it
    was told to be cached; the first token may be one of its own earlier prompts, by chance.
    """

    known: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    cached: int = 0


class Lab:
    """The two servers, and everything that is drawn by chance."""

    def __init__(self, shared: int, isolated: int, seed: int) -> None:
        self._pools = {False: Pool(shared), True: Pool(isolated)}
        self._draw = Draw(VOCAB, seed)
        self._random = random.Random(seed)

    async def trial(self, setting: Setting, length: int, seen: Seen) -> None:
        """The victim asks, then the attacker."""
        prompt, other = self._draw.tokens(length), self._draw.tokens(length)
        sent = prompt if setting.sends else self._draw.tokens(length)
        await self._ask(setting, VICTIM, sent, setting.victim)
        known = self._random.random() < 0.5
        wanted = prompt if known else other
        seconds, cached = await self._ask(setting, ATTACKER, wanted, setting.attacker)
        (seen.known if known else seen.fresh).append(seconds)
        seen.cached = max(seen.cached, cached)

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.close()

    async def _ask(
        self, setting: Setting, key: str, prompt: Sequence[int], fields: dict[str, str]
    ) -> tuple[float, int]:
        """Seconds to the first token, and how many tokens of the prompt were cached."""
        body = {
            "prompt": prompt,
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        data = request_bytes("POST", "/v1/completions", body, key=key)
        answer = await self._pools[setting.isolated].ask(data)
        assert answer.status == 200, bytes(answer.body)
        assert answer.first is not None
        usage = json.loads(answer.body.split(b"\n\n")[-3].removeprefix(b"data: "))["usage"]
        return answer.first, usage["prompt_tokens_details"]["cached_tokens"]


def roc_area(known: Sequence[float], fresh: Sequence[float]) -> tuple[float, float, float]:
    """The probability that a fresh one takes longer, ties counting half, and its 99 % interval.

    Source: DeLong, DeLong & Clarke-Pearson, Biometrics 44 (1988), for one curve.
    """
    difference = np.asarray(fresh)[:, None] - np.asarray(known)[None, :]
    wins = np.heaviside(difference, 0.5)
    area = float(wins.mean())
    spread = wins.mean(axis=1).var(ddof=1) / len(fresh) + wins.mean(axis=0).var(ddof=1) / len(known)
    reach = Z_99 * float(spread) ** 0.5
    return area, max(area - reach, 0.0), min(area + reach, 1.0)


async def measure(lab: Lab, lengths: Sequence[int], trials: int) -> dict[tuple[str, int], Seen]:
    """What was seen by setting and length. Settings take turns, so all see the same machine."""
    found = {(setting.name, length): Seen() for setting in SETTINGS for length in lengths}
    for number in tqdm(range(WARM_UP + trials), desc="trials", dynamic_ncols=True):
        for length in lengths:
            for setting in SETTINGS:
                warm = number >= WARM_UP
                seen = found[setting.name, length] if warm else Seen()
                await lab.trial(setting, length, seen)
    await lab.close()
    return found


def rows_of(found: dict[tuple[str, int], Seen]) -> list[dict[str, object]]:
    rows = []
    for (name, length), seen in found.items():
        area, low, high = roc_area(seen.known, seen.fresh)
        row: dict[str, object] = {
            "setting": name,
            "prompt_tokens": length,
            "trials": len(seen.known) + len(seen.fresh),
            "known_p50_ms": round(1e3 * median(seen.known), 2),
            "fresh_p50_ms": round(1e3 * median(seen.fresh), 2),
            "auc": round(area, 3),
            "auc_low": round(low, 3),
            "auc_high": round(high, 3),
            "cached_tokens_told": seen.cached,
        }
        rows.append(row)
    return rows


def draw(path: Path, found: dict[tuple[str, int], Seen]) -> None:
    title = "Time to the first token of an attacker's prompt, ms: share of requests"
    lengths = sorted({length for _, length in found})
    figure, every = panels(len(SETTINGS), title, 2.0)
    for axes, setting in zip(every, SETTINGS, strict=True):
        for length in lengths:
            seen = found[setting.name, length]
            area, low, high = roc_area(seen.known, seen.fresh)
            for what, seconds in (("the victim's", seen.known), ("nobody's", seen.fresh)):
                places = [(place + 0.5) / len(seconds) for place in range(len(seconds))]
                label = f"{length} tokens, {what}"
                if what == "nobody's":
                    label += f": area {area:.3f} ({low:.3f} to {high:.3f})"
                axes.plot([1e3 * value for value in sorted(seconds)], places, label=label)
        axes.set_title(setting.name, fontsize=9, loc="left")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}")
        axes.legend(loc="lower right", fontsize=7)
    limits = [axes.get_xlim() for axes in every]
    for axes in every:
        axes.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=1000, help="of each setting; default: 1000")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[64, 512], help="tokens; default: 64 512"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, default=Path("docs/img/timing.png"))
    options = parser.parse_args(arguments)
    keys = ("--api-key", VICTIM, "--api-key", ATTACKER, "--kv-tokens", str(KV_TOKENS))
    with ExitStack() as stack:
        shared = stack.enter_context(serving(*keys, key=VICTIM))
        isolated = stack.enter_context(serving(*keys, "--isolate-by-key", key=VICTIM))
        lab = Lab(shared.port, isolated.port, options.seed)
        found = uvloop.run(measure(lab, options.prompts, options.trials))
    rows = rows_of(found)
    draw(options.picture, found)
    show_rows("the attacker's time to the first token", rows)
    report: dict[str, Any] = {"benchmark": "timing", "results": rows}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
