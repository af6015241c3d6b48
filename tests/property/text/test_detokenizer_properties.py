"""Whatever the tokens: pieces and flush joined are the decoded text, cut at the first stop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.core.sampling import ThoughtMarks
from radixlm.text.detokenizer import Detokenizer
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import SAMPLES, byte_level, metaspace, sentencepiece_like

TOKENIZERS = {
    make.__name__: Tokenizer(make(), {}) for make in (byte_level, sentencepiece_like, metaspace)
}
patient = settings(deadline=None)
thorough = settings(patient, max_examples=300)
names = st.sampled_from(sorted(TOKENIZERS))
texts = st.one_of(st.text(), st.sampled_from(SAMPLES), st.text(alphabet="ab é🙂你\n ▁"))


def run(detokenizer: Detokenizer, ids) -> tuple[str, str | None, int]:
    """Text, stop and pushes until the end."""
    text = ""
    for count, token in enumerate(ids, start=1):
        piece = detokenizer.push(int(token))
        text += piece.text
        if piece.stop is not None:
            assert detokenizer.flush() == ("", None)
            return text, piece.stop, count
    last = detokenizer.flush()
    return text + last.text, last.stop, len(ids)


@patient
@given(name=names, text=texts, skip=st.booleans())
def test_joined_pieces_are_the_decoded_text(name, text, skip):
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    joined, _, _ = run(Detokenizer(tokenizer, skip_special_tokens=skip), ids)
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)
    without = tokenizer.encode(text, add_special_tokens=False)
    joined, _, _ = run(Detokenizer(tokenizer, skip_special_tokens=skip), without)
    assert joined == text or name != "byte_level"


@patient
@given(name=names, data=st.data(), skip=st.booleans())
def test_random_ids_are_the_decoded_text(name, data, skip):
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=60))
    joined, _, _ = run(Detokenizer(tokenizer, skip_special_tokens=skip), ids)
    assert joined == tokenizer.decode(ids, skip_special_tokens=skip)


@patient
@given(data=st.data())
def test_random_byte_level_ids_decode_as_the_library_does(data):
    backend = byte_level()
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=60))
    assert TOKENIZERS["byte_level"].decode(ids) == backend.decode(ids)


@patient
@given(name=names, data=st.data())
def test_pieces_hold_whole_characters_only(name, data):
    tokenizer = TOKENIZERS[name]
    text = data.draw(st.text(alphabet="é🙂你नж", max_size=20))
    detokenizer = Detokenizer(tokenizer)
    for token in tokenizer.encode(text):
        assert "�" not in detokenizer.push(int(token)).text
    assert detokenizer.flush() == ("", None)


def certain(tokenizer: Tokenizer, ids) -> str:
    """Text of `ids` without the bytes at its end that may yet become a character."""
    data = b"".join(tokenizer.token_bytes(t) for t in ids if t not in tokenizer.special_ids)
    if tokenizer.drops_first_space:
        data = data.removeprefix(b" ")
    for size in range(min(3, len(data)), 0, -1):
        try:
            data[-size:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return data[:-size].decode(errors="replace")
    return data.decode(errors="replace")


def model(tokenizer: Tokenizer, ids, stops, min_tokens, read=0) -> tuple[str, str | None, int]:
    """The same by brute force: decode every prefix again and look at each of its characters.

    read: how many of the first ones count for no stop.
    """
    first = read
    steps = [(count, certain(tokenizer, ids[:count])) for count in range(1, len(ids) + 1)]
    for count, seen in [*steps, (len(ids), tokenizer.decode(ids))]:
        for end in range(read + 1, len(seen) + 1):
            found = [stop for stop in stops if seen[first:end].endswith(stop)]
            if found and count >= min_tokens:
                stop = max(found, key=len)
                return seen[: end - len(stop)], stop, count
        read = max(read, len(seen))
    return tokenizer.decode(ids), None, len(ids)


stop_lists = st.lists(st.text(alphabet="abé🙂 �", min_size=1, max_size=5), min_size=1, max_size=4)


@pytest.mark.slow
@thorough
@given(
    name=names,
    text=st.text(alphabet="abé🙂 ", max_size=30),
    stops=stop_lists,
    min_tokens=st.integers(0, 12),
)
def test_stops_agree_with_brute_force_on_text(name, text, stops, min_tokens):
    tokenizer = TOKENIZERS[name]
    ids = [int(token) for token in tokenizer.encode(text)]
    detokenizer = Detokenizer(tokenizer, stop=tuple(stops), min_tokens=min_tokens)
    assert run(detokenizer, ids) == model(tokenizer, ids, stops, min_tokens)


MARKS = ("<t>", "</t>", "<a>", "<b>")
marked = st.lists(st.sampled_from((*MARKS, "a", "b", "<", ">", " ", "\n", "t>")), max_size=14)


def thought(text: str, thoughts: ThoughtMarks) -> int:
    """How many of the first characters are thoughts, with their markers."""
    opened = not thoughts.begin or text.lstrip().startswith(thoughts.begin)
    at = text.find(thoughts.begin) + len(thoughts.begin) if opened else 0
    for end in thoughts.ends if opened else ():
        found = text.find(end, at)
        if found < 0:
            return len(text)
        at = found + len(end)
    return at


@thorough
@given(
    text=marked.map("".join),
    begin=st.sampled_from(("", "<t>")),
    ends=st.sampled_from((("</t>",), ("<a>", "<b>"))),
    stops=st.lists(st.text(alphabet="ab<>/t \n", min_size=1, max_size=3), min_size=1, max_size=3),
    min_tokens=st.integers(0, 12),
)
def test_stops_count_where_thoughts_end(text, begin, ends, stops, min_tokens):
    tokenizer, thoughts = TOKENIZERS["byte_level"], ThoughtMarks(begin, ends)
    ids = [int(token) for token in tokenizer.encode(text)]
    options = {"stop": tuple(stops), "min_tokens": min_tokens, "thoughts": thoughts}
    found = run(Detokenizer(tokenizer, **options), ids)
    # It may be noticed late: what began as a thought was none.
    assert found[:2] == model(tokenizer, ids, stops, min_tokens, thought(text, thoughts))[:2]


two_letters = st.text(alphabet="ab", min_size=2, max_size=6)


@pytest.mark.slow
@thorough
@given(
    text=st.text(alphabet="ab", max_size=40),
    stops=st.lists(two_letters, min_size=1, max_size=3),
    min_tokens=st.integers(0, 20),
)
def test_stops_that_overlap_themselves_agree_with_brute_force(text, stops, min_tokens):
    tokenizer = TOKENIZERS["byte_level"]
    ids = [int(token) for token in tokenizer.encode(text)]
    detokenizer = Detokenizer(tokenizer, stop=tuple(stops), min_tokens=min_tokens)
    assert run(detokenizer, ids) == model(tokenizer, ids, stops, min_tokens)


@patient
@given(name=names, data=st.data(), stops=stop_lists)
def test_stops_agree_with_brute_force_on_random_ids(name, data, stops):
    tokenizer = TOKENIZERS[name]
    likely = [int(token) for token in tokenizer.encode("abé🙂 ")]
    ids = data.draw(
        st.lists(st.sampled_from(likely) | st.integers(0, tokenizer.vocab_size), max_size=40)
    )
    detokenizer = Detokenizer(tokenizer, stop=tuple(stops))
    assert run(detokenizer, ids) == model(tokenizer, ids, stops, 0)


@patient
@given(stops=stop_lists, text=st.text(alphabet="abé🙂 ", max_size=40))
def test_what_is_emitted_early_is_never_part_of_a_stop(stops, text):
    tokenizer = TOKENIZERS["byte_level"]
    ids = [int(token) for token in tokenizer.encode(text)]
    final, _, _ = model(tokenizer, ids, stops, 0)
    detokenizer = Detokenizer(tokenizer, stop=tuple(stops))
    emitted = ""
    for token in ids:
        emitted += detokenizer.push(token).text
        assert final.startswith(emitted)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_output_that_continues_a_prompt_keeps_its_first_space(name):
    tokenizer = TOKENIZERS[name]
    prompt = tokenizer.encode("hello")
    output = tokenizer.encode("hello the world")[len(prompt) :]
    joined, _, _ = run(Detokenizer(tokenizer, prompt_tail=prompt[-4:].tolist()), output)
    assert joined == " the world"


def test_a_character_that_begins_in_the_prompt_is_completed():
    tokenizer = TOKENIZERS["byte_level"]
    ids = [int(token) for token in tokenizer.encode("🙂!")]
    joined, _, _ = run(Detokenizer(tokenizer, prompt_tail=ids[:2]), ids[2:])
    assert joined == "🙂!"


@pytest.mark.parametrize("answer", ["z", "é", "\ufffd"])
def test_half_a_character_of_the_prompt_is_no_part_of_the_output(answer: str):
    tokenizer = TOKENIZERS["byte_level"]
    half = tokenizer.encode("🙂").tolist()[:2]
    output = tokenizer.encode(answer).tolist()
    assert run(Detokenizer(tokenizer, prompt_tail=half), output)[0] == answer
    assert run(Detokenizer(tokenizer, prompt_tail=half), [])[0] == ""


def test_a_stop_string_may_be_complete_with_what_is_left_at_the_end():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("ab🙂").tolist()[:4]
    assert run(Detokenizer(tokenizer, stop=("b\ufffd",)), ids) == ("a", "b\ufffd", 4)
    assert run(Detokenizer(tokenizer, stop=("b\ufffd",), min_tokens=5), ids)[0] == "ab\ufffd"


def test_a_lone_invalid_byte_is_not_held_for_ever():
    tokenizer = TOKENIZERS["byte_level"]
    half = int(tokenizer.encode("🙂")[0])
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(half).text == ""
    assert detokenizer.push(int(tokenizer.encode("a")[0])).text == "�a"
    assert detokenizer.push(half).text == ""
    assert detokenizer.flush() == ("�", None)


def test_nothing_comes_after_a_stop():
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = Detokenizer(tokenizer, stop=("b",))
    assert [detokenizer.push(int(t)) for t in tokenizer.encode("abc")] == [
        ("a", None),
        ("", "b"),
        ("", None),
    ]
    assert detokenizer.flush() == ("", None)


def test_special_tokens_that_are_shown_are_text() -> None:
    tokenizer = Tokenizer(byte_level(), {})
    start, end = (tokenizer.token_id(text) or 0 for text in ("<|start|>", "<|end|>"))
    for skip in (True, False):
        text = Detokenizer(tokenizer, skip_special_tokens=skip, shown=frozenset({start}))
        assert text.push(start).text == "<|start|>"
        assert text.push(end).text == ("" if skip else "<|end|>")
