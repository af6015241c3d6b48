"""/v1/completions: prompts to a job, outputs to `choices`."""

from __future__ import annotations

import uuid

from radixlm.core.request import RequestOutput
from radixlm.server.generation import Job
from radixlm.server.logprobs import CompletionLogprobs, joined
from radixlm.server.protocol import CompletionBody
from radixlm.server.service import Service
from radixlm.server.wire import TextChoice, TextLogprobs
from radixlm.text.tokenizer import Tokenizer

# Enough to know what a first space or half a character at the prompt's end belongs to.
_TAIL = 8


def completion_job(service: Service, body: CompletionBody, tenant: str) -> Job:
    """Tokenize. Takes time in proportion to the prompts: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    params = body.to_params()
    special = True if body.add_special_tokens is None else body.add_special_tokens
    return Job(
        request_id=f"cmpl-{uuid.uuid4().hex}",
        prompts=[
            service.key(item, add_special_tokens=special, param="prompt")
            for item in body.to_prompts()
        ],
        n=body.n or 1,
        params=params,
        namespace=body.namespace,
        priority=body.priority or 0,
        tenant=tenant,
    )


class CompletionShape:
    """OpenAI's text choices. Source: https://platform.openai.com/docs/api-reference/completions."""

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, tokenizer: Tokenizer, job: Job, body: CompletionBody) -> None:
        self._tokenizer = tokenizer
        self._job = job
        self._echoed = body.to_prompts() if body.echo else None
        self._with_ids = bool(body.return_token_ids)
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._begun: set[int] = set()

    def whole(self, choice: int, output: RequestOutput) -> TextChoice:
        return self._entry(choice, output)

    def chunks(self, choice: int, output: RequestOutput) -> list[TextChoice]:
        first = self._echoed is not None and choice not in self._begun
        ids = self._with_ids and output.token_ids
        if first or ids or output.text or output.logprobs or output.finished:
            return [self._entry(choice, output)]
        return []

    def _entry(self, choice: int, output: RequestOutput) -> TextChoice:
        """The echo, if asked for, goes in front of a choice's first entry."""
        prompt = None
        if self._echoed is not None and choice not in self._begun:
            prompt = self._echoed[choice // self._job.n]
        self._begun.add(choice)
        text = output.text
        if prompt is not None:
            text = self._text_of(prompt) + text
        entry: TextChoice = {
            "index": choice,
            "text": text,
            "logprobs": self._logprobs_of(choice, output, echo=prompt is not None),
            "finish_reason": output.finish_reason,
        }
        if self._with_ids:
            entry["token_ids"] = list(output.token_ids)
        return entry

    def _text_of(self, prompt: str | list[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return self._tokenizer.decode(
            prompt, skip_special_tokens=self._job.params.skip_special_tokens
        )

    def _logprobs_of(
        self, choice: int, output: RequestOutput, *, echo: bool
    ) -> TextLogprobs | None:
        if self._job.params.logprobs is None:
            return None
        key = self._job.prompts[choice // self._job.n]
        writer = self._logprobs.get(choice)
        if writer is None:
            writer = self._logprobs[choice] = CompletionLogprobs(
                self._tokenizer,
                skip_special_tokens=self._job.params.skip_special_tokens,
                prompt_tail=() if echo else key[-_TAIL:].tolist(),
            )
        if not echo:
            return writer.of_output(output.logprobs)
        of_prompt = writer.of_prompt(int(key[0]), output.prompt_logprobs)
        return joined(of_prompt, writer.of_output(output.logprobs))
