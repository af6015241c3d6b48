"""Files of a stranger's folder are read up to a size, and only if they are files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from radixlm.core.errors import CheckpointError, ModelError
from radixlm.formats.files import open_regular, read_bytes, read_json_object, read_text
from radixlm.formats.model_files import ModelFolder
from radixlm.text.chat_template import ChatTemplate


def test_a_long_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("four")
    assert read_text(path, 4) == "four"
    with pytest.raises(ValueError, match="longer than 3 bytes"):
        read_text(path, 3)


def test_a_file_without_end_is_not_read(tmp_path: Path) -> None:
    """A pipe would be waited for, for ever."""
    os.mkfifo(tmp_path / "tokenizer_config.json")
    (tmp_path / "chat_template.jinja").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_json_object(tmp_path / "tokenizer_config.json")
    with pytest.raises(ModelError, match="not a regular file"):
        ModelFolder(tmp_path).tokenizer_config()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ModelError, match="not a regular file"):
        ChatTemplate.load(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "folder", "link to a pipe"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    """Nothing waits for another end, and nothing is read that has none."""
    path = tmp_path / "f"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "socket":
            os.mknod(path, stat.S_IFSOCK | 0o600)
        case "folder":
            path.mkdir()
        case _:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to(tmp_path / "pipe")
    with pytest.raises(ValueError, match="it is not a regular file"):
        open_regular(path)


def test_a_link_to_a_file_is_a_file(tmp_path: Path) -> None:
    """As in the hub's cache."""
    (tmp_path / "blob").write_bytes(b"four")
    (tmp_path / "name").symlink_to(tmp_path / "blob")
    with open_regular(tmp_path / "name") as file:
        assert file.read() == b"four"
    assert read_bytes(tmp_path / "name", None) == b"four"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_json_is_an_error_of_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"tokenizer_config\.json is too deeply nested"):
        ModelFolder(tmp_path).tokenizer_config()


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
    ],
)
def test_a_template_that_python_can_not_compile_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(ModelError, match="not valid Jinja"):
        ChatTemplate(source)
