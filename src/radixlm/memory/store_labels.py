"""Labels of files of blocks, in small files beside them, for an index that is made anew."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from radixlm.core.errors import DiskStoreError
from radixlm.formats.files import read_text
from radixlm.formats.private_files import replace_private

_MOST_BYTES = 1 << 20


class Label(NamedTuple):
    """An identity as the index has it, without what only the index knows."""

    digest: str
    facts: str
    block_tokens: int
    block_bytes: int


def label_path(blocks: Path) -> Path:
    """The path of the label of a file of blocks."""
    return blocks.with_suffix(".json")


def write_label(blocks: Path, label: Label) -> None:
    """Do so where it is not there yet, in one moment. Raises DiskStoreError."""
    path = label_path(blocks)
    if read_label(blocks) == label:
        path.chmod(0o600)  # a copy of another folder's may be open to others
        return
    content = json.dumps([*label, _check(label)]).encode()
    try:
        replace_private(path, content)
    except OSError as error:
        raise DiskStoreError(f"the disk cache's {path}: {error.strerror}") from None


def read_label(blocks: Path) -> Label | None:
    """None where there is none, or it is damaged."""
    try:
        *parts, check = json.loads(read_text(label_path(blocks), _MOST_BYTES))
        label = Label(*parts)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    whole = check == _check(label) and label.digest.startswith(blocks.stem)
    return label if whole else None


def _check(label: Label) -> str:
    return hashlib.blake2b(json.dumps(label).encode(), digest_size=16).hexdigest()
