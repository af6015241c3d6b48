"""What the head of a request may say. Whatever another server could read in another way is refused,
before anything is done for it: a proxy in front would let pass what it never saw.
"""

from __future__ import annotations

from collections.abc import Sequence

import httptools
from starlette.exceptions import HTTPException

from radixlm.core.errors import InvalidRequestError
from radixlm.server.errors import HeaderTooLongError

MAX_HEADER_BYTES = 64 * 1024
MAX_FIELDS = 1000
_BETWEEN = len(": \r\n")

Fields = Sequence[tuple[bytes, bytes]]


def check_head(method: bytes, target: bytes, version: str, fields: Fields) -> None:
    """fields: names in lower case. Raises InvalidRequestError, or HTTPException with a status."""
    if version not in ("1.0", "1.1"):
        raise HTTPException(505, f"HTTP/{version} is not spoken here; use HTTP/1.1")
    if method == b"CONNECT":
        raise HTTPException(
            405, "CONNECT is for proxies, and this is none", {"Allow": "GET, HEAD, POST, DELETE"}
        )
    if len(target) > MAX_HEADER_BYTES:
        raise HTTPException(414, f"the request's target is longer than {MAX_HEADER_BYTES} bytes")
    length = len(target) + sum(len(name) + len(value) + _BETWEEN for name, value in fields)
    if length > MAX_HEADER_BYTES:
        raise HeaderTooLongError(f"the headers are longer than {MAX_HEADER_BYTES} bytes")
    if len(fields) > MAX_FIELDS:
        raise HeaderTooLongError(f"there are more than {MAX_FIELDS} header fields")
    _check_framing(version, fields)


def _check_framing(version: str, fields: Fields) -> None:
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if codings and version == "1.0":
        raise InvalidRequestError("Transfer-Encoding is not part of HTTP/1.0")
    if codings and [coding.strip().lower() for coding in codings] != [b"chunked"]:
        raise InvalidRequestError("the only Transfer-Encoding that is read is chunked, once")
    if sum(name == b"host" for name, _ in fields) > 1:
        raise InvalidRequestError("a request has one Host")


def origin_form(target: bytes) -> bytes:
    """The target with a path, which `http://host?query` has not."""
    if target.startswith((b"/", b"*")):
        return target
    url = httptools.parse_url(target)
    if url.path is not None:
        return target
    return b"/" + (b"" if url.query is None else b"?" + url.query)


def without_upgrade(method: bytes, target: bytes, version: str, fields: Fields) -> bytes:
    """The same head, as one sends it who does not offer to go on in another protocol."""
    lines = [b"%s %s HTTP/%s" % (method, target, version.encode())]
    lines += [b"%s: %s" % field for field in fields if field[0] != b"upgrade"]
    return b"\r\n".join(lines) + b"\r\n\r\n"
