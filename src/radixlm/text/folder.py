"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

from radixlm.core.errors import ModelError
from radixlm.text.hub import fetching, hub_name
from radixlm.text.unserved import check_file, check_kind

DEMO_MODEL = Path(__file__).parent.parent / "demo_model"
DEMO_NAME = "radixlm-demo"


def resolve_folder(model: str | None) -> Path:
    """The model's folder: None and "radixlm-demo" are the embedded model.

    Quick, so that a wrong one costs no wait. Raises ModelError that says what to do.
    """
    if model is None:
        return DEMO_MODEL
    if is_folder(model):
        folder = Path(model).expanduser()
        check_kind(folder)
        return folder
    if model == DEMO_NAME:
        return DEMO_MODEL
    if _is_file(model):
        check_file(Path(model).expanduser())
        raise ModelError(f"{model!r} is a file; give the folder that it is in")
    raise _missing(model)


def is_folder(model: str) -> bool:
    """Whether there is such a folder; a text that can be no path is none."""
    try:
        return bool(model) and Path(model).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, nobody's home
        return False


def _is_file(model: str) -> bool:
    try:
        return Path(model).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def _missing(model: str) -> ModelError:
    if (name := hub_name(model)) is not None:
        return ModelError(
            f"there is no folder {model!r}. If it is a model on the Hugging Face Hub, fetch it "
            "once, then serve the folder",
            commands=fetching(name),
        )
    return ModelError(
        f"there is no folder {model!r:.200}; give the path of a model's folder in Hugging Face "
        "format, or none at all for the embedded demo model. To fetch one from the Hub",
        commands=fetching("OWNER/NAME"),
    )
