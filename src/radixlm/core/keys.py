"""Keys: token ids as one contiguous int32 buffer, made once and only sliced after that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from radixlm.core.errors import InvalidKeyError

Key = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int32]
KeyLike = Sequence[int] | npt.NDArray[np.integer]

_INT32 = np.dtype(np.int32)
_INT32_MAX = int(np.iinfo(np.int32).max)


def as_key(tokens: KeyLike) -> Key:
    """Return `tokens` as a key; an int32 array that is contiguous already is returned as it is.

    Raises InvalidKeyError for anything but a non-empty 1-D sequence of ids in [0, 2**31).

    >>> as_key([3, 1, 2]).dtype
    dtype('int32')
    """
    try:
        wide = np.asarray(tokens)
    except ValueError as error:
        raise InvalidKeyError(f"token ids do not form one row: {error}") from None
    if wide.ndim != 1:
        raise InvalidKeyError(f"a key has one dimension, got shape {wide.shape}")
    if not wide.size:
        raise InvalidKeyError("a key needs at least one token, got none")
    if not np.issubdtype(wide.dtype, np.integer):
        raise InvalidKeyError(f"token ids must be integers, got dtype {wide.dtype}")
    if wide.dtype != _INT32:
        for value in (int(wide.max()), int(wide.min())):
            if abs(value) > _INT32_MAX:
                raise InvalidKeyError(f"token id {value} does not fit int32")
    array: Key = np.ascontiguousarray(wide, dtype=np.int32)
    if array.min() < 0:
        raise InvalidKeyError(f"token ids must not be negative, got {int(array.min())}")
    return array


def token_view(key: KeyLike) -> memoryview:
    """The tokens of a key, as int32s in one piece. An array of a key's type is taken as it is, in
    constant time, without a look at its ids: negative ones match nothing, and the tree refuses to
    add them. Raises InvalidKeyError.
    """
    if isinstance(key, np.ndarray) and key.dtype == _INT32:
        view = key.data
        if view.ndim == 1 and view.c_contiguous and view.nbytes:
            return view
    return as_key(key).data


def as_trusted_key(key: KeyLike) -> Key:
    """A key as `as_key` makes it, but an array that has a key's type is trusted; see
    `token_view`.
    """
    return cast("Key", token_view(key).obj)


def common_prefix(left: Key, right: Key) -> int:
    """Tokens that both keys begin with. O(length), one memcmp when they agree.

    >>> common_prefix(as_key([1, 2, 3]), as_key([1, 2, 4, 5]))
    2
    """
    length = min(left.size, right.size)
    if left[:length].tobytes() == right[:length].tobytes():
        return length
    return int(np.argmax(left[:length] != right[:length]))


def first_difference(edge: bytes, key: memoryview) -> int:
    """Tokens that int32 bytes and a view of a key share, when they are known to differ."""
    ours: Key = np.frombuffer(edge, dtype=np.int32, count=len(key))
    return int(np.argmax(ours != np.frombuffer(key, dtype=np.int32)))


def common_beginning(one: str, other: str) -> int:
    """How many characters two texts begin with alike. O(that number).

    >>> common_beginning("radix", "radical")
    4
    """
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((place for place, (left, right) in pairs if left != right), shorter)
