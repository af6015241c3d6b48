"""Tokenizer: the same ids and text as the `tokenizers` library, real bytes, and clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from radixlm.core.errors import InvalidRequestError, ModelError
from radixlm.text.token_bytes import read_decoder
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import SAMPLES, byte_level, metaspace, sentencepiece_like, write_folder


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("text", SAMPLES)
def test_encodes_and_decodes_as_the_library(make, text):
    backend = make()
    ours = Tokenizer(make(), {})
    ids = ours.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == backend.encode(text).ids
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == backend.decode(
            ids.tolist(), skip_special_tokens=skip
        )


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
def test_text_survives_the_round_trip(make):
    tokenizer = Tokenizer(make(), {})
    for text in SAMPLES:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, metaspace])
@pytest.mark.parametrize("text", [*SAMPLES, "", " ", "  a", "\n", "\n\n", ".", "0", "a|b | c"])
def test_behind_another_text_it_is_itself(make, text):
    tokenizer = Tokenizer(make(), {})
    found = tokenizer.encode_after(text, break_mark="|").tolist()
    before = tokenizer.encode("x", add_special_tokens=False).tolist()
    assert tokenizer.decode([*before, *found]) == "x" + text.replace("|", "")


def test_a_guard_that_the_text_would_merge_with_is_not_taken():
    backend = metaspace()
    backend.add_tokens(["\n\n", ".a"])
    tokenizer = Tokenizer(backend, {})
    space = tokenizer.token_id("▁")
    for text in ("\na", "a"):
        assert space not in tokenizer.encode_after(text)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, metaspace])
def test_behind_a_special_token_it_is_what_it_is_there_in_a_whole_text(make):
    tokenizer = Tokenizer(make(), {})
    for token in tokenizer.special_ids:
        whole = tokenizer.encode(f"{tokenizer.spelling(token)}hello a", add_special_tokens=False)
        behind = tokenizer.encode_after("hello a", last=token)
        assert [token, *behind.tolist()] == whole.tolist()


def test_special_tokens_follow_the_post_processor():
    tokenizer = Tokenizer(sentencepiece_like(), {})
    with_bos = tokenizer.encode("hi")
    without = tokenizer.encode("hi", add_special_tokens=False)
    assert with_bos.tolist() == [tokenizer.token_id("<s>"), *without.tolist()]


def test_named_tokens_come_from_the_config(tmp_path: Path):
    write_folder(
        tmp_path, byte_level(), {"eos_token": {"content": "<|end|>"}, "bos_token": "<|start|>"}
    )
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_token_id == tokenizer.token_id("<|end|>")
    assert tokenizer.bos_token_id == tokenizer.token_id("<|start|>")
    assert tokenizer.special_ids == {tokenizer.eos_token_id, tokenizer.bos_token_id}


DIGEST = (
    "import sys; from pathlib import Path; from radixlm.text.tokenizer import Tokenizer; "
    "print(Tokenizer.load(Path(sys.argv[1])).digest)"
)


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like, metaspace])
def test_the_same_tokenizer_has_the_same_digest_in_another_process(make, tmp_path: Path):
    own = Tokenizer(make(), {}).digest
    write_folder(tmp_path, make(), {"eos_token": "<|not there|>"})
    command = [sys.executable, "-c", DIGEST, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert done.stdout == f"{own}\n"
    other = make()
    other.add_tokens(["a token more"])
    assert Tokenizer(other, {}).digest != own


def test_named_tokens_are_none_without_config():
    tokenizer = Tokenizer(byte_level(), {"eos_token": "<|not there|>"})
    assert tokenizer.eos_token_id is None
    assert tokenizer.bos_token_id is None


def test_no_token_stands_for_more_text_than_the_longest():
    tokenizer = Tokenizer(byte_level(), {})
    texts = [tokenizer.token_text(token) for token in range(tokenizer.vocab_size)]
    assert max(map(len, texts)) <= tokenizer.longest_token
    assert tokenizer.longest_token >= len("<|start|>")


def test_vocab_size_counts_added_tokens_and_ids_beyond_are_nothing():
    tokenizer = Tokenizer(byte_level(), {})
    assert tokenizer.vocab_size == max(byte_level().get_vocab().values()) + 1
    assert tokenizer.token_id("<|end|>") < tokenizer.vocab_size
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.decode([tokenizer.vocab_size + 7]) == ""
    assert tokenizer.token_bytes(-1) == b""


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
def test_token_bytes_are_the_real_bytes(make):
    tokenizer = Tokenizer(make(), {})
    ids = tokenizer.encode("é🙂 hi", add_special_tokens=False)
    data = b"".join(tokenizer.token_bytes(int(token)) for token in ids)
    assert data.lstrip(b" ") == "é🙂 hi".encode()


def test_token_text_marks_half_characters():
    tokenizer = Tokenizer(byte_level(), {})
    first = int(tokenizer.encode("🙂")[0])
    assert tokenizer.token_text(first) == "�"
    assert tokenizer.token_text(tokenizer.token_id("<|end|>")) == "<|end|>"


def test_spellings_are_the_vocabulary_s():
    tokenizer = Tokenizer(byte_level(), {})
    ids = tokenizer.encode("hello é<|end|>")
    assert [tokenizer.spelling(int(token)) for token in ids] == [
        "hello",
        "Ġ",
        "Ã©",
        "<|end|>",
    ]
    assert tokenizer.spelling(-1) is tokenizer.spelling(tokenizer.vocab_size) is None


def test_truncation_and_padding_of_the_file_are_off():
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    assert Tokenizer(backend, {}).encode("abcdef", add_special_tokens=False).size == 6


def test_no_text_is_no_ids():
    assert Tokenizer(byte_level(), {}).encode("").size == 0


def test_lone_surrogates_are_refused():
    with pytest.raises(InvalidRequestError, match="valid Unicode"):
        Tokenizer(byte_level(), {}).encode("a\ud800b")


def test_whole_word_vocabularies_join_with_spaces():
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))  # noqa: S106
    assert Tokenizer(backend, {}).decode([0, 1, 0]) == backend.decode([0, 1, 0]) == "a b a"


def test_space_is_kept_where_the_tokenizer_adds_none():
    backend = sentencepiece_like()
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    tokenizer = Tokenizer(backend, {})
    space = tokenizer.token_id("▁")
    assert tokenizer.decode([space]) == backend.decode([space]) == " "


@pytest.mark.parametrize(
    "decoder", [decoders.WordPiece(), decoders.CTC(), decoders.BPEDecoder(), decoders.Strip("x")]
)
def test_other_decoders_are_refused_by_name(decoder):
    state = json.loads(decoder.__getstate__())
    with pytest.raises(ModelError, match=state["type"]):
        read_decoder(state)


def test_byte_level_in_a_strange_chain_is_refused():
    chain = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("a", "b")])
    with pytest.raises(ModelError, match=r"ByteLevel \+ Replace"):
        read_decoder(json.loads(chain.__getstate__()))


def test_broken_files_are_model_errors(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{not json")
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ModelError, match="not a JSON object"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is not readable JSON"):
        Tokenizer.load(tmp_path)


def test_an_id_far_beyond_any_vocabulary_is_refused():
    """Each id below it would have a row in tables: 17 GB."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 2**32 - 1}))
    with pytest.raises(ModelError, match="id of 4294967295"):
        Tokenizer(backend, {})


