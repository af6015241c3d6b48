"""How many tokens a step yields with drafts, by rule: ours and others', on recorded agents.

    python -m benchmarks.draft_rules --traces FOLDER [--tokenizer FILE] [--picture FILE]

FOLDER: see `radixlm.bench.agent_traces`. All answers are replayed: a step yields the drafted tokens
that are the recorded ones, and one more. The tokenizer is the demo model's if none is given: a file
`tokenizer.json`. Printed are tokens a step, and how many of a hundred drafted ones were right.
Rules of others are written for this from their documentation (draft_rivals.py). Ends in one JSON
line.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tqdm import tqdm

from benchmarks.draft_rivals import (
    LookupCache,
    NgramMod,
    PromptLookup,
    Rule,
    SuffixDecoding,
    Tokens,
)
from benchmarks.pictures import panels, save
from benchmarks.rows import show_rows
from radixlm.assembly import DEMO_MODEL
from radixlm.bench.agent_traces import Session, read_traces
from radixlm.cache.radix.tree import RadixTree
from radixlm.drafts.draft import Draft, Sibling, in_common
from radixlm.drafts.tree_drafts import TreeDrafts
from radixlm.scheduler import DraftPolicy

CAPACITY = 1 << 23
MOSTS = (8, 16)
# Answers of which the picture shows the tokens a step, over as many steps.
WINDOW = 100


class Ours:
    """The tree's drafts. worth: a draft ends where the chance that it is right so far is below.
    siblings: the likeliest rows are drafted of each draft and its sibling, as many as without.
    """

    def __init__(self, worth: float = 0.0, *, siblings: bool = False) -> None:
        self._tree = RadixTree()
        self._drafts = TreeDrafts(self._tree, CAPACITY, siblings=siblings)
        self._policy = DraftPolicy()
        self._siblings = siblings
        self._worth = worth
        self._draft: Draft | None = None
        self._proposed: Draft | None = None

    def begin(self, prompt: Tokens) -> None:
        self._text = np.concatenate((prompt, np.zeros(20_000, dtype=np.int32)))
        self._end = self._asked = prompt.size
        self._insert()

    def take(self, token: int) -> None:
        self._text[self._end] = token
        self._end += 1
        self._drafts.wrote(None, self._text[: self._end].data, 1)

    def end(self) -> None:
        self._insert()

    def propose(self, most: int) -> Sequence[int]:
        self._learn()
        draft = self._drafts.propose(None, self._text[: self._end].data, most)
        self._proposed, self._asked = draft, self._end
        if draft is not None and (self._worth or self._siblings):
            draft = self._policy.likeliest(draft, self._worth)
        self._draft = draft
        return () if draft is None else draft.tokens

    @property
    def sibling(self) -> Sibling | None:
        """Of what was proposed last."""
        return None if self._draft is None else self._draft.sibling

    def _learn(self) -> None:
        if self._draft is not None and self._proposed is not None and self._end > self._asked:
            drawn = self._text[self._asked : self._end].tolist()
            self._policy.verify(self._draft, self._proposed, drawn)
        self._draft = None

    def _insert(self) -> None:
        slots = np.zeros(self._end, dtype=np.int32)
        self._tree.insert(self._text[: self._end], slots)


def replay(rule: Rule, sessions: Sequence[Session], most: int) -> tuple[list[int], int]:
    """The tokens of each step, and how many were drafted."""
    yields, drafted = [], 0
    for session in sessions:
        for prompt, answer in session:
            rule.begin(prompt)
            known, answer_tokens = 0, answer.tolist()
            while known < len(answer_tokens):
                left = len(answer_tokens) - known
                draft = rule.propose(min(most, left)) if known else ()
                follows = answer_tokens[known:]
                right = in_common(draft, follows)
                sibling = rule.sibling if known and isinstance(rule, Ours) else None
                if sibling is not None:
                    drafted += len(sibling.tokens)
                    if sibling.after == right:
                        right += in_common(sibling.tokens, follows[right:])
                new = min(right + 1, left)
                for token in answer_tokens[known : known + new]:
                    rule.take(token)
                drafted += len(draft)
                yields.append(new)
                known += new
            rule.end()
    return yields, drafted


def rules(vocabulary: int, total: int) -> dict[str, Callable[[], Rule]]:
    return {
        "ours": Ours,
        "ours, with siblings": lambda: Ours(siblings=True),
        "ours, chance over 0.2": lambda: Ours(0.2),
        "ours, siblings, over 0.1": lambda: Ours(0.1, siblings=True),
        "vLLM ngram, 2 to 5": PromptLookup,
        "vLLM ngram, 5": lambda: PromptLookup(5),
        "vLLM suffix": lambda: SuffixDecoding(vocabulary, total),
        "llama.cpp ngram-mod, 24": lambda: NgramMod(24),
        "llama.cpp ngram-mod, 8": lambda: NgramMod(8),
        "llama.cpp lookup": LookupCache,
    }


def row_of(name: str, rule: str, most: int, yields: Sequence[int], drafted: int) -> dict[str, Any]:
    right = sum(yields) - len(yields)
    return {
        "trace": name,
        "rule": rule,
        "drafts_of": most,
        "tokens_a_step": round(sum(yields) / len(yields), 3),
        "right_percent": round(100 * right / max(drafted, 1), 1),
        "drafted_a_step": round(drafted / len(yields), 2),
    }


def measure(name: str, sessions: list[Session], vocabulary: int) -> Iterator[dict[str, Any]]:
    total = sum(answer.size + 2 for session in sessions for _, answer in session) + 2
    for most in MOSTS:
        alone = [replay(Ours(), [session], most) for session in sessions]
        yields = [each for steps, _ in alone for each in steps]
        yield row_of(name, "ours, each session alone", most, yields, sum(n for _, n in alone))
        for rule, make in tqdm(rules(vocabulary, total).items(), desc=name, leave=False):
            yield row_of(name, rule, most, *replay(make(), sessions, most))


def draw(path: Path, name: str, sessions: list[Session], vocabulary: int) -> None:
    """Tokens a step along one session after the others, rule by rule."""
    total = sum(answer.size + 2 for session in sessions for _, answer in session) + 2
    figure, [axes] = panels(1, f"Tokens a step along {name}, drafts of {MOSTS[-1]}", 4)
    for rule, make in rules(vocabulary, total).items():
        if rule in ("ours", "vLLM ngram, 2 to 5", "vLLM suffix", "llama.cpp lookup"):
            yields, _ = replay(make(), sessions, MOSTS[-1])
            mean = np.convolve(yields, np.full(WINDOW, 1 / WINDOW), "valid")
            axes.plot(np.cumsum(yields)[WINDOW - 1 :], mean, label=rule, linewidth=1)
    axes.set_xlabel(f"tokens of answers; a mean of {WINDOW} steps")
    axes.legend(loc="upper left")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, default=DEMO_MODEL / "tokenizer.json")
    parser.add_argument("--only", help="one trace, by name")
    parser.add_argument("--picture", type=Path, help="draw the first trace's here")
    args = parser.parse_args()
    tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer))

    def encode(text: str) -> Tokens:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return np.asarray(ids, dtype=np.int32)

    rows: list[dict[str, Any]] = []
    for name, sessions in read_traces(args.traces, encode):
        if args.only in (None, name):
            rows += measure(name, sessions, tokenizer.get_vocab_size() + 1000)
            if args.picture is not None:
                draw(args.picture, name, sessions, tokenizer.get_vocab_size() + 1000)
                args.picture = None
    show_rows("Tokens a step with drafts", rows)
    print(json.dumps({"benchmark": "draft_rules", "rows": rows}))


if __name__ == "__main__":
    main()
