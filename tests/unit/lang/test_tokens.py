"""A transcript of token ids: texts are joined, seams stay, and what is decoded is what was said."""

from __future__ import annotations

import pytest

from radixlm.lang.engine_backend import TokenTranscript
from radixlm.lang.transcript import Answer, habit_of
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import SAMPLES, byte_level, sentencepiece_like

TOKENIZERS = [byte_level, sentencepiece_like]


def begin(make=byte_level):
    tokenizer = Tokenizer(make(), {})
    return TokenTranscript(habit_of(""), tokenizer), tokenizer


def test_texts_that_stand_together_are_one():
    said, tokenizer = begin()
    said.write("he")
    said.write("llo")
    assert said.key().tolist() == tokenizer.encode("hello").tolist()


def test_an_answer_stays_the_tokens_it_was():
    said, tokenizer = begin()
    answer = tokenizer.encode("he").tolist()
    said.write("x")
    said.take(Answer("he", {}, tuple(answer)))
    said.write("llo")
    expected = [*tokenizer.encode("x").tolist(), *answer, *tokenizer.encode("llo").tolist()]
    assert said.key().tolist() == expected
    assert said.text == "xhello"


def test_a_text_goes_on_where_a_fork_was():
    said, tokenizer = begin()
    said.write("x hell")
    fork = said.copy()
    fork.write("o")
    assert fork.key().tolist() == tokenizer.encode("x hello").tolist()
    assert said.key().tolist() == tokenizer.encode("x hell").tolist()


def test_each_text_is_tokenized_once(monkeypatch):
    said, _ = begin()
    seen = []
    encode = Tokenizer.encode

    def counting(self, text, **options):
        seen.append(text)
        return encode(self, text, **options)

    monkeypatch.setattr(Tokenizer, "encode", counting)
    said.write("a long beginning ")
    forks = [said.copy() for _ in range(3)]
    for fork in forks:
        fork.write("and")
        fork.key()
        fork.key()
    assert seen.count("a long beginning ") == 1
    assert sum(map(len, seen)) < len("a long beginning ") + 3 * len("  and") + 3


@pytest.mark.parametrize("make", TOKENIZERS)
@pytest.mark.parametrize("text", SAMPLES)
def test_pieces_decode_to_what_was_said(make, text):
    said, tokenizer = begin(make)
    said.write("the " + text)
    said.take(Answer("hello", {}, tuple(tokenizer.encode_after("hello").tolist())))
    said.write(text)
    fork = said.copy()
    fork.write(text)
    assert tokenizer.decode(fork.key()) == fork.text == f"the {text}hello{text}{text}"


@pytest.mark.parametrize("make", TOKENIZERS)
def test_what_a_stop_cut_off_is_not_said(make):
    said, tokenizer = begin(make)
    said.write("x")
    tokens = tuple(tokenizer.encode_after(" hello the").tolist())
    said.take(Answer(" he", {}, tokens, cut=True))
    said.write("re")
    assert tokenizer.decode(said.key()) == "x here"


def test_an_answer_that_no_stop_cut_is_not_spelled_again(monkeypatch):
    said, tokenizer = begin()
    monkeypatch.setattr(Tokenizer, "token_bytes", lambda *_: pytest.fail("spelled"))
    tokens = tokenizer.encode_after(" hello").tolist()
    said.take(Answer(" hello", {}, tuple(tokens)))
    assert said.key().tolist() == tokens


def test_special_tokens_are_not_taken_back():
    said, tokenizer = begin()
    said.write("a<|end|>")
    fork = said.copy()
    fork.write("b")
    assert fork.key().tolist() == tokenizer.encode("a<|end|>b").tolist()
