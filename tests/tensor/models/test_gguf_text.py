"""Tokenizers and chat templates from GGUF files: the same ids as the original's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers.convert_slow_tokenizer import generate_merges

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.formats.model_files import ModelFile
from radixlm.testing.checkpoints import CHAT_TEMPLATE
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import make_checkpoint
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer
from tests.text_samples import SAMPLES, sentencepiece_like, write_folder

TEXTS = (
    *SAMPLES,
    "",
    " ",
    "   \n\n  x",
    "It's 12345 o'clock, I'LL we'Ve 3.14159 ①② ٣٤٥ Ⅷ",
    "e\u0301 A\u030a \ufb01 \u1e9b\u0323",
    "camelCase HTTPServer naïveCafé ÀÉ ßa ǅ",
    "tabs\t\tand \r\n\r\n lines\u2028and\u00a0spaces \u3000",
    "https://a.b/c?d=1&e=#f $x^2+y~z|`w`{[(<=>)]}",
    "<|start|>in<|end|> <|start|> <think> x</think><think>",
    "\x00\x01\x7f\ufeff\u200d",
    "한국어 ภาษาไทย 日本語テキスト русский текст",
)
SPECIAL = ["<|start|>", "<|end|>"]
_TOKENS = "tokenizer.ggml.tokens"
_SPLIT = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _trained(parted: pre_tokenizers.PreTokenizer, **options: Any) -> tokenizers.Tokenizer:
    """A byte-level tokenizer of 500 tokens and three more, of which two are special."""
    made = tokenizers.Tokenizer(models.BPE(**options))
    made.pre_tokenizer, made.decoder = parted, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 3, BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    )
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return made


def gpt2() -> tokenizers.Tokenizer:
    return _trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))


def smollm() -> tokenizers.Tokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    return _trained(pre_tokenizers.Sequence([digits, words]))


def llama3() -> tokenizers.Tokenizer:
    made = _trained(_split(_LETTERS + r"|\p{N}{1,3}" + _SIGNS + _SPLIT), ignore_merges=True)
    first = SPECIAL[0]
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single=f"{first} $A", special_tokens=[(first, made.token_to_id(first))]
            ),
        ]
    )
    return made


def llama2() -> tokenizers.Tokenizer:
    """As transformers makes one from SentencePiece's pieces and their scores."""
    made = sentencepiece_like()
    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(TEXTS * 3, BpeTrainer(vocab_size=230, show_progress=False))
    pieces = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for text in (*(f"<0x{byte:02X}>" for byte in range(256)), *(text for text, _ in pieces)):
        vocab.setdefault(text, len(vocab))
    scores = {text: float(-at) for text, at in vocab.items() if len(text) > 1 and at > 258}
    merges = generate_merges(vocab, scores)
    made.model = models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)  # noqa: S106
    return made


def in_turn(*patterns: str) -> pre_tokenizers.PreTokenizer:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*steps, last])


def gpt4o() -> tokenizers.Tokenizer:
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    end, first = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{upper}*{lower}+{end}|{first}{upper}+{lower}*{end}"
    return _trained(in_turn(words + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPLIT))


def seed_coder() -> tokenizers.Tokenizer:
    return _trained(in_turn(_LETTERS + r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPLIT))


