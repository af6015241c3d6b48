"""The parts of Ray that are for this user alone: the token that lets run code in it, its sockets
and logs.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from radixlm.core.errors import ConfigError, reason_of
from radixlm.formats.private_files import check_private, make_private_folder

_TOKEN_BYTES = 32
_WRITABLE_BY_OTHERS = 0o022


def check_token(environment: Mapping[str, str], home: Path, *, make: bool) -> None:
    """See that nobody else can read the file with the token, where Ray takes it from one.

    make: one where there is none, which Ray itself would make for all to read. Raises ConfigError.
    """
    if environment.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    if environment.get("RAY_AUTH_TOKEN"):
        return
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else home / ".ray" / "auth_token"
    try:
        if make and not named:
            _make_token(path)
        if path.exists():
            check_private(path, path.stat())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Ray's token {path}, by which others could run code as you: {reason_of(error)}; or "
            "delete it, if others may have read it: a new one is made"
        ) from None


def _make_token(path: Path) -> None:
    """All of it or nothing is seen, and of several that start at once one makes it."""
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_mode & _WRITABLE_BY_OTHERS:
        raise ValueError(f"others may write into its folder: chmod go= {folder}")
    if path.exists():
        return
    handle, fresh = tempfile.mkstemp(dir=folder)  # of mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_hex(_TOKEN_BYTES))
        os.link(fresh, path)
    except FileExistsError:
        return
    finally:
        Path(fresh).unlink()


def folder_for_sessions(environment: Mapping[str, str]) -> Path:
    """The folder where Ray's processes keep their sockets, code and logs: whatever folder Ray is
    given, it lets all write into it, so this is within one that others can not enter. Raises
    ConfigError.
    """
    # Elsewhere folders for temporary files have names that are too long for sockets in them.
    usual = tempfile.gettempdir() if sys.platform.startswith("linux") else "/tmp"  # noqa: S108
    own = Path(environment.get("RAY_TMPDIR") or usual) / f"radixlm-{os.geteuid()}"
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        make_private_folder(own)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Ray's folder for this user, {own}: {reason_of(error)}; or set RAY_TMPDIR to a folder "
            "of yours"
        ) from None
    return own / "ray"
