"""The search for a text's last tokens among those just before them."""

from __future__ import annotations

from radixlm.drafts.token_log import (
    NOTHING,
    ORDERS,
    REACH,
    TOKEN_BYTES,
    WALK,
    Found,
    agreeing,
)


def find_within(tail: bytes) -> Found:
    """The longest match of the last tokens of `tail` in itself, of those the newest; a place is
    one in it. tail: (n,) int32s, as bytes. O(n), by the search for bytes.

    >>> from radixlm.core.keys import as_key
    >>> find_within(as_key([7, 8, 9, 1, 7, 8]).tobytes())
    Found(matched=2, place=2)
    """
    last = tail[-REACH * TOKEN_BYTES :]
    for order in ORDERS:
        wanted, end, best = tail[-order * TOKEN_BYTES :], len(tail) - TOKEN_BYTES, NOTHING
        for _ in range(WALK):
            at = tail.rfind(wanted, 0, end)
            if at < 0:
                break
            stop = at + len(wanted)
            if not at % TOKEN_BYTES:
                before = tail[max(stop - len(last), 0) : stop]
                number = int.from_bytes(last[-len(before) :], "little")
                matched = agreeing(before, number, len(before))
                if matched > best.matched:
                    best = Found(matched, stop // TOKEN_BYTES)
            end = stop - 1
        if best.matched:
            return best
    return NOTHING


def going_on(tail: list[int], place: int, most: int) -> list[int]:
    """`most` tokens from a place in `tail` on; at its end they go on with what was taken first.

    >>> going_on([5, 1, 2], 1, 5)
    [1, 2, 1, 2, 1]
    """
    period = tail[place : place + most]
    return (period * -(-most // len(period)))[:most]
