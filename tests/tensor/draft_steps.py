"""What a head drafts in an engine's steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.drafts.draft import Draft
from radixlm.runner.model_runner import ModelRunner
from radixlm.scheduler import DraftPolicy


def draft_always(patch: pytest.MonkeyPatch) -> None:
    """Have heads draft 5 tokens, and all of them computed, whatever pays."""

    def cut(_self: DraftPolicy, drafts: Sequence[Draft], _requests: int) -> list[Draft]:
        return [draft.cut(5, 0) for draft in drafts]

    patch.setattr(DraftPolicy, "cut", cut)
    patch.setattr(DraftPolicy, "may_pay", lambda *_: True)


class Steps:
    """The batches and results of all steps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[ScheduledBatch, StepResult]] = []
        execute = ModelRunner.execute

        def noted(runner: ModelRunner, batch: ScheduledBatch) -> StepResult:
            self.seen.append((batch, result := execute(runner, batch)))
            return result

        patch.setattr(ModelRunner, "execute", noted)

    def drafts(self) -> list[tuple[list[int], tuple[int, ...]]]:
        """All tokens that were known, and what was drafted after them."""
        return [
            ([*row.tokens[: row.known].tolist(), *result.drawn(place)], result.ahead[place])
            for batch, result in self.seen
            for place, row in enumerate(batch.rows)
            if place in result.ahead
        ]
