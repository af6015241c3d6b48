"""Drafts from an operator's texts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from radixlm.core.errors import ConfigError
from radixlm.core.keys import Key
from radixlm.drafts.corpus import CorpusDrafts
from radixlm.drafts.draft import Draft


def encode(text: str) -> Key:
    return np.frombuffer(text.encode("utf-32-le"), dtype=np.int32)


def after(drafts: CorpusDrafts, text: str, most: int = 4) -> str | None:
    draft = drafts.propose(None, encode(text), most)
    return None if draft is None else "".join(map(chr, draft.tokens))


def test_a_file_s_text_is_proposed_in_every_namespace(tmp_path: Path) -> None:
    path = tmp_path / "text.md"
    path.write_text("a brown fox jumps", encoding="utf-8")
    drafts = CorpusDrafts.load(path, encode, 256)
    tokens = tuple(encode(" jum").tolist())
    for namespace in (None, "a"):
        assert drafts.propose(namespace, encode("my fox"), 4) == Draft(tokens, "corpus", 4)
    assert after(drafts, "€") is None
    assert drafts.nbytes > 0


def test_a_folder_s_files_are_apart(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "one").write_text("abcdef", encoding="utf-8")
    (tmp_path / "two").write_text("ghijkl", encoding="utf-8")
    (tmp_path / "empty").touch()
    (tmp_path / ".hidden").write_bytes(b"\xff")
    drafts = CorpusDrafts.load(tmp_path, encode, 256)
    assert after(drafts, "abcd") == "ef"
    assert after(drafts, "ghij") == "kl"


def test_a_long_text_is_found_all_over(tmp_path: Path) -> None:
    text = np.random.default_rng(0).integers(1, 50_000, 200_000).astype(np.int32)
    drafts = CorpusDrafts()
    drafts.add(text)
    for end in (100, 65_530, 65_540, 131_080, 199_990):
        draft = drafts.propose(None, text[:end], 5)
        assert draft == Draft(tuple(text[end : end + 5].tolist()), "corpus", 32)


def test_what_can_not_be_used_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can not be read: No such file"):
        CorpusDrafts.load(tmp_path / "none", encode, 256)
    with pytest.raises(ConfigError, match="has no text"):
        CorpusDrafts.load(tmp_path, encode, 256)
    with pytest.raises(ConfigError, match="neither a file nor a folder"):
        CorpusDrafts.load(Path(os.devnull), encode, 256)
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bytes can not be read: .*utf-8"):
        CorpusDrafts.load(tmp_path, encode, 256)
    (tmp_path / "bytes").write_text("12345", encoding="utf-8")
    with pytest.raises(ConfigError, match="holds token id 53, the model's ids end at 52"):
        CorpusDrafts.load(tmp_path, encode, 53)
    with pytest.raises(ConfigError, match="more than 4 tokens"):
        CorpusDrafts.load(tmp_path, encode, 256, most=4)
    (tmp_path / "large").write_text("x" * 100, encoding="utf-8")
    with pytest.raises(ConfigError, match="larger than 80 bytes"):
        CorpusDrafts.load(tmp_path, encode, 256, most=5)
