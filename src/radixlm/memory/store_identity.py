"""What keys and values depend on beside their tokens, as one digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from radixlm.core.errors import CheckpointError
from radixlm.core.model_files import ModelFile, ModelFiles

# Changes with the files' layout, and with that of a block's bytes.
LAYOUT = 1
# Of a weights' file: its first and last bytes, where its header is, and as many between.
_PIECE, _PIECES = 1 << 20, 16
_DIGEST_BYTES = 32

Fact = str | int | float | bool | None


@dataclass(frozen=True)
class StoreIdentity:
    """facts: what a user is shown of it, and all that makes keys and values what they are: the
    model's name and config, `weights_digest`, types, quantization, rope, page size.
    """

    facts: Mapping[str, Fact]

    def digest(self, block_tokens: int, block_bytes: int) -> str:
        """64 hexadecimal digits, of the layout's version and a block's sizes too."""
        whole = {**self.facts, "": [LAYOUT, block_tokens, block_bytes]}
        text = json.dumps(whole, sort_keys=True, ensure_ascii=True)
        return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()

    def described(self) -> str:
        return json.dumps(dict(self.facts), sort_keys=True)

    @classmethod
    def of_model(cls, files: ModelFiles, **facts: Fact) -> StoreIdentity:
        """facts: what the files do not say, as types and page size. Raises CheckpointError."""
        if isinstance(files, ModelFile):
            weights, config = [files.path], ""
        else:
            weights = sorted(files.path.glob("*.safetensors"))
            text = json.dumps(dict(files.config()), sort_keys=True)
            config = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        own = {"model": files.name, "config": config, "weights": weights_digest(weights)}
        return cls({**own, **facts})


def weights_digest(paths: Sequence[Path]) -> str:
    """Of the files' sizes and of samples of their bytes: the first and last MiB and 14 between. To
    read all would take minutes. A fine-tuned model changes nearly all bytes; a file in which only
    some bytes between samples are others is not noticed. Raises CheckpointError.
    """
    total = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for path in paths:
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                total.update(size.to_bytes(8, "little"))
                last = max(0, size - _PIECE)
                for number in range(_PIECES):
                    file.seek(last * number // (_PIECES - 1))
                    total.update(file.read(_PIECE))
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None
    return total.hexdigest()
