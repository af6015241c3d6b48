"""The replay of drafts, and others' rules on texts whose drafts are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.draft_rivals import LookupCache, NgramMod, PromptLookup, SuffixDecoding, Tokens
from benchmarks.draft_rules import Ours, replay
from radixlm.bench.agent_traces import read_traces


def tokens(text: str) -> Tokens:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.int32)


@pytest.mark.parametrize(
    "rule", [Ours(), PromptLookup(), NgramMod(4), LookupCache(), SuffixDecoding(200, 1000)]
)
def test_each_rule_drafts_what_stood_before(rule) -> None:
    rule.begin(tokens("the brown fox jumps, the brown f"))
    assert bytes(rule.propose(4)).decode() == "ox j"
    rule.take(ord("o"))
    assert bytes(rule.propose(4)).decode() == "x ju"
    rule.end()


def test_suffix_decoding_follows_the_most_frequent() -> None:
    rule = SuffixDecoding(200, 1000)
    rule.begin(tokens("abcx abcy abcy abc"))
    assert bytes(rule.propose(1)).decode() == "y"


def test_an_answer_is_replayed_whole() -> None:
    answer = tokens("a brown fox, a brown fox, a brown fox")
    for rule in (Ours(), Ours(0.2), PromptLookup()):
        yields, drafted = replay(rule, [[(tokens("?"), answer), (tokens("!"), answer)]], 8)
        assert sum(yields) == 2 * answer.size
        assert len(yields) < 1.5 * answer.size
        assert drafted >= sum(yields) - len(yields)


def test_traces_are_read_in_both_forms(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    line = json.dumps({"input": "ab", "output": "c"})
    (tmp_path / "calls" / "one.jsonl").write_text(f"{line}\n")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    (tmp_path / "turns.jsonl").write_text(json.dumps({"messages": messages}))
    found = dict(read_traces(tmp_path, tokens))
    assert [call[1].tolist() for call in found["calls"][0]] == [[ord("c")]]
    [[(prompt, answer)]] = found["turns"]
    assert bytes(prompt.tolist()).decode() == "\nuser: hi\nassistant: "
    assert bytes(answer.tolist()).decode() == "ho"
