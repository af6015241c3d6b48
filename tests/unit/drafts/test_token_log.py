"""The log of tokens: what is found, how it grows, what it forgets, what a look-up reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from radixlm.core.keys import as_key
from radixlm.drafts import token_log
from radixlm.drafts.token_log import LEAD, LEAST_CAPACITY, NOTHING, REACH, WALK, TokenLog

MOST = 1 << 16
NONE = np.empty(0, dtype=np.int32)


def log_of(*pieces: Sequence[int], most: int = MOST) -> TokenLog:
    log = TokenLog()
    for piece in pieces:
        log.write(NONE, as_key(piece), most)
    return log


def found(log: TokenLog, tokens: Sequence[int], most: int = 8) -> tuple[int, list[int]]:
    """How many tokens match, and what follows on them."""
    match = log.find(as_key(tokens).tobytes())
    return match.matched, log.after(match.place, most) if match.matched else []


def test_the_longest_match_comes_before_the_newest() -> None:
    log = log_of([1, 2, 3, 4, 5, 6, 60], [2, 3, 4, 5, 6, 61], [9, 3, 4, 5, 6, 62])
    assert found(log, [1, 2, 3, 4, 5, 6]) == (6, [60])
    assert found(log, [8, 2, 3, 4, 5, 6]) == (5, [61])


def test_of_equal_matches_the_newest_counts() -> None:
    log = log_of([1, 2, 3, 4, 60], [1, 2, 3, 4, 61])
    assert found(log, [1, 2, 3, 4]) == (4, [61])
    assert found(log, [3, 4]) == (2, [61])
    assert found(log, [4]) == (1, [61])
    assert log.find(as_key([5]).tobytes()) == NOTHING
    assert log.find(b"") == NOTHING


def test_no_match_and_nothing_that_follows_leaves_a_piece() -> None:
    log = log_of([1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert found(log, [3, 4]) == (0, [])
    assert found(log, [3, 4, 5, 6]) == (2, [7, 8, 9])


def test_matches_and_what_follows_cross_into_the_newest_piece_after_a_lead() -> None:
    log = log_of(range(100, 200))
    for last in (60, 61):
        log.write(as_key(range(100, 200)), as_key([last, 70]), MOST)
    assert found(log, range(150, 200)) == (REACH, [61, 70])
    assert found(log, range(150, 190), 16) == (REACH, [*range(190, 200), 61, 70])


def test_what_was_found_is_found_when_the_log_has_grown() -> None:
    rng = np.random.default_rng(1)
    pieces = rng.integers(0, 50_000, size=(200, 300), dtype=np.int32)
    log = log_of(*pieces)
    assert log.capacity == 1 << 16
    for piece in pieces:
        assert found(log, piece[100:150], 10) == (REACH, piece[150:160].tolist())


def test_a_full_log_forgets_the_older_half() -> None:
    rng = np.random.default_rng(2)
    pieces = rng.integers(0, 50_000, size=(100, 100), dtype=np.int32)
    log, numbers = TokenLog(), []
    for piece in pieces:
        log.write(NONE, piece, 2048)
        assert log.end < log.capacity == min(log.capacity, 2048)
        numbers.append(log.base + log.end - piece.size)
    assert log.nbytes == 2048 * 14
    known = [found(log, piece[10:50], 4) == (REACH, piece[50:54].tolist()) for piece in pieces]
    assert known == [number > log.base for number in numbers]
    assert sum(known) >= 9
    assert known == sorted(known)


def test_of_what_does_not_fit_the_end_is_written() -> None:
    piece = np.arange(5000, dtype=np.int32)
    log = log_of(piece, most=LEAST_CAPACITY)
    assert found(log, piece[4900:4950], 2) == (REACH, [4950, 4951])
    assert found(log, piece[:4000]) == (0, [])


def test_a_smaller_log_keeps_the_newer_half() -> None:
    rng = np.random.default_rng(3)
    pieces = rng.integers(0, 50_000, size=(10, 300), dtype=np.int32)
    log = log_of(*pieces)
    assert log.capacity == 4096
    log.shrink()
    assert log.capacity == 2048
    assert found(log, pieces[9][:40], 3) == (REACH, pieces[9][40:43].tolist())
    assert found(log, pieces[0][:40]) == (0, [])


def test_alike_hashes_lead_to_nothing_false(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_log, "FACTORS", (0, 0, 0, 0))
    log = log_of([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert found(log, [1, 2, 3, 4]) == (4, [5])
    assert found(log, [6, 7, 3, 4]) == (0, [])


def test_only_some_places_are_compared() -> None:
    older = [[1, 2, 3, 4, 5, 6, 60]]
    newer = [[9, 3, 4, 5, 6, n] for n in range(100, 100 + WALK)]
    assert found(log_of(*older, *newer[1:]), range(1, 7)) == (6, [60])
    assert found(log_of(*older, *newer), range(1, 7)) == (4, [99 + WALK])


def test_a_lead_is_no_longer_than_what_is_compared() -> None:
    log = TokenLog()
    log.write(np.arange(5000, dtype=np.int32), as_key([6000]), MOST)
    assert log.end == REACH + 1 + LEAD + 1
