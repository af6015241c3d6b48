"""Where a model's files are."""

from __future__ import annotations

from pathlib import Path

from radixlm.core.errors import ModelError

DEMO_MODEL = Path(__file__).parent.parent / "demo_model"


def resolve_folder(model: str | None) -> Path:
    """The model's folder. Raises ModelError that says what to do."""
    if model is None:
        return DEMO_MODEL
    folder = Path(model).expanduser()
    if folder.is_file():
        raise ModelError(f"{model!r} is a file; give the folder that it is in")
    if not folder.is_dir():
        raise ModelError(
            f"there is no folder {model!r}; give the path of a model folder in Hugging Face "
            "format (download one with `hf download NAME --local-dir FOLDER`), or none at all "
            "for the embedded demo model"
        )
    return folder
