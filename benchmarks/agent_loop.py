"""How much of an agent's loop comes from the cache, turn by turn, on each route.

    python -m benchmarks.agent_loop [--turns 30] [--pressure]

`radixlm serve` with the demo model, told of a longer context than it was taught (what it writes is
rubbish either way). An agent with instructions and a dozen tools asks again and again: most answers
are a call that the schemas hold, every fifth one is text. All are drawn at temperature 1, so hardly
any is tokenized the way it was sampled. Of each turn: the share of the prompt that was cached, and
the share *of what could be*: all that the turn before had sent or got, but for the answer's last
token, which was never computed. Wanted: 97 % of that on every route. `of_answers` is the share of
the answers alone, which long prompts hide.

`--pressure`: between the turns another client fills the whole pool. With marks, which become pins,
and without them. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.agent_routes import AGENTS, Agent, Reply, fill
from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from benchmarks.served import serving
from radixlm.assembly import DEMO_MODEL

CONTEXT = 16_384
KV_TOKENS, TIGHT_KV_TOKENS = 100_000, 24_000
WANTED = 0.97
TEXT_EVERY = 5
_RESULT = """{turn}. exit code 0
src/store/index.py:{line}: def look_up(self, name: str) -> Entry | None:
src/store/index.py:{more}:     return self._entries.get(name)
tests/test_index.py:{line}: assert index.look_up("missing") is None"""
_USER = "{turn}. Thank you. Now do the same for line {line}, and run the tests again."


def measure(agent: Agent, turns: int, url: str, flood: int) -> list[Reply]:
    """flood: so many tokens of another client's between the turns."""
    agent.hear((), "Please find out why looking up a name is slow, and make it fast.")
    replies: list[Reply] = []
    for turn in tqdm(range(turns), desc=type(agent).__name__, leave=False):
        reply = agent.ask(calls=bool((turn + 1) % TEXT_EVERY))
        replies.append(reply)
        form = _RESULT if reply.calls else _USER
        agent.hear(reply.calls, form.format(turn=turn, line=turn * 7 + 3, more=turn * 9 + 5))
        if flood:
            fill(url, flood, seed=turn)
    return replies


def possible(replies: Sequence[Reply]) -> list[int]:
    """For each turn but the first, how many tokens of its prompt the turn before had made."""
    made = [before.prompt + before.output - 1 for before in replies]
    return [min(most, now.prompt - 1) for most, now in zip(made, replies[1:], strict=False)]


def row_of(route: str, replies: Sequence[Reply], *, pins: bool) -> dict[str, Any]:
    later, could = replies[1:], possible(replies)
    shares = [now.cached / most for now, most in zip(later, could, strict=True)]
    prompt, cached = sum(now.prompt for now in later), sum(now.cached for now in later)
    return {
        "route": route,
        "pins": "yes" if pins else "no",
        "calls": sum(bool(reply.calls) for reply in replies),
        "last_prompt": replies[-1].prompt,
        "cached_percent": round(100 * cached / prompt, 1),
        "of_possible_percent": round(100 * cached / sum(could), 2),
        "worst_turn_percent": round(100 * min(shares), 2),
        "of_answers_percent": round(100 * _answers_share(replies, could), 1),
        "turns": [round(100 * now.cached / now.prompt, 1) for now in replies],
    }


def _answers_share(replies: Sequence[Reply], could: Sequence[int]) -> float:
    pairs = list(zip(replies, replies[1:], could, strict=False))
    found = sum(max(min(now.cached, most) - before.prompt, 0) for before, now, most in pairs)
    return found / sum(most - before.prompt for before, _, most in pairs)


@contextmanager
def model_folder(context: int = CONTEXT) -> Iterator[Path]:
    """The demo model with a context that a loop has room in."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "agent"
        shutil.copytree(DEMO_MODEL, folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = context
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        yield folder


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A panel for each route, from the second turn on: the first one finds what others left."""
    routes = list(dict.fromkeys(row["route"] for row in rows))
    title = "Share of the prompt that was cached, turn by turn, %"
    figure, axes = panels(len(routes), title, height=1.6)
    for each, route in zip(axes, routes, strict=True):
        for row in rows:
            if row["route"] == route:
                later = row["turns"][1:]
                each.plot(range(2, len(later) + 2), later, label=f"pins: {row['pins']}")
        each.set_title(route, fontsize=9, loc="left")
        each.set_ylim(-2, 102)
        each.legend(loc="center right")
    save(figure, path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--routes", nargs="+", choices=AGENTS, default=list(AGENTS))
    parser.add_argument("--pressure", action="store_true", help="beside a load that fills the pool")
    parser.add_argument("--flags", default="", help="more of the server's")
    parser.add_argument("--picture", type=Path, help="write one here")
    options = parser.parse_args(arguments)
    kv_tokens = TIGHT_KV_TOKENS if options.pressure else KV_TOKENS
    rows: list[dict[str, Any]] = []
    with model_folder() as folder:
        for pins in (True, False) if options.pressure else (False,):
            pinned = kv_tokens // 2 if pins else 0
            flags = f"--kv-tokens {kv_tokens} --max-pinned-tokens {pinned} {options.flags}"
            with serving(str(folder), *flags.split()) as served:
                for seed, route in enumerate(options.routes):
                    agent = AGENTS[route](served.url, seed * 1_000, pins=pins)
                    flood = kv_tokens if options.pressure else 0
                    replies = measure(agent, options.turns, served.url, flood)
                    rows.append(row_of(route, replies, pins=pins))
    for row in rows:
        print(f"{row['route']}, pins: {row['pins']}: cached percent, turn by turn: {row['turns']}")
    table = [{name: value for name, value in row.items() if name != "turns"} for row in rows]
    show_rows(f"an agent's loop of {options.turns} turns", table)
    if options.picture is not None:
        draw(options.picture, rows)
    judged = [row for row in rows if row["pins"] == "yes" or not options.pressure]
    report = {
        "benchmark": "agent_loop",
        "turns": options.turns,
        "pressure": options.pressure,
        "kv_tokens": kv_tokens,
        "results": rows,
        "as_wanted": all(row["of_possible_percent"] >= 100 * WANTED for row in judged),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
