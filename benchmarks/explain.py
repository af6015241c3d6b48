"""How long it takes to explain a miss.

    python -m benchmarks.explain [--tokens 4000 40000] [--rounds 200]

Two chats of about so many tokens that differ in a date in the first message, and in an answer in
the middle: the report of the cache, and the making out of its cause, each timed; beside it what the
window of /cache/advice takes for each request. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from radixlm.cache import RadixCache
from radixlm.core.clock import WallClock
from radixlm.core.keys import Key
from radixlm.observe.causes import Outline, find
from radixlm.server.insight.advice import MissWindow
from radixlm.text.chat_template import ChatTemplate, require_template
from radixlm.text.model_folder import DEMO_MODEL
from radixlm.text.tokenizer import Tokenizer

Messages = list[dict[str, Any]]


def chat(size: int, *, date: str = "2026-11-19", answer: str = "It is brass.") -> Messages:
    """Messages of about `size` tokens."""
    turns: Messages = [{"role": "system", "content": f"Today is {date}. You are a helper."}]
    for turn in range(max(size // 40, 2)):
        turns.append({"role": "user", "content": f"What is bell number {turn} made of, please?"})
        middle = turn == size // 80
        turns.append({"role": "assistant", "content": answer if middle else "It is brass."})
    return [*turns, {"role": "user", "content": "And the last one?"}]


def prompt(tokenizer: Tokenizer, template: ChatTemplate, messages: Messages) -> tuple[Key, Outline]:
    text = template.render(messages)
    return tokenizer.encode(text, add_special_tokens=False), Outline(text, messages)


def median_ms(action: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begun)
    return round(1e3 * statistics.median(taken), 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4_000, 40_000])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    tokenizer = Tokenizer.load(DEMO_MODEL)
    template = require_template(ChatTemplate.load(DEMO_MODEL))
    rows = [
        row
        for tokens in options.tokens
        for row in measure(tokenizer, template, tokens, options.rounds)
    ]
    print(json.dumps({"benchmark": "explain", "rows": rows}))


def measure(
    tokenizer: Tokenizer, template: ChatTemplate, tokens: int, rounds: int
) -> list[dict[str, Any]]:
    """A row for each of the two differences."""
    first, _ = prompt(tokenizer, template, chat(tokens))
    cache = RadixCache(2 * first.size)
    lease = cache.acquire(first)
    lease.extend(first.size)
    lease.commit(first.size)
    lease.release()
    rows = []
    for name, messages in (
        ("date", chat(tokens, date="2026-11-20")),
        ("edited", chat(tokens, answer="It is gold, and all of the others are.")),
    ):
        key, outline = prompt(tokenizer, template, messages)
        miss = cache.explain(key).report
        window = MissWindow(WallClock())
        look = partial(find, tokenizer, miss, key, outline)
        add = partial(window.add, "", miss, look, shows_text=True)
        row = {
            "difference": name,
            "tokens": int(key.size),
            "position": miss.position,
            "cause": look().cause,
            "report_ms": median_ms(partial(cache.explain, key), rounds),
            "cause_ms": median_ms(look, rounds),
            "window_ms": median_ms(add, rounds),
        }
        print(row)
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