def qwen35() -> tokenizers.Tokenizer:
    letters = _LETTERS.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+")
    made = _trained(in_turn(letters + r"|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPLIT))
    made.normalizer = normalizers.NFC()
    return made


def deepseek_v3() -> tokenizers.Tokenizer:
    signs = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
    words = signs + r"[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    kana = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
    return _trained(in_turn(r"\p{N}{1,3}", kana, words + _SPLIT))


def deepseek_coder() -> tokenizers.Tokenizer:
    han = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
    steps = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", han)
    return _trained(in_turn(*steps, r"\p{N}"))


def command_r() -> tokenizers.Tokenizer:
    """As transformers' own class has it."""
    made = smollm()
    made.normalizer = normalizers.NFC()
    return made


def qwen2() -> tokenizers.Tokenizer:
    made = _trained(_split(_LETTERS + r"|\p{N}" + _SIGNS + _SPLIT))
    made.normalizer = normalizers.NFC()
    return made


FAMILIES: Mapping[str, tuple[Callable[[], tokenizers.Tokenizer], dict[str, Any]]] = {
    "gpt-2": (gpt2, {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}),
    "smollm": (smollm, {"eos_token": SPECIAL[1]}),
    "llama-bpe": (llama3, {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1]}),
    "qwen2": (qwen2, {"eos_token": SPECIAL[1], "pad_token": SPECIAL[0], "add_bos_token": False}),
    "gpt-4o": (gpt4o, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "seed-coder": (seed_coder, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "qwen35": (qwen35, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "deepseek-v3": (deepseek_v3, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "deepseek-coder": (deepseek_coder, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "command-r": (command_r, {"eos_token": SPECIAL[1], "add_bos_token": False}),
    "llama": (llama2, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
}


def made_folder(folder: Path, family: str, **more: Any) -> Path:
    make, config = FAMILIES[family]
    make_checkpoint(folder, "llama", vocab_size=512, num_hidden_layers=1)
    write_folder(folder, make(), {"chat_template": CHAT_TEMPLATE} | config | more)
    return folder


def converted(tmp_path: Path, family: str = "gpt-2", **further: Any) -> Path:
    """A GGUF file. further: entries with `_` in place of the last `.`."""
    folder = made_folder(tmp_path / "model", family)
    entries = {f"tokenizer.ggml.{key}": value for key, value in further.items()}
    write_gguf(folder, tmp_path / "m.gguf", "F16", pre=family, further=entries)
    return tmp_path / "m.gguf"


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_ids(tmp_path: Path, family: str, special: bool) -> None:
    path = converted(tmp_path, family)
    original, made = Tokenizer.load(tmp_path / "model"), Tokenizer.load(path)
    for text in TEXTS:
        ids = original.encode(text, add_special_tokens=special).tolist()
        assert made.encode(text, add_special_tokens=special).tolist() == ids, text
        for skip in (True, False):
            decoded = original.decode(ids, skip_special_tokens=skip)
            assert made.decode(ids, skip_special_tokens=skip) == decoded
        assert made.encode_after(text).tolist() == original.encode_after(text).tolist()
    assert made.added_ids - made.special_ids == original.added_ids - original.special_ids
    assert made.special_ids - original.special_ids <= {made.token_id("<unk>")}
    assert (made.bos_token_id, made.eos_token_id) == (original.bos_token_id, original.eos_token_id)
    assert made.vocab_size == original.vocab_size


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_prompt(tmp_path: Path, family: str) -> None:
    path = converted(tmp_path, family)
    original, made = ChatTemplate.load(tmp_path / "model"), ChatTemplate.load(path)
    assert original is not None
    assert made is not None
    messages = [{"role": "user", "content": "é 你好"}, {"role": "assistant", "content": "x"}]
    assert made.render(messages) == original.render(messages)


def test_a_file_s_template_gives_way_to_the_user_s(tmp_path: Path) -> None:
    path, own = converted(tmp_path), tmp_path / "own.jinja"
    own.write_text("mine {{ eos_token }}")
    template = ChatTemplate.load(path, own)
    assert template is not None
    assert template.render([]) == "mine <|end|>"


def test_templates_with_names(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "model", "gpt-2")
    named = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    write_gguf(folder, tmp_path / "m.gguf", "F16", further=named)
    template = ChatTemplate.load(tmp_path / "m.gguf")
    assert template is not None
    assert template.render([]) == "plain"
    assert template.render([], tools=[{}]) == "tools"


def test_no_template(tmp_path: Path) -> None:
    folder = made_folder(tmp_path / "model", "gpt-2")
    write_gguf(folder, tmp_path / "m.gguf", "F16", further={"tokenizer.chat_template": None})
    assert ChatTemplate.load(tmp_path / "m.gguf") is None


def test_a_template_is_bounded_and_run_in_the_sandbox(tmp_path: Path) -> None:
    folder, path = made_folder(tmp_path / "model", "gpt-2"), tmp_path / "m.gguf"
    write_gguf(folder, path, "F16", further={"tokenizer.chat_template": "x" * (5 << 20)})
    with pytest.raises(CheckpointError, match=r"'tokenizer\.chat_template' is longer than"):
        ChatTemplate.load(path)
    write_gguf(folder, path, "F16", further={"tokenizer.chat_template": "{{ ().__class__.x }}"})
    template = ChatTemplate.load(path)
    assert template is not None
    with pytest.raises(ModelError.__mro__[1], match="unsafe"):
        template.render([])


@pytest.mark.parametrize("add", [True, False])
@pytest.mark.parametrize("family", ["gpt-2", "llama"])
def test_what_a_text_begins_and_ends_with_is_the_file_s_say(
    tmp_path: Path, family: str, add: bool
) -> None:
    made = Tokenizer.load(converted(tmp_path, family, add_bos_token=add, add_eos_token=add))
    ids = made.encode("hello").tolist()
    plain = made.encode("hello", add_special_tokens=False).tolist()
    assert ids == ([made.bos_token_id, *plain, made.eos_token_id] if add else plain)


@pytest.mark.parametrize("text", ["a:b", "$x", "$A", "<s>:1"])
def test_the_first_token_may_have_any_text(tmp_path: Path, text: str) -> None:
    """Templates of tokenizers give some texts another meaning."""
    tokens = [str(token) for token in GGUFFile(converted(tmp_path)).metadata[_TOKENS]]
    begin = len(tokens) - 1
    tokens[begin] = text
    path = converted(tmp_path, tokens=tokens, bos_token_id=begin, add_bos_token=True)
    assert Tokenizer.load(ModelFile(path)).encode("x")[0] == begin


def test_without_a_space_in_front(tmp_path: Path) -> None:
    made = Tokenizer.load(converted(tmp_path, "llama", add_space_prefix=False))
    assert made.decode(made.encode(" hello")) == " hello"
    first = made.encode("hello", add_special_tokens=False)[0]
    assert not made.spelling(int(first)).startswith("▁")


def test_pieces_with_merges_of_their_own(tmp_path: Path) -> None:
    """Gemma 4's: sentencepiece's way, but for the order of merges, and with no space in front."""
    converted(tmp_path, "llama")
    place = tmp_path / "model" / "tokenizer.json"
    state = json.loads(place.read_text())
    merges = [" ".join(merge) for merge in state["model"]["merges"]]
    state["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    state["decoder"]["decoders"] = state["decoder"]["decoders"][:3]
    place.write_text(json.dumps(state))
    further = {"model": "gemma4", "merges": merges, "scores": None}
    made = Tokenizer.load(converted(tmp_path, "llama", **further))
    original = tokenizers.Tokenizer.from_str(json.dumps(state))
    for text in TEXTS:
        ids = original.encode(text, add_special_tokens=False).ids
        assert made.encode(text, add_special_tokens=False).tolist() == ids, text


def test_a_file_can_be_another_model_s_tokenizer(tmp_path: Path) -> None:
    path = converted(tmp_path, "qwen2")
    assert Tokenizer.load(ModelFile(path)).encode("hello world").size


@pytest.mark.parametrize(
    ("further", "error", "text"),
    [
        ({"model": "t5"}, UnsupportedModelError, r"ggml\.model is 't5'.*supported: gpt2, llama"),
        ({"model": None}, UnsupportedModelError, r"ggml\.model is None"),
        ({"pre": "chameleon"}, UnsupportedModelError, r"ggml\.pre is 'chameleon'.*llama-bpe"),
        ({"tokens": None}, CheckpointError, r"ggml\.tokens' is not a list of texts"),
        ({"tokens": [1, 2]}, CheckpointError, r"ggml\.tokens' is not a list of texts"),
        ({"token_type": [1] * 511}, CheckpointError, r"token_type' is an array of 511, but there"),
        ({"tokens": ["a"] * 512}, CheckpointError, r"ggml\.tokens' is a list in which a token"),
        ({"token_type": ["a"]}, CheckpointError, r"token_type' is not an array of numbers"),
        ({"token_type": [1.0] * 512}, CheckpointError, r"token_type' is not an array of numbers"),
        ({"merges": ["ab"]}, CheckpointError, r"ggml\.merges' is a list with 'ab', not two"),
        ({"merges": ["q☃ x"]}, ModelError, "the tokenizer in .* cannot be made"),
        ({"merges": [1]}, CheckpointError, r"ggml\.merges' is array"),
        ({"bos_token_id": 512}, CheckpointError, r"bos_token_id' is 512, no id of a vocabulary"),
        ({"eos_token_id": "x"}, CheckpointError, r"eos_token_id' is 'x', not of type int"),
        ({"add_bos_token": 1}, CheckpointError, r"add_bos_token' is 1, not of type bool"),
        ({"model": "llama"}, CheckpointError, r"ggml\.scores' is missing"),
        ({"model": "llama", "scores": [1.0]}, CheckpointError, r"scores' is an array of 1, but"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path, further: dict[str, Any], error: type[ModelError], text: str
) -> None:
    path = converted(tmp_path, "gpt-2", **further)
    with pytest.raises(error, match=text):
        Tokenizer.load(path)


def test_pieces_that_would_take_hours(tmp_path: Path) -> None:
    long = [f"{at}" * 200 for at in range(512)]
    further = {"model": "llama", "tokens": long, "scores": [0.0] * 512}
    with pytest.raises(CheckpointError, match=r"tokens' is a list with one of 200 characters"):
        Tokenizer.load(converted(tmp_path, "gpt-2", **further))


def test_what_fills_a_vocabulary_up_is_no_token(tmp_path: Path) -> None:
    path = converted(tmp_path, "gpt-2")
    file = GGUFFile(path)
    unused = np.flatnonzero(file.metadata["tokenizer.ggml.token_type"] == 5)
    assert unused.size
    made = Tokenizer.load(path)
    assert made.spelling(int(unused[0])) is None
    assert json.dumps(made.config)
