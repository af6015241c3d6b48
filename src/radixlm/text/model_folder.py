"""The folder or file of a model, or its name on the Hub; errors for kinds that are not supported,
with commands that serve others.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.formats.files import QUANTIZERS, open_regular, read_json_object
from radixlm.formats.gguf_file import MAGIC, GGUFFile, part_of_split
from radixlm.formats.model_files import ModelFolder
from radixlm.formats.served import served_by

# OWNER/NAME, and a kind of GGUF files behind a colon.
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]*\w)(?::(\w+))?", re.ASCII)

_MOST_OF_CARD = 2**20  # bytes
# What llama.cpp calls the file with a model's vision, beside that of its text.
_VISION = "mmproj"
_SHOWN = 10
_QUANTIZERS = ("HQQ", "torchao", "Quark", "AutoRound", "Quanto", "EETQ", "AQLM", "VPTQ")
# How some of them make what is served, of the same model.
_INSTEAD = {
    "AutoRound": ", or save it from AutoRound with format='auto_gptq'",
    "Quark": ", or quantize it with llm-compressor, which saves compressed-tensors",
    "torchao": ", or quantize it with llm-compressor, which saves compressed-tensors",
    "MLX": ", or a GGUF file of it",
}
# What a model card says that its model was made from.
_MADE_FROM = re.compile(r"^base_model:\s*(?:-\s*)?[\"']?([\w.-]+/[\w.-]+)", re.MULTILINE)
_SERVED = f"weights in float32, bfloat16, float16, and by {', '.join(QUANTIZERS)} are"
DEMO_NAME = "radixlm-demo"


class HubModel(NamedTuple):
    """A model's name on the Hub, OWNER/NAME. kind: of its GGUF files; empty: the usual one."""

    name: str
    kind: str = ""


def hub_model(text: str) -> HubModel | None:
    """`text` if it could be a model's name on the Hub, OWNER/NAME or OWNER/NAME:KIND.

    >>> hub_model("Qwen/Qwen3-0.6B"), hub_model("./models/x"), hub_model("/models/x")
    (HubModel(name='Qwen/Qwen3-0.6B', kind=''), None, None)
    """
    match = _NAME.fullmatch(text)
    return None if match is None else HubModel(match[1], match[2] or "")


def on_hub(model: str | None) -> HubModel | None:
    """A model that is named as on the Hub, and is no folder or file here."""
    if model is None or model.endswith(".gguf") or _holds(model, Path.exists):
        return None
    return hub_model(model)


def serving(model: str) -> str:
    """The command that serves a folder, a file or a model of the Hub."""
    return f"{_tool('radixlm')} serve {model}"


def _tool(name: str) -> str:
    """How this shell can call a command that comes with RadixLM."""
    beside = Path(sys.executable).with_name(name)
    if shutil.which(name) is not None or not beside.is_file():
        return name
    with contextlib.suppress(ValueError, OSError):
        return str(beside.relative_to(Path.cwd()))
    return str(beside)


_QUANTIZER_OF = {
    **{name.lower(): name for name in _QUANTIZERS},
    "auto-round": "AutoRound",
    "intel/auto-round": "AutoRound",
}


def check_file(path: Path) -> None:
    """Raise ModelError where a file is no GGUF file, or one that is damaged."""
    if path.exists() and _head(path, len(MAGIC)) != MAGIC:
        what = "is not a GGUF file" if path.suffix == ".gguf" else "is a file"
        raise ModelError(f"{str(path)!r} {what}; give the folder of a model, or a GGUF file")
    GGUFFile(path)


def found_file(folder: Path) -> Path | None:
    """The GGUF file of a folder that holds one, or the parts of one, and no other weights. Raises
    UnsupportedModelError where there are several.
    """
    if _has_weights(folder):
        return None
    found = sorted(
        {part_of_split(path) for path in folder.glob("*.gguf") if _VISION not in path.name}
    )
    if len(found) > 1:
        shown = ", ".join(path.name for path in found[:_SHOWN]) + (", ..." * (len(found) > _SHOWN))
        raise UnsupportedModelError(
            f"{str(folder)!r} holds {len(found)} GGUF files ({shown}); give one of them",
            commands=(serving(shlex.quote(str(found[0]))),),
        )
    return found[0] if found else None


def check_kind(folder: Path) -> None:
    """Raise UnsupportedModelError, with what to do, where a folder's model is not supported."""
    if (folder / "adapter_config.json").is_file() and not _has_weights(folder):
        raise _adapter(folder)
    if not (folder / "config.json").is_file():
        _check_hub_cache(folder)
        return
    config = _read(folder / "config.json")
    quantization = config.get("quantization_config")
    if quantization is not None and (method := _method(quantization)) not in QUANTIZERS:
        how = _QUANTIZER_OF.get(method, repr(method[:40])) if method else "an unnamed method"
        raise _quantized(folder, how, "quantization_config")
    if isinstance(config.get("quantization"), Mapping):
        raise _quantized(folder, "MLX", "quantization")