def test_missing_folder_is_a_model_error(tmp_path: Path):
    with pytest.raises(ModelError, match="does not exist"):
        Tokenizer.load(tmp_path / "nowhere")


def test_missing_tokenizer_without_transformers_says_what_to_do(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModelError, match=r"no tokenizer\.json.*--tokenizer.*transformers"):
        Tokenizer.load(tmp_path)


def test_a_folder_s_own_code_is_never_run(tmp_path: Path, monkeypatch):
    asked = {}

    def from_pretrained(_folder, **options):
        asked.update(options)
        raise ValueError("needs code of its own")

    auto = SimpleNamespace(from_pretrained=from_pretrained)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoTokenizer=auto))
    with pytest.raises(ModelError, match="needs code of its own"):
        Tokenizer.load(tmp_path)
    assert asked == {"local_files_only": True, "trust_remote_code": False}


@pytest.mark.slow
def test_missing_tokenizer_json_falls_back_to_transformers(tmp_path: Path):
    state = json.loads(byte_level().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(state["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in state["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    program = (
        "import sys; from pathlib import Path; from radixlm.text.tokenizer import Tokenizer;"
        "t = Tokenizer.load(Path(sys.argv[1])); print(t.decode(t.encode('hello é')))"
    )
    done = subprocess.run(  # noqa: S603 - in its own process: transformers warns when imported
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "hello é", done.stderr


@pytest.mark.slow
def test_unreadable_folder_is_a_model_error_with_transformers(tmp_path: Path):
    program = (
        "import sys; from pathlib import Path; from radixlm.text.tokenizer import Tokenizer;"
        "Tokenizer.load(Path(sys.argv[1]))"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert "ModelError" in done.stderr
    assert "no tokenizer.json" in done.stderr


def test_special_tokens_that_a_text_spells_are_found():
    backend = byte_level()
    backend.add_special_tokens(["<|a|>", "｜D｜"])
    tokenizer = Tokenizer(backend, {})
    found = tokenizer.special_in("x<|a|>b <｜D｜invoke <|c|><|a|>")
    assert found == {text: tokenizer.token_id(text) for text in ("<|a|>", "｜D｜")}
    assert tokenizer.special_in("no marker") == {}
    assert Tokenizer(byte_level(), {}).special_in("<|a|>") == {}


# What fine-tunes write: tokens of a chat that tokenizer.json does not know, or not as special.
NAMED = {
    "added_tokens_decoder": {
        "{think}": {"content": "<think>", "special": True, "normalized": False},
        "{after}": {"content": "<|call|>", "special": False, "normalized": False},
        "{last}": {"content": "<|eot|>", "special": True, "normalized": False},
    },
    "eos_token": {"content": "<|eot|>", "__type": "AddedToken"},
    "pad_token": "<|pad|>",
    "additional_special_tokens": ["the", "<|nowhere|>"],
    "extra_special_tokens": {"image_token": "hello"},
    "add_bos_token": False,
}


def test_tokens_that_only_the_config_names(tmp_path: Path):
    backend = byte_level()
    size = backend.get_vocab_size()
    ids = {"{think}": backend.token_to_id("<think>"), "{after}": size, "{last}": size + 1}
    decoder = {str(ids[at]): entry for at, entry in NAMED["added_tokens_decoder"].items()}
    write_folder(tmp_path, backend, {**NAMED, "added_tokens_decoder": decoder})
    beside = {"bos_token": "<|start|>", "eos_token": "<|other|>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(beside))
    tokenizer = Tokenizer.load(tmp_path)
    right = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for name in ("<think>", "<|call|>", "<|eot|>", "the", "hello"):
        found = tokenizer.encode(name, add_special_tokens=False).tolist()
        assert found == right.encode(name, add_special_tokens=False)
        assert [tokenizer.spelling(each) for each in found] == [name]
        assert (found[0] in tokenizer.special_ids) == (name != "<|call|>"), name
    assert tokenizer.eos_token_id == right.eos_token_id == size + 1
    assert tokenizer.bos_token_id == tokenizer.token_id("<|start|>")
    # No model has an id for them.
    assert tokenizer.vocab_size == size + 2
    assert tokenizer.token_id("<|pad|>") is None


@pytest.mark.parametrize(
    "decoder", [7, {"x": {"content": "a"}}, {"1": "a"}, {"1": {"content": 3}}, {"1": {}}]
)
def test_added_tokens_that_are_none(tmp_path: Path, decoder: object):
    write_folder(tmp_path, byte_level(), {"added_tokens_decoder": decoder})
    with pytest.raises(ModelError, match="added_tokens_decoder"):
        Tokenizer.load(tmp_path)
