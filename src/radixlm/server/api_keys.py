"""API keys: who may ask, and on whose behalf."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from radixlm.server.errors import InvalidApiKeyError

# A probe of whether the server is up carries no key.
OPEN_PATH = "/health"


def carried_key(headers: Headers) -> str | None:
    """The key that a request carries as `Authorization: Bearer KEY`, or else as `x-api-key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return bearer or headers.get("x-api-key", "").strip() or None


def digest_of(key: str) -> str:
    """32 characters that stand for a key where the key itself must not be seen."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


class Keyring:
    """The keys that open the server; without any it is open to everyone."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(digest_of(key) for key in keys)

    def refusal(self, scope: Scope) -> InvalidApiKeyError | None:
        """Why a request may not pass; None when it may.

        Takes the same time whichever key is right and however much of a wrong one is: digests are
        compared, all of them, and each in constant time.
        """
        if not self._digests or scope["method"] == "OPTIONS":
            return None
        if scope["path"] == scope.get("root_path", "") + OPEN_PATH:
            return None
        key = carried_key(Headers(scope=scope))
        if key is None:
            return InvalidApiKeyError(
                "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY"
            )
        given = digest_of(key)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return None if any(matches) else InvalidApiKeyError("the API key is not one of this server")
