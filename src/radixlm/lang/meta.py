"""What is told of an answer, in the words of SGLang's `meta_info`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from radixlm.core.request import FinishReason, RequestOutput, TokenLogprob
from radixlm.text.tokenizer import Tokenizer

Entry = tuple[float, int, str | None]


class AnswerMeta:
    """Adds up one answer's outputs. with_text: whether log-probabilities come with the texts."""

    def __init__(self, tokenizer: Tokenizer, *, with_text: bool) -> None:
        self._tokenizer = tokenizer
        self._with_text = with_text
        self._tokens = 0
        self._lists: dict[str, list[Any]] = {}

    def after(self, output: RequestOutput) -> dict[str, Any]:
        """With this output too."""
        self._tokens += len(output.token_ids)
        self._add("input", output.prompt_logprobs)
        self._add("output", output.logprobs)
        return {
            "id": output.request_id,
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": self._tokens,
            "cached_tokens": output.cached_tokens,
            "finish_reason": self._finish(output),
            **self._lists,
        }

    def _add(self, side: str, entries: Iterable[TokenLogprob]) -> None:
        for entry in entries:
            own = self._lists.setdefault(f"{side}_token_logprobs", [])
            own.append(self._entry(entry.token, entry.logprob))
            if entry.top:
                tops = self._lists.setdefault(f"{side}_top_logprobs", [])
                tops.append([self._entry(*best) for best in entry.top])

    def _entry(self, token: int, logprob: float) -> Entry:
        return logprob, token, self._tokenizer.token_text(token) if self._with_text else None

    def _finish(self, output: RequestOutput) -> dict[str, Any] | None:
        match output.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                return {"type": "length", "length": self._tokens}
            case reason:
                return {"type": str(reason), "matched": output.matched_stop}
