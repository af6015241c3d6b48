"""What a request has used, added up as its outputs come."""

from __future__ import annotations

from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.pipeline.usage import UsageMeter


def test_an_end_that_knows_no_prompt_leaves_what_was_known() -> None:
    """A server that stops ends its requests without their numbers."""
    meter = UsageMeter(1)
    meter.add(0, RequestOutput("a", token_ids=(7, 8), prompt_tokens=5, cached_tokens=3))
    meter.add(0, RequestOutput("a", finish_reason=FinishReason.ABORT))
    assert (meter.prompt_tokens, meter.completion_tokens, meter.cached_tokens) == (5, 2, 3)
