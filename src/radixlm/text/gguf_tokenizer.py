"""The tokenizer that a GGUF file describes, as the `tokenizers` library has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from radixlm.core.errors import ModelError, UnsupportedModelError
from radixlm.formats.gguf_config import tokenizer_config_of, tokens_of
from radixlm.formats.gguf_file import GGUFFile

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
# A merge is looked for at each place of a token.
_LONGEST_PIECE = 128
_SPACE = "▁"

# How a text is parted before bytes are merged. `N` stands for what a run of digits may be.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|N| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASED_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREES = _WORDS.replace("N|", r"\p{N}{1,3}|", 1)
_ONES = _WORDS.replace("N|", r"\p{N}|", 1)
_DIGITS_APART = (r"\p{N}", _GPT2)
# By `tokenizer.ggml.pre`, as llama.cpp's converter names them: patterns, one after the other.
_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4", "trillion"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "minerva-7b"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"), (_THREES,)),
    **dict.fromkeys(("dbrx", "smaug-bpe"), (_THREES,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), (_ONES,)),
    "tekken": (_CASED_WORDS,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
# A word that is a token stays one, whatever its merges; a text begins with the model's first token.
_WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2", "tekken")
_COMPOSED = ("qwen2",)


def tokenizer_of(file: GGUFFile) -> tokenizers.Tokenizer:
    """Raises UnsupportedModelError for kinds that are not known, CheckpointError for what is
    broken; both name the key.
    """
    tokens, kinds = tokens_of(file), _kinds(file)
    if len(set(tokens)) != len(tokens):
        raise file.wrong("tokenizer.ggml.tokens", "a list in which a token is there twice")
    kind = file.get("tokenizer.ggml.model", str)
    make = {"gpt2": _byte_level, "llama": _sentencepiece}.get(kind)
    if make is None:
        raise UnsupportedModelError(
            f"{file.path}: tokenizer.ggml.model is {kind!r:.80}, which is not supported; "
            "supported: gpt2, llama"
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
    pairs = [(left, right) for *_, left, right in merges]
    unknown = tokenizer_config_of(file).get("unk_token")
    unknown = unknown if unknown in vocab else None
    made = tokenizers.Tokenizer(
        models.BPE(vocab, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaced = file.get("tokenizer.ggml.add_space_prefix", bool, True)
    marks = normalizers.Replace(" ", _SPACE)
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend(_SPACE), marks] if spaced else [marks]
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if spaced else [])])
    return made, True


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
