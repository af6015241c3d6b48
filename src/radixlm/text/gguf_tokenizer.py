"""The tokenizer that a GGUF file describes, as the `tokenizers` library has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from radixlm.core.errors import ModelError, UnsupportedModelError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.formats.gguf_tokens import tokenizer_config_of, tokens_of

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
# A merge is looked for at each place of a token.
_LONGEST_PIECE = 128
_SPACE = "▁"

# How a text is parted before bytes are merged. `N` stands for what a run of digits may be.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|N| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+C"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*C"
    r"|N| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_WORDS = _CASED.replace("C|", "|").replace("|N|", r"|\p{N}|")
_CASED_THREES = _CASED.replace("C|", f"{_CONTRACTED}|").replace("|N|", r"|\p{N}{1,3}|")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREES = _WORDS.replace("N|", r"\p{N}{1,3}|", 1)
_ONES = _WORDS.replace("N|", r"\p{N}|", 1)
_MARKED = _ONES.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
_SEED = _ONES.replace(r"[^\s\p{L}\p{N}]+[\r\n]*", r"[^\s\p{L}\p{N}\r\n]+")
_DIGITS_APART = (r"\p{N}", _GPT2)
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# DeepSeek's: letters with case, of the Unicode of its time.
_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-"
    "\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20"
    "-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc"
    "\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6"
    "-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-"
    "\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-"
    "\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-"
    "\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-"
    "\U000118df\U0001e900-\U0001e943"
)
_SIGNS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK = ("[\r\n]", rf"\s?[{_LETTERS}]+", rf"\s?[{_SIGNS}]+", r"\s+$", _HAN, r"\p{N}+")
_DEEPSEEK_3 = (
    *(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
    (
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
)
_NAMES: dict[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2 phi-2 mpt olmo exaone4 trillion jais granite-docling gigachat mellum",
    _DIGITS_APART: "smollm starcoder refact command-r minerva-7b exaone",
    (_THREES,): (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 lfm2 pixtral midm-2.0 dbrx smaug-bpe glm4 "
        "chatglm-bpe"
    ),
    (_ONES,): "qwen2 deepseek-r1-qwen stablelm2 megrez kormo hunyuan solar-open grok-2",
    (_MARKED,): "qwen35",
    (_SEED,): "seed-coder",
    (_CASED_WORDS,): "tekken",
    (_CASED_THREES,): "gpt-4o llama4 kanana2 minimax-m2",
    _DEEPSEEK: "deepseek-llm",
    ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"): "deepseek-coder",
    _DEEPSEEK_3: "deepseek-v3 hunyuan-dense joyai-llm",
    (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
}
# By `tokenizer.ggml.pre`, as llama.cpp's converters name them: patterns, one after the other.
_PATTERNS = {name: patterns for patterns, names in _NAMES.items() for name in names.split()}
# A word that is a token stays one, whatever its merges; a text begins with the model's first token.
_WHOLE_WORDS = (
    *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral", "midm-2.0"),
    "tekken",
)
_COMPOSED = ("qwen2", "qwen35", "command-r")


def tokenizer_of(file: GGUFFile) -> tokenizers.Tokenizer:
    """Raises UnsupportedModelError for kinds that are not known, CheckpointError for what is
    broken; both name the key.
    """
    tokens, kinds = tokens_of(file), _kinds(file)
    if len(set(tokens)) != len(tokens):
        raise file.wrong("tokenizer.ggml.tokens", "a list in which a token is there twice")
    kind = file.get("tokenizer.ggml.model", str)
    make = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _merged_pieces}.get(kind)
    if make is None:
        raise UnsupportedModelError(
            f"{file.path}: tokenizer.ggml.model is {kind!r:.80}, which is not supported; "
            "supported: gpt2, llama, gemma4"
        )
    # What fills the vocabulary up is no text's token.
    unused = [each == _UNUSED for each in kinds]
    vocab = {text: at for at, text in enumerate(tokens) if text and not unused[at]}
    try:
        made, begins = make(file, vocab, kinds)
    except (ModelError, MemoryError):
        raise
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the tokenizer in {file.path} cannot be made: {error}") from error
    _add(made, tokens, kinds)
    _frame(made, file, begins)
    return made


def _kinds(file: GGUFFile) -> list[int]:
    """The kind of each token; where the file says nothing, all are ordinary."""
    count = len(tokens_of(file))
    found = _array(file, "tokenizer.ggml.token_type", "iu")
    return [_NORMAL] * count if found is None else found


def _array(file: GGUFFile, key: str, dtypes: str) -> list[Any] | None:
    """One number for each token. dtypes: letters of numpy's kinds."""
    found, count = file.metadata.get(key), len(tokens_of(file))
    if found is None:
        return None
    if not isinstance(found, np.ndarray) or found.dtype.kind not in dtypes:
        raise file.wrong(key, f"not an array of numbers, one for each of {count} tokens")
    if found.size != count:
        raise file.wrong(key, f"an array of {found.size}, but there are {count} tokens")
    values: list[Any] = found.tolist()
    return values