def _adapter(folder: Path) -> UnsupportedModelError:
    base = str(_read(folder / "adapter_config.json").get("base_model_name_or_path") or "")
    known = hub_model(base)
    whose = f" for the model {base!r:.200}" if base else ""
    return UnsupportedModelError(
        f"{str(folder)!r} is a LoRA adapter{whose}, not a model (it has an adapter_config.json); "
        f"serve that with --lora-paths {shlex.quote(str(folder))}",
        commands=(serving(known.name),) if known else (),
    )


def _quantized(folder: Path, how: str, field: str) -> UnsupportedModelError:
    """`field`: of config.json, where it says so."""
    card = folder / "README.md"
    made_from = (
        _MADE_FROM.search(_head(card, _MOST_OF_CARD).decode(errors="replace"))
        if card.is_file()
        else None
    )
    return UnsupportedModelError(
        f"{str(folder)!r} is a checkpoint quantized with {how} ({field} in its config.json), which "
        f"is not supported yet: {_SERVED}. Take the model that it was made from, which "
        "--quantization int8, fp8 or int4 makes as small while it is loaded"
        f"{_INSTEAD.get(how, '')}",
        commands=(serving(made_from[1] if made_from else "OWNER/NAME"),),
    )


def _method(section: object) -> str:
    """The quantization method in small letters; empty where there is none."""
    method = section.get("quant_method") if isinstance(section, Mapping) else None
    return method.lower() if isinstance(method, str) else ""


def _check_hub_cache(folder: Path) -> None:
    """A model's folder in the Hub's own cache holds it one level down, once for each version."""
    versions = sorted(path.parent for path in folder.glob("snapshots/*/config.json"))
    if versions:
        raise UnsupportedModelError(
            f"{str(folder)!r} is the Hugging Face cache of a model; give the version in it",
            commands=(serving(shlex.quote(str(versions[-1]))),),
        )


def _has_weights(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (
        (folder / "model.safetensors").is_file()
        or (folder / "model.safetensors.index.json").is_file()
    )


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, which loading the model will report."""
    try:
        return read_json_object(path)
    except CheckpointError:
        return {}


def _head(path: Path, most: int) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(most)
    except (OSError, ValueError):
        return b""


DEMO_MODEL = Path(__file__).resolve().parent.parent / "demo_model"
# The draft head of it.
DEMO_HEAD = DEMO_MODEL / "eagle3"


def resolve_model(model: str | None) -> Path:
    """The model's folder, or its GGUF file: None and "radixlm-demo" are the embedded model.

    Quick, so that a wrong one costs no wait. Raises ModelError that says what to do.
    """
    if model is None:
        return DEMO_MODEL
    if model and _holds(model, Path.is_dir):
        folder = Path(model).expanduser()
        if (file := found_file(folder)) is None:
            check_kind(folder)
            return folder
        check_file(file)
        return file
    if model == DEMO_NAME:
        return DEMO_MODEL
    if _holds(model, Path.is_file):
        file = Path(model).expanduser()
        check_file(file)
        return file
    raise _missing(model)


def loadable(model: str | None) -> Path:
    """The same of a model whose weights are to be loaded: what its config and the names of its
    files tell is said before torch is imported. Raises ModelError.
    """
    path = resolve_model(model)
    if path.is_dir():
        folder = ModelFolder(path)
        served_by(folder.whole_config())
        folder.weights()
    return path


def is_model(model: str) -> bool:
    """Whether a text is a model's place more likely than a prompt: a folder, or a GGUF file."""
    if not model:
        return False
    return _holds(model, Path.is_dir) or (model.endswith(".gguf") and _holds(model, Path.is_file))


def _holds(model: str, test: Callable[[Path], bool]) -> bool:
    """Whether a path passes a test; a text that can be no path does not."""
    try:
        return test(Path(model).expanduser())
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, no such user's home
        return False


def _missing(model: str) -> ModelError:
    if model.endswith(".gguf"):
        return ModelError(f"there is no file {model!r:.200}; give the path of a GGUF file")
    return ModelError(
        f"there is no folder {model!r:.200}; give the path of a model's folder in Hugging Face "
        "format or of a GGUF file, a name on the Hugging Face Hub, or none at all for the embedded "
        "demo model",
        commands=(serving("OWNER/NAME"),),
    )
