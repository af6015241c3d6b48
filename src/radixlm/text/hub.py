"""Models of the Hugging Face Hub, fetched into the cache that its other tools share."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import httpx2
import huggingface_hub as library  # imports what is asked of it at its first use
from huggingface_hub import constants, errors

from radixlm.core.errors import ModelError
from radixlm.text.model_folder import HubModel, on_hub, serving

# What is read of a folder: no pickles, no code.
_BESIDE = (".json", ".jinja", ".model", ".txt", ".md")
# The same weights in the form of their makers, and a model's vision as llama.cpp calls it.
_NOT_READ = ("consolidated", "mmproj")
_KIND = re.compile(r"[-.](I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)(?=[-.])", re.IGNORECASE)
_USUAL = "Q4_K_M"
_SHOWN = 12
_LOG_IN = ("hf auth login",)


def fetched(model: str | None, revision: str | None) -> str | None:
    """The model's place here, after `fetch` where it is named as on the Hub."""
    hub = on_hub(model)
    return model if hub is None else str(fetch(hub, revision))


def fetch(model: HubModel, revision: str | None = None) -> Path:
    """Fetch what is missing of a model; returns its folder in the Hub's cache, or its GGUF file.

    What broke off goes on where it ended. Where the Hub does not answer, what is cached is taken.
    revision: a branch, tag or commit. Raises ModelError that says what to do.
    """
    hub = constants.ENDPOINT
    try:
        return _fetched(model, revision)
    except errors.GatedRepoError:
        raise ModelError(
            f"{model.name} is for those who have accepted its terms at {hub}/{model.name}; then "
            "log in, or set HF_TOKEN",
            commands=_LOG_IN,
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ModelError(
            f"there is no folder {model.name!r}, and {hub} has no such model, or a private one: "
            "look for its name there, or log in",
            commands=_LOG_IN,
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelError(f"{model.name} has no revision {revision!r}") from None
    except errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{hub} does not answer"
        raise ModelError(
            f"there is no folder {model.name!r}, none in the Hub's cache, "
            f"{constants.HF_HUB_CACHE}, and {why}"
        ) from None
    except (errors.HfHubHTTPError, httpx2.HTTPError, OSError) as error:
        raise ModelError(
            f"cannot fetch {model.name}: {error}; the same command goes on where it broke off"
        ) from None
    except (ValueError, TypeError) as error:  # a proxy's page, or names that no file may have
        raise ModelError(
            f"{hub} does not answer as the Hub does: {error}; see HF_ENDPOINT"
        ) from None


def _fetched(model: HubModel, revision: str | None) -> Path:
    try:
        patience = constants.HF_HUB_ETAG_TIMEOUT  # by itself it waits for ever
        info = library.HfApi().model_info(
            model.name, revision=revision, files_metadata=True, timeout=patience
        )
    except (errors.OfflineModeIsEnabled, httpx2.ConnectError, httpx2.TimeoutException):
        # With no patterns it is asked for nothing, and tells where what is cached lies.
        folder = Path(
            library.snapshot_download(
                model.name, revision=revision, local_files_only=True, allow_patterns=[]
            )
        )
        held = [its.relative_to(folder).as_posix() for its in folder.rglob("*") if its.is_file()]
        return _place(folder, chosen(held, model))
    sizes = {its.rfilename: its.size or 0 for its in info.siblings or ()}
    files = chosen(sizes, model)
    missing = [
        name
        for name in files
        if not isinstance(library.try_to_load_from_cache(model.name, name, revision=info.sha), str)
    ]
    _check_room(model, sum(sizes[name] for name in missing))
    given = library.snapshot_download(model.name, revision=revision, allow_patterns=list(files))
    return _place(Path(given), files)


def _place(folder: Path, files: Sequence[str]) -> Path:
    return folder / files[0] if files[0].endswith(".gguf") else folder


def _check_room(model: HubModel, needed: int) -> None:
    """Raises ModelError where a model is larger than what its disk has left."""
    cache = Path(constants.HF_HUB_CACHE)
    there = next(each for each in (cache, *cache.parents) if each.exists())
    if (free := shutil.disk_usage(there).free) < needed:
        raise ModelError(
            f"{model.name} takes {needed / 1e9:.1f} GB more, and {there} has {free / 1e9:.1f} GB "
            "left; make room, or set HF_HOME to a folder on another disk"
        )


def chosen(names: Iterable[str], model: HubModel) -> list[str]:
    """The files that are read of a model that has these: weights in safetensors with what is beside
    them, or all parts of one GGUF file. Raises ModelError.

    >>> chosen(["config.json", "model.safetensors", "pytorch_model.bin"], HubModel("a/b"))
    ['config.json', 'model.safetensors']
    >>> chosen(["b-Q4_K_M.gguf", "b-Q8_0.gguf", "README.md"], HubModel("a/b", "q8_0"))
    ['b-Q8_0.gguf']
    """
    paths = [PurePosixPath(name) for name in sorted(names)]
    paths = [its for its in paths if ".." not in its.parts and not its.name.startswith(_NOT_READ)]
    top = [str(its) for its in paths if len(its.parts) == 1]
    weights = [name for name in top if name.endswith(".safetensors")]
    if weights and not model.kind:
        return [name for name in top if name.endswith(_BESIDE)] + weights
    kinds = _kinds(its for its in paths if its.suffix == ".gguf")
    if not kinds:
        what = "no GGUF files" if model.kind else "neither weights in safetensors nor GGUF files"
        raise ModelError(f"{model.name} holds {what}; others are not loaded")
    usual = next(iter(kinds)) if len(kinds) == 1 else _USUAL
    if (found := kinds.get((model.kind or usual).upper())) is None:
        raise ModelError(
            f"{model.name} holds GGUF files of {', '.join([*kinds][:_SHOWN])}; name one",
            commands=(serving(f"{model.name}:{next(iter(kinds))}"),),
        )
    return found


def _kinds(paths: Iterable[PurePosixPath]) -> Mapping[str, list[str]]:
    """GGUF files by kind, of each all parts in order."""
    kinds: dict[str, list[str]] = {}
    for path in paths:
        match = _KIND.search(path.name)
        kind = path.stem if match is None else match[1]
        kinds.setdefault(kind.upper(), []).append(str(path))
    return dict(sorted(kinds.items()))
