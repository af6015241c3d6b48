"""What is told of an answer, in the words of SGLang's `meta_info`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from radixlm.core.keys import Key
from radixlm.core.request import FinishReason, RequestOutput, TokenLogprob
from radixlm.lang.params import Params
from radixlm.text.tokenizer import Tokenizer

Entry = tuple[float | None, int, str | None]


class AnswerMeta:
    """Adds up one answer's outputs. params: what is asked of it. key: the prompt."""

    def __init__(self, tokenizer: Tokenizer, params: Params, key: Key) -> None:
        self._tokenizer = tokenizer
        self._with_text = bool(params.return_text_in_logprobs)
        self._tokens = 0
        kinds = ["token"] if params.return_logprob else []
        kinds += ["top"] if params.return_logprob and params.top_logprobs_num else []
        self._lists: dict[str, list[Any]] = {
            f"{side}_{kind}_logprobs": [] for side in ("input", "output") for kind in kinds
        }
        if params.return_logprob and params.logprob_start_len == 0 and key.size:
            # Nothing comes before the first token that could predict it.
            self._lists["input_token_logprobs"].append(self._entry(int(key[0]), None))
            if "top" in kinds:
                self._lists["input_top_logprobs"].append(None)

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
            self._lists[f"{side}_token_logprobs"].append(self._entry(entry.token, entry.logprob))
            if entry.top:
                tops = [self._entry(*best) for best in entry.top]
                self._lists[f"{side}_top_logprobs"].append(tops)

    def _entry(self, token: int, logprob: float | None) -> Entry:
        return logprob, token, self._tokenizer.token_text(token) if self._with_text else None

    def _finish(self, output: RequestOutput) -> dict[str, Any] | None:
        match output.finish_reason:
            case None:
                return None
            case FinishReason.LENGTH:
                return {"type": "length", "length": self._tokens}
            case reason:
                return {"type": str(reason), "matched": output.matched_stop}