def _byte_level(
    file: GGUFFile, vocab: dict[str, int], _kinds: list[int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """A byte-level tokenizer, and whether a text begins with a token of its own."""
    key = "tokenizer.ggml.pre"
    pre = file.get(key, str, "default")
    patterns = _PATTERNS.get(pre)
    if patterns is None:
        raise UnsupportedModelError(
            f"{file.path}: {key} is {pre!r:.80}, which is not supported; supported: "
            f"{', '.join(_PATTERNS)}"
        )
    merges = [_parted(file, line) for line in file.get("tokenizer.ggml.merges", list, [])]
    whole = pre in _WHOLE_WORDS
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, ignore_merges=whole))
    if pre in _COMPOSED:
        made.normalizer = normalizers.NFC()
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    return made, whole


def _parted(file: GGUFFile, line: Any) -> tuple[str, str]:
    left, space, right = line.partition(" ") if isinstance(line, str) else ("", "", "")
    if not (left and space and right):
        raise file.wrong("tokenizer.ggml.merges", f"a list with {line!r:.80}, not two tokens")
    return left, right


def _sentencepiece(
    file: GGUFFile, vocab: dict[str, int], kinds: list[int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """A tokenizer with sentencepiece's merges: the pair whose token has the highest score is merged
    first; of one token's that with the longest left part, as transformers has it.
    """
    scores = _array(file, "tokenizer.ggml.scores", "f")
    if scores is None:
        raise file.wrong("tokenizer.ggml.scores", "missing")
    merges: list[tuple[float, int, str, str]] = []
    for text, at in vocab.items():
        if kinds[at] != _NORMAL:
            continue
        if len(text) > _LONGEST_PIECE:
            raise file.wrong("tokenizer.ggml.tokens", f"a list with one of {len(text)} characters")
        for place in range(1, len(text)):
            left, right = text[:place], text[place:]
            if left in vocab and right in vocab:
                merges.append((-scores[at], -place, left, right))
    merges.sort(key=lambda merge: merge[:2])
    spaced = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    return _pieces(file, vocab, [(left, right) for *_, left, right in merges], spaced=spaced), True


def _merged_pieces(
    file: GGUFFile, vocab: dict[str, int], _kinds: list[int]
) -> tuple[tokenizers.Tokenizer, bool]:
    """Gemma 4's: as sentencepiece has them, but with merges of the file's own."""
    merges = [_parted(file, line) for line in file.get("tokenizer.ggml.merges", list, [])]
    return _pieces(file, vocab, merges, spaced=False), True


def _pieces(
    file: GGUFFile, vocab: dict[str, int], merges: list[tuple[str, str]], *, spaced: bool
) -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are texts, with a sign for a space. spaced: before all, too."""
    unknown = tokenizer_config_of(file).get("unk_token")
    unknown = unknown if unknown in vocab else None
    made = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    marks = normalizers.Replace(" ", _SPACE)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), marks] if spaced else [marks]
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if spaced else [])])
    return made


def _add(made: tokenizers.Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Add the tokens that are looked for in a text first."""
    for special, wanted in ((True, (_UNKNOWN, _CONTROL)), (False, (_USER_DEFINED,))):
        add = made.add_special_tokens if special else made.add_tokens
        found = [text for text, kind in zip(tokens, kinds, strict=True) if kind in wanted]
        add([AddedToken(text, special=special, normalized=False) for text in found if text])


def _frame(made: tokenizers.Tokenizer, file: GGUFFile, begins: bool) -> None:
    """The tokens that a text begins and ends with. begins: with one, if the file does not say."""
    config = tokenizer_config_of(file)
    # By names of our own: a token's text may be one that templates read in another way.
    parts, used = ["$A"], []
    for name, key, place, usual in (
        ("bos_token", "tokenizer.ggml.add_bos_token", 0, begins),
        ("eos_token", "tokenizer.ggml.add_eos_token", len(parts) + 1, False),
    ):
        if file.get(key, bool, usual) and name in config:
            parts.insert(place, name)
            text = config[name]
            used.append({"id": name, "ids": [tokens_of(file).index(text)], "tokens": [text]})
    if used:
        made.post_processor = processors.TemplateProcessing(single=parts, special_tokens=used)
