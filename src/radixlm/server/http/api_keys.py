"""API keys: who may ask, and on whose behalf."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import Scope

from radixlm.core.errors import InvalidRequestError
from radixlm.server.http.http_errors import AdminKeyNeededError, InvalidApiKeyError

# A probe of whether the server is up carries no key.
OPEN_PATH = "/health"
# Nor does a browser that fetches a page: this one asks for a key, and holds no data by itself.
PAGE_PATH = "/ui"
# It leads to the page.
TOP_PATH = "/"


def tenant_in(headers: Headers) -> str:
    """On whose behalf a request comes: the digest of the key that it carries, as `Authorization:
    Bearer KEY` or else as `x-api-key`; "" without one.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    carried = bearer or headers.get("x-api-key", "").strip()
    return digest_of(carried) if carried else ""


def digest_of(key: str) -> str:
    """32 characters that stand for a key where the key itself must not be seen."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


class Keyring:
    """The keys that open the server; without any it is open to everyone.

    open_paths: need no key, beside those that never do.
    admin_keys: open everything, and where there are any, nothing else opens what is for admins.
    """

    def __init__(
        self, keys: Sequence[str], admin_keys: Sequence[str] = (), *, open_paths: Sequence[str] = ()
    ) -> None:
        self._open_paths = open_paths
        self._admins = tuple(digest_of(key) for key in admin_keys)
        self._digests = (*(digest_of(key) for key in keys), *self._admins) if keys else ()

    def refusal(self, scope: Scope, tenant: str) -> InvalidApiKeyError | None:
        """Why a tenant's request may not pass; None when it may.

        Takes the same time whichever key is right and however much of a wrong one is: digests are
        compared, all of them, and each in constant time.
        """
        path, root = scope["path"], scope.get("root_path", "")
        if scope["method"] == "OPTIONS" or _is_open(path, root):
            return None
        if path in [root + other for other in self._open_paths]:
            return None
        return self.key_refusal(tenant)

    def key_refusal(self, tenant: str) -> InvalidApiKeyError | None:
        """Why a tenant's key opens nothing; None when it does."""
        return _refusal(tenant, self._digests) if self._digests else None

    def is_admin(self, digest: str) -> bool:
        """Whether a key, known by its digest, is an admin's. Without any, none is."""
        matches = [hmac.compare_digest(digest, admin) for admin in self._admins]
        return any(matches)

    def admin_refusal(self, tenant: str) -> InvalidRequestError | None:
        """Why a tenant may not do what is for admins; None when it may."""
        if not self._admins:
            return None
        refusal = _refusal(tenant, self._admins)
        if refusal is None or not self._digests:
            return refusal
        return AdminKeyNeededError("this needs one of the keys of --admin-api-key")


def _is_open(path: str, root: str) -> bool:
    page = root + PAGE_PATH
    return path in (root + OPEN_PATH, root + TOP_PATH, page) or path.startswith(page + "/")


def _refusal(tenant: str, digests: Sequence[str]) -> InvalidApiKeyError | None:
    if not tenant:
        return InvalidApiKeyError(
            "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY"
        )
    matches = [hmac.compare_digest(tenant, digest) for digest in digests]
    if any(matches):
        return None
    return InvalidApiKeyError("Incorrect API key provided: it is not one of this server's")
