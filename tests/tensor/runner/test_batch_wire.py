"""A batch in bytes: other ranks compute from it what rank 0 computes."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import torch

from radixlm.core.batch import Extent, Remap, ScheduledBatch, ScheduledRow, Segment, WindowMoves
from radixlm.core.request import Namespace
from radixlm.core.sampling import SamplingParams
from radixlm.memory.staging import Sending
from radixlm.runner.batch_wire import packed, unpacked
from radixlm.runner.model_runner import ForwardBatch
from tests.tensor.rows import make_row

CPU = torch.device("cpu")


def batch() -> ScheduledBatch:
    """A row of a chunk, one that decodes, one whose prompt's log-probabilities are wanted, and one
    with a draft.
    """
    chunk = make_row(range(10, 17), start=2, table_row=4, prompt=range(10, 30), samples=False)
    path = (
        Segment(7, 0, 4, (Extent(3, 5), Extent(9, 11))),
        Segment(None, 4, 7, (Extent(90, 93),)),
    )
    slots = np.array([20, 21, 22], dtype=np.int32)
    decoding = make_row(range(7), start=6, table_row=1)
    decoding = replace(decoding, segments=path, remaps=(Remap(0, slots), Remap(3, slots[:1])))
    asked = SamplingParams(prompt_logprobs=2, logprob_start_len=3)
    last = make_row(range(9), start=0, params=asked)
    long = replace(decoding.request, namespace=Namespace(long_rope="long"))
    drafted = replace(make_row(range(5), start=2, table_row=2), drafted=2)
    return ScheduledBatch((chunk, replace(decoding, request=long), last, drafted))


def test_what_is_computed_is_the_same() -> None:
    given = batch()
    taken = unpacked(packed(given))
    for mine, its in zip(given.rows, taken.rows, strict=True):
        for name in (
            "row",
            "start",
            "stop",
            "n_new",
            "prompt_length",
            "samples",
            "drafted",
            "segments",
        ):
            assert getattr(its, name) == getattr(mine, name), name
        assert its.new_slots.tolist() == mine.new_slots.tolist()
        assert its.tokens[its.start :].tolist() == mine.tokens[mine.start :].tolist()
        both = zip(mine.remaps, its.remaps, strict=True)
        assert all(a.start == b.start and a.slots.tolist() == b.slots.tolist() for a, b in both)
    a, b = (ForwardBatch.from_scheduled(each, Sending(CPU), 1_000) for each in (given, taken))
    assert a.positions[:6].tolist() == [*range(1_002, 1_007), 6], "rows turn alike"
    for name in ("token_ids", "positions", "slots", "logit_rows"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist(), name
    assert len(a.logit_rows) > len(a.sampling), "no log-probabilities of a prompt"


def test_window_slots_are_followed() -> None:
    given = batch()
    assert unpacked(packed(given)).windows is None
    slots, window_slots = (np.array(each, dtype=np.int32) for each in ([20, 9, 21], [4, 0, 5]))
    taken = unpacked(packed(replace(given, windows=WindowMoves(slots, window_slots))))
    assert taken.windows is not None
    assert [each.tolist() for each in taken.windows] == [[20, 9, 21], [4, 0, 5]]
    assert [row.new_slots.tolist() for row in taken.rows] == [
        row.new_slots.tolist() for row in given.rows
    ]


def test_no_rows() -> None:
    assert unpacked(packed(ScheduledBatch(()))).rows == ()


def test_every_field_is_known() -> None:
    """One that is new has to be sent, too, or left out on purpose: of states, heads, siblings;
    ranks compute no step ahead.
    """
    assert {item.name for item in fields(ScheduledBatch)} == {"rows", "masks", "windows", "states"}
    assert {item.name for item in fields(ScheduledRow)} == {
        *("request", "row", "tokens", "start", "prompt_length", "new_slots", "remaps"),
        *("segments", "samples", "state", "checkpoints", "spares", "drafted", "ahead"),
        *("sibling", "beside", "promised"),
    }
