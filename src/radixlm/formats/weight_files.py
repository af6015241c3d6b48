"""The files that a model's weights are in: the one list of those that are loaded, and of those that
identify what was computed with them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

from radixlm.core.errors import CheckpointError
from radixlm.formats.files import open_regular, read_json_object
from radixlm.formats.text_part import has_other_parts, text_names

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_MOST_OF_HEADER = 2**27  # bytes
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class Stamp(NamedTuple):
    """Changes when a file is written or replaced, whatever is in it."""

    nbytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        return cls(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


class WeightFile(NamedTuple):
    """path: without links. stamp: when it was listed."""

    path: Path
    stamp: Stamp

    def changed(self) -> CheckpointError:
        return CheckpointError(
            f"{self.path} was written or replaced while the model was loaded: start again"
        )


def stamped(paths: Iterable[Path]) -> tuple[WeightFile, ...]:
    """The files as they are now. Raises CheckpointError for one that cannot be found."""
    return tuple(WeightFile(path.resolve(), _stamp_of(path)) for path in paths)


def _stamp_of(path: Path) -> Stamp:
    try:
        return Stamp.of(path.stat())
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def weight_files(folder: Path, beside: tuple[str, ...] = ()) -> list[Path]:
    """The safetensors files of a folder, as its index has them if there is one; of a model of more
    than text those with its text, and with tensors whose names begin as `beside` says.

    Raises CheckpointError for missing files, and for names that lead out of the folder.
    """
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (indexed := weight_map(folder)) is not None:
        wanted = text_tensors(folder, beside)
        return sorted({path for name, path in indexed.items() if wanted is None or name in wanted})
    pickles = [path.name for path in sorted(folder.glob("*")) if path.suffix in _PICKLES]
    if pickles:
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when loaded and "
            "are refused; convert them on a machine you can spare: AutoModelForCausalLM"
            f".from_pretrained({str(folder)!r}).save_pretrained(...) of transformers writes "
            "safetensors"
        )
    raise CheckpointError(
        f"{folder} has neither {_SINGLE} nor {_INDEX}: fetch it again, with its weights"
    )


def weight_map(folder: Path) -> dict[str, Path] | None:
    """The file that each tensor is in, by the folder's index; None: one file has all. Raises
    CheckpointError as `weight_files`.
    """
    if (folder / _SINGLE).is_file() or not (folder / _INDEX).is_file():
        return None
    found = read_json_object(folder / _INDEX).get("weight_map")
    if not isinstance(found, dict) or not found or set(map(type, found.values())) != {str}:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map with names of files")
    for name in sorted(set(found.values())):
        if _leaves_the_folder(name):
            raise CheckpointError(f"{folder / _INDEX} points outside of its folder: {name!r}")
        if not os.path.isfile(folder / name):  # of names that are too long, too
            raise CheckpointError(
                f"{folder} lacks the shard {name!r:.200}, which {_INDEX} names: fetch it again"
            )
    return {tensor: folder / name for tensor, name in found.items()}


def main_dtype(folder: Path) -> str | None:
    """The type in floats that most of a model's first file is in; None: there is no such file."""
    found: Counter[str] = Counter()
    try:
        for tensor in _header(weight_files(folder)[0]).values():
            if (dtype := _DTYPES.get(tensor.get("dtype"))) is not None:
                first, stop = tensor["data_offsets"]
                found[dtype] += stop - first
    except (CheckpointError, OSError, ValueError, RecursionError, AttributeError, LookupError):
        return None  # loading it will say what is wrong
    return found.most_common(1)[0][0] if found else None


def text_tensors(folder: Path, beside: tuple[str, ...] = ()) -> dict[str, str] | None:
    """The tensors of the text of a model of more, and their names in a model of text alone; None:
    all are a text's, by their own names. beside: see `weight_files`; of these the names stay.
    Raises CheckpointError as `weight_files`.
    """
    config = folder / "config.json"
    if not config.is_file() or not has_other_parts(read_json_object(config)):
        return None
    if (names := weight_map(folder)) is None:
        try:
            names = _header(weight_files(folder)[0])
        except (OSError, ValueError, RecursionError):
            return {}  # loading it will say what is wrong
    if not (found := text_names(names)):
        raise CheckpointError(
            f"{folder} has no weights of a text: none of its tensors ends with embed_tokens.weight"
        )
    return found | {name: name for name in names if name.startswith(beside)}


def _header(path: Path) -> dict[str, Any]:
    """Header of a safetensors file, by tensor. Raises OSError, ValueError, RecursionError."""
    with open_regular(path) as file:
        length = min(int.from_bytes(file.read(8), "little"), _MOST_OF_HEADER)
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    return header


def _leaves_the_folder(name: str) -> bool:
    """Whether a path leaves the folder, by its spelling only: in the hub's cache the files
    themselves are links to elsewhere.
    """
    paths = (PurePosixPath(name), PureWindowsPath(name))
    return any(path.anchor or ".." in path.parts for path in paths)
